//! The settings of one gate, in groups.

use std::sync::Arc;
use std::time::Duration;

use super::{
    Clients, CredentialFile, Credentials, Figures, Host, Hosts, Listen, ListenerTls, RetryAfter, Revalidation, Source,
    UpstreamTls,
};
use crate::api::{Failures, PausePolicy};
use crate::classify::{ApiKind, Rules};
use crate::limit::Policy;

/// The settings of one gate.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The name of the gate.
    pub name: Arc<str>,
    /// The kind of API; same as `rules.kind`.
    pub kind: ApiKind,
    /// Its listeners; none if it has hosts, and at least one otherwise.
    pub listen: Vec<Listen>,
    /// How clients reach the gate.
    pub access: ClientAccess,
    /// The source of the upstream; for a gate with hosts a name without an address.
    pub upstream: Source,
    /// The gate's hosts behind the egress listener, in place of an upstream.
    pub hosts: Option<Hosts>,
    /// How calls are sent to the upstream.
    pub forwarding: ForwardRules,
    /// The credentials for the upstream.
    pub identity: GateIdentity,
    /// The rules giving a call its class, flow and key.
    pub rules: Arc<Rules>,
    /// The limits on calls.
    pub policy: Policy,
    /// The limits to compare with them. Its classes are the same.
    pub candidate: Option<Arc<Policy>>,
    /// The provider's published limits, where the preset is made of them.
    pub figures: Option<Figures>,
    /// What the upstream's answers mean.
    pub answers: AnswerRules,
    /// How the gate's own refusals look.
    pub refusals: RefusalRules,
    /// True if limits are only measured (shadow mode): every call is decided on and counted, and
    /// let through.
    pub shadow: bool,
}

/// How clients reach a gate.
#[derive(Clone, Debug)]
pub struct ClientAccess {
    /// Host names to accept besides localhost and the listener's own.
    pub allowed_hosts: Vec<String>,
    /// TLS on the listener.
    pub tls: Option<ListenerTls>,
    /// How clients must authenticate; `None` if they need not.
    pub clients: Option<Clients>,
}

/// How a gate's calls are sent to its upstream.
#[derive(Clone, Debug)]
pub struct ForwardRules {
    /// What to send as Host to the upstream.
    pub host: Host,
    /// True if links to the upstream in response headers are changed to lead to the gate.
    pub rewrite_links: bool,
    /// The timeout of a connection attempt to the upstream.
    pub connect_timeout: Duration,
    /// The longest time to the response head; `None` for no limit.
    pub response_timeout: Option<Duration>,
    /// TLS settings for the upstream; they override those from its source.
    pub tls: UpstreamTls,
}

/// The credentials of a gate's calls at its upstream.
#[derive(Clone, Debug)]
pub struct GateIdentity {
    /// Whether the credentials sent to the upstream are the client's or the gate's.
    pub credentials: Credentials,
    /// The header and secret for the gate's own authentication at an external API.
    pub file: Option<CredentialFile>,
    /// True if clients may send `Impersonate-*` headers when the gate uses its own credentials.
    pub impersonation: bool,
    /// True if the gate itself writes Events about hot objects.
    pub events: bool,
}

/// What an upstream's answers mean to a gate.
#[derive(Clone, Debug)]
pub struct AnswerRules {
    /// Which answers count as failures, by class id.
    pub failures: Vec<Failures>,
    /// Which rate-limit signals are obeyed, and how long they pause calls.
    pub throttling: PausePolicy,
    /// The cache of answers to be revalidated.
    pub revalidation: Revalidation,
}

/// How a gate's refusals look.
#[derive(Clone, Debug)]
pub struct RefusalRules {
    /// Which refusals have Retry-After.
    pub retry_after: RetryAfter,
    /// The HTTP status of refusals that do not concern a failing key: 429, or 403 to look like
    /// GitHub's secondary limit.
    pub status: u16,
}

// === impl Gate ===

impl Gate {
    /// Returns true if clients must send the token from the gate's folder. The gate uses its own
    /// credentials for them, so on a port that other machines can reach they need it, unless they
    /// authenticate otherwise.
    pub fn asks_for_a_token(&self) -> bool {
        let is_guarded = self.access.tls.as_ref().is_some_and(|tls| tls.client_ca.is_none() && tls.write_to.is_some());
        is_guarded && !self.is_local() && self.access.clients.is_none()
    }

    /// Returns true if no other machine can connect.
    pub fn is_local(&self) -> bool {
        self.listen.iter().all(Listen::is_local)
    }

    /// Returns true if calls go upstream with the gate's own credentials. For `auto`, that depends
    /// on where the gate listens and what credentials it has.
    pub fn injects(&self) -> bool {
        match self.identity.credentials {
            Credentials::Inject => true,
            Credentials::PassThrough => false,
            Credentials::Auto => {
                let has_something = self.identity.file.is_some() || self.upstream.has_identity();
                self.access.tls.is_none() && self.is_local() && has_something
            }
        }
    }
}
