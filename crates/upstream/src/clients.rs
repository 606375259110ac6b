//! The clients of a gate that many workloads share: who makes a call, as the client's certificate
//! or the API server's review of its token says.
//!
//! A client that is not known is not let in, and learns nothing of others. What it showed is kept
//! nowhere: a token is remembered as a digest under a key of this process.

mod cache;
mod denied;
mod review;
mod shown;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

pub use self::denied::Denied;
use self::review::Reviewer;
use self::shown::{TO_PROXY, TOKEN};
use crate::classify::{Glob, Kind};
use crate::clock::Clock;
use crate::credentials::Api;
use crate::moment::Moment;
use crate::spec;
use crate::telemetry::table;

/// Tells who makes a call.
#[derive(derive_more::Debug)]
#[debug("Clients of {gate:?}")]
pub struct Clients {
    gate: Arc<str>,
    reviewer: Option<Arc<Reviewer>>,
    certificates: bool,
    /// The header that has the token.
    header: HeaderName,
    allowed: Option<Vec<Glob>>,
    clock: Clock,
    /// The time of the last log line about one that was turned away, and their number since.
    logged: Mutex<Option<(Moment, u64)>>,
}

// === impl Clients ===

impl Clients {
    /// Makes the judge of a gate's clients, which asks `api` about tokens; `None` without an `api`
    /// that it needs, or without randomness.
    pub fn new(gate: &spec::Gate, clients: &spec::Clients, api: Option<Api>, clock: Clock) -> Option<Self> {
        let header = match gate.kind {
            Kind::Kubernetes => AUTHORIZATION,
            Kind::Http => TOKEN,
        };
        Self::by(header, Arc::clone(&gate.name), clients, api, clock)
    }

    /// Makes the judge of the clients of a forward proxy, likewise.
    pub fn of_proxy(name: &str, clients: &spec::Clients, api: Option<Api>, clock: Clock) -> Option<Self> {
        Self::by(TO_PROXY, name.into(), clients, api, clock)
    }

    fn by(header: HeaderName, name: Arc<str>, clients: &spec::Clients, api: Option<Api>, clock: Clock) -> Option<Self> {
        let reviewer = match (clients.tokens, api) {
            (spec::Tokens::Off, _) => None,
            (spec::Tokens::Review, None) => return None,
            (spec::Tokens::Review, Some(api)) => {
                let audiences = clients.audiences.clone();
                Some(Arc::new(Reviewer::new(api, Arc::clone(&name), audiences, clients.cache, clock)?))
            }
        };
        let allowed = clients.allowed.as_ref().map(|names| names.iter().map(|name| Glob::new(name)).collect());
        let logged = Mutex::default();
        Some(Self { gate: name, reviewer, certificates: clients.certificates, header, allowed, clock, logged })
    }

    /// True if clients may show certificates.
    pub fn takes_certificates(&self) -> bool {
        self.certificates
    }

    /// Returns the name of the client that makes a call. `named` is that of its certificate: `None`
    /// without one, and an empty one if the certificate has no name. The header that is only for
    /// this gate is taken out.
    ///
    /// # Errors
    /// It is not let in.
    pub async fn identify(&self, named: Option<&Arc<str>>, headers: &mut HeaderMap) -> Result<Arc<str>, Denied> {
        let known = self.let_in(named, shown::in_header(&self.header, headers)).await;
        if self.header != AUTHORIZATION {
            headers.remove(&self.header);
        }
        known
    }

    /// Returns the name of the client of a forward proxy, which shows these values of
    /// `Proxy-Authorization`. `named` is that of its certificate, as above.
    ///
    /// # Errors
    /// It is not let in.
    pub async fn identify_by(&self, named: Option<&Arc<str>>, shown: &[&[u8]]) -> Result<Arc<str>, Denied> {
        self.let_in(named, shown::to_proxy(shown)).await
    }

    async fn let_in(&self, named: Option<&Arc<str>>, shown: Result<Cow<'_, str>, Denied>) -> Result<Arc<str>, Denied> {
        let allowed = self.known(named, shown).await.and_then(|client| match &self.allowed {
            Some(allowed) if !allowed.iter().any(|name| name.matches(&client)) => Err(Denied::NotAllowed(client)),
            _ => Ok(client),
        });
        allowed.inspect_err(|denied| self.note(denied))
    }

    /// Asks about a token that is nobody's, to see if the judge can be asked; `None` where there is
    /// none.
    pub async fn probe(&self) -> Option<Result<(), Denied>> {
        match self.reviewer.as_ref()?.review("of nobody").await {
            Ok(_) | Err(Denied::WrongToken) => Some(Ok(())),
            Err(denied) => Some(Err(denied)),
        }
    }

    async fn known(&self, named: Option<&Arc<str>>, shown: Result<Cow<'_, str>, Denied>) -> Result<Arc<str>, Denied> {
        match named.filter(|_| self.certificates) {
            Some(name) if name.is_empty() => return Err(Denied::NoName),
            Some(name) => return Ok(Arc::clone(name)),
            None => {}
        }
        let Some(reviewer) = &self.reviewer else {
            return Err(Denied::NothingShown("expected a client certificate"));
        };
        let token = shown?;
        if token.len() > LONGEST {
            return Err(Denied::WrongToken);
        }
        reviewer.review(&token).await
    }

    /// Counts one that is turned away, and says so once a minute.
    fn note(&self, denied: &Denied) {
        table::DENIED_CLIENTS.counter(&[&self.gate, denied.word()]).increment(1);
        let now = self.clock.now();
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *logged {
            Some((at, more)) if now.since(*at) < AGAIN => *more += 1,
            other => {
                let more = other.replace((now, 0)).map_or(0, |(_, more)| more);
                tracing::warn!(gate = &*self.gate, why = denied.word(), more, "a client was not let in: {denied}");
            }
        }
    }
}

/// Far more than any token has.
const LONGEST: usize = 32 << 10;
/// A client that tries again and again is one line a minute.
const AGAIN: Duration = Duration::from_secs(60);
