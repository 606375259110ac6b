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

/// One gate.
#[derive(Clone, Debug)]
pub struct Gate {
    /// Its name.
    pub name: Arc<str>,
    /// The kind of API; same as `rules.kind`.
    pub kind: ApiKind,
    /// Its listeners; none if it has hosts, and at least one otherwise.
    pub listen: Vec<Listen>,
    /// Its clients' way in.
    pub access: ClientAccess,
    /// Its upstream; for a gate with hosts a name that does not exist.
    pub upstream: Source,
    /// Its hosts behind the egress listener, in place of an upstream.
    pub hosts: Option<Hosts>,
    /// Its calls' way to the upstream.
    pub forwarding: ForwardRules,
    /// The credentials for the upstream.
    pub identity: GateIdentity,
    /// Classes, flows and keys.
    pub rules: Arc<Rules>,
    /// The limits.
    pub policy: Policy,
    /// The limits to compare with them. Its classes are the same.
    pub candidate: Option<Arc<Policy>>,
    /// The provider's published limits, where the preset is made of them.
    pub figures: Option<Figures>,
    /// The meaning of the upstream's answers.
    pub answers: AnswerRules,
    /// The form of its own refusals.
    pub refusals: RefusalRules,
    /// True if everything is decided and counted, and everything is let through.
    pub shadow: bool,
}

/// The clients' way into a gate.
#[derive(Clone, Debug)]
pub struct ClientAccess {
    /// Host names to accept besides localhost and the listener's own.
    pub allowed_hosts: Vec<String>,
    /// TLS on the listener.
    pub tls: Option<ListenerTls>,
    /// The proof of identity asked of clients; `None` where the gate does not ask.
    pub clients: Option<Clients>,
}

/// The way of a gate's calls to its upstream.
#[derive(Clone, Debug)]
pub struct ForwardRules {
    /// The Host sent upstream.
    pub host: Host,
    /// True if links of the upstream's in response headers point back at the gate.
    pub rewrite_links: bool,
    /// The longest time to an upstream connection.
    pub connect_timeout: Duration,
    /// The longest time to the response head; `None` for no limit.
    pub response_timeout: Option<Duration>,
    /// TLS to the upstream, beyond what the upstream's own source says.
    pub tls: UpstreamTls,
}

/// The credentials of a gate's calls to its upstream.
#[derive(Clone, Debug)]
pub struct GateIdentity {
    /// The client's or the gate's.
    pub credentials: Credentials,
    /// The header of inject on an external API.
    pub file: Option<CredentialFile>,
    /// True if `Impersonate-*` headers pass with inject.
    pub impersonation: bool,
    /// True if the gate itself writes Events about hot objects.
    pub events: bool,
}

/// The meaning of an upstream's answers to a gate.
#[derive(Clone, Debug)]
pub struct AnswerRules {
    /// The failures among the answers, by class id.
    pub failures: Vec<Failures>,
    /// The signals of the upstream to honour.
    pub throttling: PausePolicy,
    /// The cache of answers to revalidate.
    pub revalidation: Revalidation,
}

/// The form of a gate's refusals.
#[derive(Clone, Debug)]
pub struct RefusalRules {
    /// The refusals with Retry-After.
    pub retry_after: RetryAfter,
    /// The status of refusals for no key's sake: 429, or 403 in the form of GitHub's secondary
    /// limit.
    pub status: u16,
}

// === impl Gate ===

impl Gate {
    /// True if clients must show the folder's token, where the gate injects: off
    /// loopback, unless they show certificates, or who they are.
    pub fn asks_for_a_token(&self) -> bool {
        let is_guarded = self.access.tls.as_ref().is_some_and(|tls| tls.client_ca.is_none() && tls.write_to.is_some());
        is_guarded && !self.is_local() && self.access.clients.is_none()
    }

    /// True if no other machine can connect.
    pub fn is_local(&self) -> bool {
        self.listen.iter().all(Listen::is_local)
    }

    /// True if the upstream sees the gate's own credentials: `auto` is decided by where the gate
    /// listens and what it has.
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
