//! The settings of one gate, in groups.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Clients, CredentialFile, Credentials, Figures, Host, Hosts, Listen, ListenerTls, RetryAfter, Source, UpstreamTls,
};
use crate::api::{Failures, PausePolicy};
use crate::classify::{ApiKind, Rules};
use crate::limit::Policy;

/// The settings of one gate.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The name of the gate.
    pub name: Arc<str>,
    /// The kind of API; the same as `rules.kind`.
    pub kind: ApiKind,
    /// The listeners; none for a gate with hosts, otherwise at least one.
    pub listen: Vec<Listen>,
    /// How clients connect to the gate.
    pub access: ClientAccess,
    /// The source of the upstream's address. A gate with hosts has a placeholder here.
    pub upstream: Source,
    /// The hosts served by the gate behind the egress listener, instead of an upstream.
    pub hosts: Option<Hosts>,
    /// How calls are sent to the upstream.
    pub forwarding: ForwardRules,
    /// The credentials for the upstream.
    pub identity: GateIdentity,
    /// The rules for a call's class, flow and key.
    pub rules: Arc<Rules>,
    /// The limits on calls.
    pub policy: Policy,
    /// Other limits, simulated on the same calls to compare them with `policy`. They have the same
    /// classes.
    pub candidate: Option<Arc<Policy>>,
    /// The provider's published limits, if the preset is based on such limits.
    pub figures: Option<Figures>,
    /// What the upstream's responses mean.
    pub answers: AnswerRules,
    /// The form of the gate's own refusals.
    pub refusals: RefusalRules,
    /// True in shadow mode: calls are counted as if the limits were in force, but none is held or
    /// refused.
    pub shadow: bool,
}

/// How clients connect to a gate.
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
    /// The Host header of requests to the upstream.
    pub host: Host,
    /// True if links in response headers are rewritten from the upstream to the gate.
    pub rewrite_links: bool,
    /// The timeout of a connection attempt to the upstream.
    pub connect_timeout: Duration,
    /// The timeout from the request to the response head; `None` for no timeout.
    pub response_timeout: Option<Duration>,
    /// TLS settings for the upstream; they override those of its kubeconfig or cluster.
    pub tls: UpstreamTls,
}

/// The credentials of a gate's calls at its upstream.
#[derive(Clone, Debug)]
pub struct GateIdentity {
    /// The choice between the client's and the gate's credentials for the upstream.
    pub credentials: Credentials,
    /// A header with a secret, for the gate's own authentication at an external API.
    pub file: Option<CredentialFile>,
    /// True if clients may send `Impersonate-*` headers when the gate uses its own credentials.
    pub impersonation: bool,
    /// True if the gate writes Kubernetes Events about objects called too often.
    pub events: bool,
}

/// What an upstream's responses mean to a gate.
#[derive(Clone, Debug)]
pub struct AnswerRules {
    /// The responses counted as failures, for each class id.
    pub failures: Vec<Failures>,
    /// Which rate-limit signals are obeyed, and for how long they pause calls.
    pub throttling: PausePolicy,
    /// The cache of responses, to be revalidated at the upstream.
    pub revalidation: Revalidation,
}

/// The cache of a gate's responses. The upstream is asked only whether a response has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revalidation {
    /// For each class id, true if responses are cached.
    pub classes: Vec<bool>,
    /// The size of the cache, in bytes.
    pub max_bytes: usize,
}

/// The form of a gate's own refusals.
#[derive(Clone, Debug)]
pub struct RefusalRules {
    /// Which refusals have the header Retry-After.
    pub retry_after: RetryAfter,
    /// The HTTP status of refusals for reasons other than a failing key: 429, or 403 as in GitHub's
    /// secondary limit.
    pub status: u16,
    /// True if the upstream's responses have the fields RateLimit and RateLimit-Policy, too.
    pub ratelimit_on_answers: bool,
}

// === impl Gate ===

impl Gate {
    /// Returns true if clients must send the token from the gate's folder.
    ///
    /// This is so if the gate acts for them with its own credentials on a port that other machines
    /// can reach, unless clients authenticate otherwise.
    pub fn asks_for_a_token(&self) -> bool {
        let is_guarded = self.access.tls.as_ref().is_some_and(|tls| tls.client_ca.is_none() && tls.write_to.is_some());
        is_guarded && !self.is_local() && self.access.clients.is_none()
    }

    /// Returns the folder of files for the controller, if the gate writes one.
    pub fn folder(&self) -> Option<&Path> {
        self.access.tls.as_ref()?.write_to.as_deref()
    }

    /// Returns true if the gate is for many clusters.
    pub fn has_clusters(&self) -> bool {
        matches!(self.upstream, Source::Clusters(_))
    }

    /// Returns true if only clients on this machine can connect.
    pub fn is_local(&self) -> bool {
        self.listen.iter().all(Listen::is_local)
    }

    /// Returns true if calls are sent with the gate's own credentials. For `auto`, this depends on
    /// the gate's listeners, and on the credentials it has.
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

// === impl Revalidation ===

impl Revalidation {
    /// Returns the size of the cache in bytes; zero if no class uses it.
    pub fn bytes_in_use(&self) -> usize {
        if self.classes.contains(&true) { self.max_bytes } else { 0 }
    }
}
