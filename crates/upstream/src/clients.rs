//! Authentication of the clients of a shared gate, by certificate or by `TokenReview`.
//!
//! A client without valid credentials is refused, and learns nothing about other clients. Tokens
//! are not stored: the cache has only a digest of each, made with a secret key of this process.

mod cache;
mod refusal;
mod review;
mod shown;

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

pub use self::refusal::ClientRefusal;
use self::review::Reviewer;
pub use self::shown::to_proxy;
use self::shown::{TO_PROXY, TOKEN};
use crate::classify::{ApiKind, Glob};
use crate::clock::Clock;
use crate::credentials::Api;
use crate::moment::Moment;
use crate::telemetry::table;
use crate::{lock, spec};

/// Authenticates a gate's clients.
#[derive(derive_more::Debug)]
#[debug("Clients of {gate:?}")]
pub struct Clients {
    gate: Arc<str>,
    reviewer: Option<Arc<Reviewer>>,
    certificates: bool,
    /// The request header carrying the client's token.
    header: HeaderName,
    allowed: Option<Vec<Glob>>,
    clock: Clock,
    /// The last log line about a refused client: its time, and the number of refusals since.
    logged: Mutex<Option<(Moment, u64)>>,
}

// === impl Clients ===

impl Clients {
    /// Creates the authentication for a gate, with `api` to review tokens. `None` if `api` is
    /// required and missing, or if the system gives no random numbers.
    pub fn new(gate: &spec::Gate, clients: &spec::Clients, api: Option<Api>, clock: Clock) -> Option<Self> {
        let header = match gate.kind {
            ApiKind::Kubernetes => AUTHORIZATION,
            ApiKind::Http => TOKEN,
        };
        Self::by(header, Arc::clone(&gate.name), clients, api, clock)
    }

    /// Creates the authentication for a forward proxy, as [`Self::new`] does for a gate.
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

    /// Returns true if clients may authenticate with certificates.
    pub fn takes_certificates(&self) -> bool {
        self.certificates
    }

    /// Returns the name of a call's client, and removes the gate's own token header.
    ///
    /// `named` is the name in the client's certificate: `None` without a certificate, empty if the
    /// certificate has no name.
    ///
    /// # Errors
    /// The client is refused.
    pub async fn identify(&self, named: Option<&Arc<str>>, headers: &mut HeaderMap) -> Result<Arc<str>, ClientRefusal> {
        let known = self.let_in(named, shown::in_header(&self.header, headers)).await;
        if self.header != AUTHORIZATION {
            headers.remove(&self.header);
        }
        known
    }

    /// Returns the name of a forward proxy's client. `shown` are its values of
    /// `Proxy-Authorization`; `named` is as for [`Self::identify`].
    ///
    /// # Errors
    /// The client is refused.
    pub async fn identify_by(&self, named: Option<&Arc<str>>, shown: &[&[u8]]) -> Result<Arc<str>, ClientRefusal> {
        self.let_in(named, to_proxy(shown)).await
    }

    async fn let_in(
        &self,
        named: Option<&Arc<str>>,
        shown: Result<Cow<'_, str>, ClientRefusal>,
    ) -> Result<Arc<str>, ClientRefusal> {
        let allowed = self.known(named, shown).await.and_then(|client| match &self.allowed {
            Some(allowed) if !allowed.iter().any(|name| name.matches(&client)) => {
                Err(ClientRefusal::NotAllowed(client))
            }
            _ => Ok(client),
        });
        allowed.inspect_err(|denied| self.note(denied))
    }

    /// Reviews an invalid token, to test whether the API server answers reviews. `None` if clients
    /// authenticate without tokens.
    pub async fn probe(&self) -> Option<Result<(), ClientRefusal>> {
        match self.reviewer.as_ref()?.review("of nobody").await {
            Ok(_) | Err(ClientRefusal::WrongToken) => Some(Ok(())),
            Err(denied) => Some(Err(denied)),
        }
    }

    async fn known(
        &self,
        named: Option<&Arc<str>>,
        shown: Result<Cow<'_, str>, ClientRefusal>,
    ) -> Result<Arc<str>, ClientRefusal> {
        match named.filter(|_| self.certificates) {
            Some(name) if name.is_empty() => return Err(ClientRefusal::NoName),
            Some(name) => return Ok(Arc::clone(name)),
            None => {}
        }
        let Some(reviewer) = &self.reviewer else {
            return Err(ClientRefusal::NothingShown("expected a client certificate"));
        };
        let token = shown?;
        if token.len() > LONGEST {
            return Err(ClientRefusal::WrongToken);
        }
        reviewer.review(&token).await
    }

    /// Counts a refused client, and logs one in a minute.
    fn note(&self, denied: &ClientRefusal) {
        table::DENIED_CLIENTS.counter(&[&self.gate, denied.word()]).increment(1);
        let now = self.clock.now();
        let mut logged = lock(&self.logged);
        match &mut *logged {
            Some((at, more)) if now.since(*at) < AGAIN => *more += 1,
            other => {
                let more = other.replace((now, 0)).map_or(0, |(_, more)| more);
                tracing::warn!(gate = &*self.gate, why = denied.word(), more, "a client was refused: {denied}");
            }
        }
    }
}

/// The longest token accepted, in bytes: far longer than any real token.
const LONGEST: usize = 32 << 10;
/// The shortest time between two log lines about refused clients.
const AGAIN: Duration = Duration::from_secs(60);
