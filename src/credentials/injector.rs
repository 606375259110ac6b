//! Per request: leave the client's credentials, or strip them all and put in the gate's.
//!
//! Never "inject only if missing": what the upstream sees must not depend on what the client happens to send.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL},
};

use super::Credential;
use crate::clock::Clock;

/// Makes a request's credentials upstream's. Pass-through leaves them; inject replaces them with the gate's.
#[derive(Debug)]
pub struct Injector(Option<Inject>);

#[derive(Debug)]
struct Inject {
    /// `None` where the gate's credential is its client certificate.
    credential: Option<Credential>,
    impersonation: bool,
    clock: Clock,
}

/// Why a request may not pass with the gate's credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// It would act as somebody else with the gate's rights.
    #[error(
        "impersonation is off at this gate: Impersonate-* headers would act with the gate's own rights; impersonation = \"allow\" permits it"
    )]
    Impersonation,
}

impl Injector {
    /// The client's own credentials go through.
    #[must_use]
    pub const fn pass_through() -> Self {
        Self(None)
    }

    /// The gate's credentials, whatever the client sends. `credential` is `None` where it is the connection's client certificate.
    #[must_use]
    pub const fn inject(credential: Option<Credential>, impersonation: bool, clock: Clock) -> Self {
        Self(Some(Inject { credential, impersonation, clock }))
    }

    /// Whether a request with these headers may pass at all: to be asked before it waits.
    ///
    /// # Errors
    /// Why not; a 403 to the client.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Forbidden> {
        let Some(Inject { impersonation: false, .. }) = &self.0 else { return Ok(()) };
        let impersonates = headers.keys().any(|name| name.as_str().starts_with("impersonate-"));
        if impersonates { Err(Forbidden::Impersonation) } else { Ok(()) }
    }

    /// Strips what is the client's and adds what is the gate's, if this is inject. `Upstream::send` does this.
    pub fn authorize(&self, headers: &mut HeaderMap) {
        let Some(inject) = &self.0 else { return };
        strip(headers, inject.impersonation);
        if let Some(credential) = &inject.credential {
            headers.remove(&credential.header);
            if let Some(value) = credential.secret.header(&credential.prefix, inject.clock.now()) {
                headers.insert(credential.header.clone(), value);
            }
        }
    }

    /// The upstream answered 401: the credential is read anew before its next use. `Upstream::send` does this.
    pub fn upstream_said_unauthorized(&self) {
        if let Some(Inject { credential: Some(credential), .. }) = &self.0 {
            credential.secret.refused();
        }
    }
}

/// Removes every credential a client can send.
fn strip(headers: &mut HeaderMap, impersonation: bool) {
    headers.remove(AUTHORIZATION);
    let others: Vec<HeaderName> = headers.keys().filter(|name| is_identity(name, impersonation)).cloned().collect();
    for name in others {
        headers.remove(name);
    }
    if headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
        strip_websocket_bearer(headers);
    }
}

/// Headers in which somebody says who the caller is.
fn is_identity(name: &HeaderName, impersonation: bool) -> bool {
    let name = name.as_str();
    name.starts_with("x-remote-")
        || (!impersonation && name.starts_with("impersonate-"))
        || matches!(
            name,
            "x-forwarded-client-cert"
                | "x-client-cert"
                | "x-ssl-client-cert"
                | "ssl-client-cert"
                | "client-cert"
                | "client-cert-chain"
        )
}

/// A WebSocket client can carry its token as a subprotocol; the other subprotocols stay, each on its line.
fn strip_websocket_bearer(headers: &mut HeaderMap) {
    let kept: Vec<HeaderValue> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|line| {
            if !line.as_bytes().windows(BEARER.len()).any(|part| part.eq_ignore_ascii_case(BEARER)) {
                return Some(line.clone());
            }
            let protocols: Vec<&[u8]> = line
                .as_bytes()
                .split(|byte| *byte == b',')
                .map(<[u8]>::trim_ascii)
                .filter(|one| {
                    !one.is_empty() && !one.get(..BEARER.len()).is_some_and(|start| start.eq_ignore_ascii_case(BEARER))
                })
                .collect();
            if protocols.is_empty() { None } else { HeaderValue::from_bytes(&protocols.join(b", ".as_slice())).ok() }
        })
        .collect();
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    for line in kept {
        headers.append(SEC_WEBSOCKET_PROTOCOL, line);
    }
}

/// What kube-apiserver reads a token from.
const BEARER: &[u8] = b"base64url.bearer.authorization.k8s.io.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Secret;

    fn injecting(impersonation: bool) -> Injector {
        let secret = Secret::fixed("gates-own", "test").expect("a token");
        let credential = Credential { header: AUTHORIZATION, prefix: "Bearer ".into(), secret };
        Injector::inject(Some(credential), impersonation, Clock::start())
    }

    fn clients() -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer clients"),
            ("authorization", "Basic more"),
            ("x-remote-user", "admin"),
            ("x-remote-extra-scopes", "all"),
            ("x-forwarded-client-cert", "cert"),
            ("impersonate-user", "admin"),
            ("impersonate-extra-a", "b"),
            ("sec-websocket-protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.Y2xpZW50cw"),
            ("sec-websocket-protocol", "v4.channel.k8s.io"),
            ("accept", "application/json"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn pass_through_leaves_the_clients_credentials() {
        let mut headers = clients();
        let injector = Injector::pass_through();
        assert_eq!(injector.check(&headers), Ok(()));
        injector.authorize(&mut headers);
        assert_eq!(headers, clients());
    }

    #[test]
    fn inject_leaves_nothing_of_the_clients_identity() {
        let mut headers = clients();
        let injector = injecting(false);
        assert_eq!(injector.check(&headers), Err(Forbidden::Impersonation));
        injector.authorize(&mut headers);
        let mut left: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII"))).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [
                ("accept", "application/json"),
                ("authorization", "Bearer gates-own"),
                ("sec-websocket-protocol", "v4.channel.k8s.io"),
                ("sec-websocket-protocol", "v5.channel.k8s.io"),
            ]
        );
        assert!(!format!("{injector:?} {headers:?}").contains("gates-own"), "neither Debug shows it");
    }

    #[test]
    fn impersonation_passes_where_it_is_allowed() {
        let mut headers = clients();
        let injector = injecting(true);
        assert_eq!(injector.check(&headers), Ok(()));
        injector.authorize(&mut headers);
        assert_eq!(headers["impersonate-user"], "admin");
        assert!(!headers.contains_key("x-remote-user"));
    }
}
