//! Sets the credentials of each request: either the client's own, or the gate's in their place.
//!
//! The gate's credentials are never a mere default for clients without any: what is sent must not
//! depend on the client.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Credential, ExecPluginError, PodToken};
use crate::clock::Clock;

/// Sets the credentials of requests. The client's own are passed through, or replaced by the
/// gate's.
#[derive(Debug)]
pub struct Injector(Option<Inject>);

/// The gate's own credentials, sent in place of the client's.
#[derive(Debug)]
pub struct Inject {
    /// The header to add; `None` if the gate's credential is its client certificate.
    pub credential: Option<Credential>,
    /// True if clients may act as other users, by Impersonate-* headers.
    pub impersonation: bool,
    /// The gate's own Impersonate-* headers, to be added to requests.
    pub acting_as: Vec<(HeaderName, HeaderValue)>,
    /// The token required from clients before they may use the gate's credentials.
    pub required_token: Option<PodToken>,
    /// The clock for renewing credentials.
    pub clock: Clock,
}

/// The version of a credential. If its request is refused, it is compared with the current version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialVersion(u64);

/// Why a request may not be sent with the gate's credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialRefusal {
    /// The client asks to act as another user with the gate's rights.
    #[error(
        "impersonation is off at this gate: Impersonate-* headers would act with the gate's own rights; impersonation = \"allow\" permits it"
    )]
    Impersonation,
    /// The client asks to act as another user, but the gate already acts as one itself.
    #[error("this gate impersonates a user already, so a call cannot have Impersonate-* headers too")]
    ActsAlready,
    /// The client did not send the required token.
    #[error(
        "this gate adds its own credentials, but only for clients that send the bearer token in the folder that it writes (tls.write_to)"
    )]
    Unauthenticated,
}

impl Injector {
    /// Creates an injector without credentials: the client's own stay in its requests.
    pub const fn pass_through() -> Self {
        Self(None)
    }

    /// Creates an injector of these credentials, in place of the client's.
    pub const fn inject(inject: Inject) -> Self {
        Self(Some(inject))
    }

    /// Checks a request's headers as soon as it arrives, before it has to wait.
    ///
    /// # Errors
    /// Why the request is refused, with a 401 or 403 to the client.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), CredentialRefusal> {
        let Some(inject) = &self.0 else { return Ok(()) };
        if inject.required_token.as_ref().is_some_and(|token| !token.is_shown(headers)) {
            return Err(CredentialRefusal::Unauthenticated);
        }
        let impersonates = headers.keys().any(|name| name.as_str().starts_with("impersonate-"));
        match (impersonates, inject.impersonation) {
            (false, _) => Ok(()),
            (true, false) => Err(CredentialRefusal::Impersonation),
            (true, true) if inject.acting_as.is_empty() => Ok(()),
            (true, true) => Err(CredentialRefusal::ActsAlready),
        }
    }

    /// Waits until the gate has credentials. This takes time only with an exec plugin; an exempt
    /// call does not wait for a renewal. `Upstream` calls this.
    ///
    /// # Errors
    /// No credentials are available.
    pub async fn ready(&self, is_exempt: bool) -> Result<(), Arc<ExecPluginError>> {
        match &self.0 {
            Some(Inject { credential: Some(credential), clock, .. }) => {
                credential.secret.ready(is_exempt, *clock).await
            }
            _ => Ok(()),
        }
    }

    /// Replaces the client's credentials in a request, if the gate uses its own. `Upstream::send`
    /// calls this.
    pub fn authorize(&self, headers: &mut HeaderMap) -> CredentialVersion {
        let Some(inject) = &self.0 else { return CredentialVersion(0) };
        strip(headers, inject.impersonation && inject.acting_as.is_empty());
        for (name, value) in &inject.acting_as {
            headers.append(name.clone(), value.clone());
        }
        let Some(credential) = &inject.credential else { return CredentialVersion(0) };
        headers.remove(&credential.header);
        let (value, number) = credential.secret.header(&credential.prefix, inject.clock.now());
        if let Some(value) = value {
            headers.insert(credential.header.clone(), value);
        }
        CredentialVersion(number)
    }

    /// Returns a salted hash of the gate's credential, for noticing changes. `None` if clients send
    /// their own credentials.
    pub fn mark(&self) -> Option<u64> {
        static SALT: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let inject = self.0.as_ref()?;
        let header = |credential: &Credential| credential.secret.header(&credential.prefix, inject.clock.now());
        Some(SALT.hash_one(inject.credential.as_ref().map(header)))
    }

    /// Returns the time since the credential's file was last read successfully; `None` without a
    /// file.
    pub fn age(&self) -> Option<Duration> {
        let inject = self.0.as_ref()?;
        inject.credential.as_ref()?.secret.age(inject.clock.now())
    }

    /// Records a 401 to this version of the credential, so that it is read again before its next
    /// use. `Upstream::send` calls this.
    pub fn upstream_said_unauthorized(&self, version: CredentialVersion) {
        if let Some(Inject { credential: Some(credential), clock, .. }) = &self.0 {
            credential.secret.refused(version.0, *clock);
        }
    }
}

