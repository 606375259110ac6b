//! The clients of a gate that many workloads share: who makes a call, as the client's certificate
//! or the API server's review of its token says.
//!
//! A client that is not known is not let in, and learns nothing of others. What it showed is kept
//! nowhere: a token is remembered as a digest under a key of this process.

mod cache;
mod denied;
mod review;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

pub use self::denied::Denied;
use self::review::Reviewer;
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
    /// Makes the judge of a gate's clients, which asks `api` about tokens.
    pub fn new(gate: &spec::Gate, clients: &spec::Clients, api: Option<Api>, clock: Clock) -> Option<Self> {
        let name = Arc::clone(&gate.name);
        let reviewer = match (clients.tokens, api) {
            (spec::Tokens::Off, _) => None,
            (spec::Tokens::Review, None) => return None,
            (spec::Tokens::Review, Some(api)) => {
                let audiences = clients.audiences.clone();
                Some(Arc::new(Reviewer::new(api, Arc::clone(&name), audiences, clients.cache, clock)?))
            }
        };
        let header = match gate.kind {
            Kind::Kubernetes => AUTHORIZATION,
            Kind::Http => TOKEN,
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
        let known = self.known(named, headers).await;
        if self.header != AUTHORIZATION {
            headers.remove(&self.header);
        }
        let allowed = known.and_then(|client| match &self.allowed {
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

    async fn known(&self, named: Option<&Arc<str>>, headers: &HeaderMap) -> Result<Arc<str>, Denied> {
        match named.filter(|_| self.certificates) {
            Some(name) if name.is_empty() => return Err(Denied::NoName),
            Some(name) => return Ok(Arc::clone(name)),
            None => {}
        }
        let Some(reviewer) = &self.reviewer else {
            return Err(Denied::NothingShown("expected a client certificate"));
        };
        let mut shown = headers.get_all(&self.header).iter();
        let expected = if self.header == AUTHORIZATION { EXPECTED_BEARER } else { EXPECTED_TOKEN };
        let value = shown.next().ok_or(Denied::NothingShown(expected))?;
        if shown.next().is_some() {
            return Err(Denied::Ambiguous);
        }
        let text = value.to_str().map_err(|_| Denied::WrongToken)?;
        let token = match bearer(text) {
            Some(token) => token,
            None if self.header != AUTHORIZATION && !text.trim().contains(' ') => text.trim(),
            None => return Err(Denied::NothingShown(expected)),
        };
        if token.is_empty() {
            return Err(Denied::NothingShown(expected));
        }
        if token.len() > LONGEST {
            return Err(Denied::WrongToken);
        }
        reviewer.review(token).await
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

/// Returns the token of a header, as kube-apiserver finds it: behind `Bearer` in any case, up to
/// the next space.
fn bearer(value: &str) -> Option<&str> {
    let mut words = value.trim().split(' ');
    words.next().filter(|scheme| scheme.eq_ignore_ascii_case("bearer"))?;
    words.next()
}

/// The header in which clients of other APIs show their token. It never goes upstream.
const TOKEN: HeaderName = HeaderName::from_static("tidegate-client-token");
const EXPECTED_BEARER: &str = "expected its service account's token as Authorization: Bearer";
const EXPECTED_TOKEN: &str = "expected its service account's token in the header Tidegate-Client-Token";
/// Far more than any token has.
const LONGEST: usize = 32 << 10;
/// A client that tries again and again is one line a minute.
const AGAIN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_as_kube_apiserver_finds_it() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            (" BEARER abc def", Some("abc")),
            ("Bearer", None),
            ("Bearer  abc", Some("")),
            ("Basic abc", None),
            ("abc", None),
            ("", None),
        ] {
            assert_eq!(bearer(value), token, "{value:?}");
        }
    }
}