/// Removes the client's credentials from a request's headers.
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

/// Returns true for headers identifying the caller.
fn is_identity(name: &HeaderName, impersonation: bool) -> bool {
    let name = name.as_str();
    name.starts_with("x-remote-")
        || (!impersonation && name.starts_with("impersonate-"))
        || CLIENT_CERTIFICATES.split(' ').any(|header| name == header)
}

/// Removes the bearer token from the WebSocket subprotocols; the others keep their lines.
fn strip_websocket_bearer(headers: &mut HeaderMap) {
    let is_bearer = |one: &[u8]| one.get(..BEARER.len()).is_some_and(|start| start.eq_ignore_ascii_case(BEARER));
    let without_bearer = |line: &HeaderValue| {
        let protocols = || line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        if !protocols().any(is_bearer) {
            return Some(line.clone());
        }
        let kept: Vec<&[u8]> = protocols().filter(|one| !one.is_empty() && !is_bearer(one)).collect();
        HeaderValue::from_bytes(&kept.join(b", ".as_slice())).ok().filter(|line| !line.is_empty())
    };
    let kept: Vec<HeaderValue> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(without_bearer).collect();
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    for line in kept {
        headers.append(SEC_WEBSOCKET_PROTOCOL, line);
    }
}

/// Headers of other proxies, to pass on a client's certificate.
const CLIENT_CERTIFICATES: &str =
    "x-forwarded-client-cert x-client-cert x-ssl-client-cert ssl-client-cert client-cert client-cert-chain";
/// The prefix of a WebSocket subprotocol carrying a token for kube-apiserver.
const BEARER: &[u8] = b"base64url.bearer.authorization.k8s.io.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Secret;

    fn inject(impersonation: bool) -> Inject {
        let secret = Secret::fixed("gates-own", "test").expect("a token");
        let credential = Some(Credential { header: AUTHORIZATION, prefix: "Bearer ".into(), secret });
        Inject { credential, impersonation, acting_as: Vec::new(), required_token: None, clock: Clock::start() }
    }

    fn injecting(impersonation: bool) -> Injector {
        Injector::inject(inject(impersonation))
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
        assert_eq!(injector.check(&headers), Err(CredentialRefusal::Impersonation));
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
    fn who_acts_as_somebody_already_takes_nobody_along() {
        let headers = vec![
            (HeaderName::from_static("impersonate-user"), HeaderValue::from_static("robot")),
            (HeaderName::from_static("impersonate-group"), HeaderValue::from_static("a")),
            (HeaderName::from_static("impersonate-group"), HeaderValue::from_static("b")),
        ];
        for impersonation in [false, true] {
            let injector = Injector::inject(Inject { acting_as: headers.clone(), ..inject(impersonation) });
            assert!(injector.check(&clients()).is_err());
            let mut sent = clients();
            injector.authorize(&mut sent);
            assert_eq!(sent.get_all("impersonate-user").iter().collect::<Vec<_>>(), ["robot"]);
            assert_eq!(sent.get_all("impersonate-group").iter().collect::<Vec<_>>(), ["a", "b"]);
            assert!(!sent.contains_key("impersonate-extra-a"));
        }
    }

    #[test]
    fn the_pods_token_is_asked_for_and_never_passed_on() {
        let token = PodToken::random().expect("randomness");
        let injector = Injector::inject(Inject { required_token: Some(token.clone()), ..inject(true) });
        assert_eq!(injector.check(&clients()), Err(CredentialRefusal::Unauthenticated));
        let mut headers = HeaderMap::new();
        let shown = HeaderValue::try_from(format!("Bearer {}", token.reveal())).expect("a value");
        headers.insert(AUTHORIZATION, shown);
        assert_eq!(injector.check(&headers), Ok(()));
        injector.authorize(&mut headers);
        assert_eq!(headers[AUTHORIZATION], "Bearer gates-own");
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
