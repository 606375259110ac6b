//! The settings of the process and its gates. `config` fills them; everything that runs, shows or
//! simulates a gate reads them.
//!
//! Everything here has been checked and is possible.

mod clients;
mod egress;
mod otlp;
mod port;
mod revalidation;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};

pub use self::clients::{Clients, Tokens};
pub use self::egress::{Egress, EgressCa, GivenCa, HostPattern, HostSet, Hosts, PlainHttp, Unlisted};
pub use self::otlp::Otlp;
pub use self::port::has_valid_port;
pub use self::revalidation::Revalidation;
pub use self::store::{Endpoint, SentinelLogin, Store, StoreAddress};
use crate::api::{Failures, PausePolicy};
use crate::classify::{ApiKind, Rules};
use crate::limit::{Policy, Reason};

/// The whole process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The admin port.
    pub admin: Admin,
    /// Logging.
    pub log: Log,
    /// The longest time that gates serve on after SIGTERM.
    pub drain: Duration,
    /// The threads that carry the calls.
    pub threads: NonZeroU32,
    /// The file that keeps failing keys, pauses and levels over a restart. By itself it is `state`
    /// in the first gate's `tls.write_to`, else in `/run/tidegate`, if either is there.
    pub state: OwnFile,
    /// The collector that gets spans.
    pub otlp: Option<Otlp>,
    /// The stores of shared buckets.
    pub stores: Vec<Store>,
    /// The egress listener, if there is one.
    pub egress: Option<Egress>,
    /// The gates by name, in order.
    pub gates: BTreeMap<Arc<str>, Gate>,
}

/// The admin port.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Its address; `None` for no admin port.
    pub listen: Option<SocketAddr>,
    /// The readers who see the names of objects.
    pub show_names: ShowNames,
    /// The control socket. By itself it is `tidegate.sock` in the first gate's `tls.write_to`, else
    /// in a folder that only this user can enter, if there is one.
    pub socket: OwnFile,
}

/// A file that the process makes for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnFile {
    /// In a folder that suits it, if there is one.
    Auto,
    /// There is none.
    Off,
    /// A path.
    At(PathBuf),
}

words! {
    /// The readers who see the names of objects on the status page.
    pub enum ShowNames {
        /// Those who ask over loopback.
        Auto = "auto",
        /// All.
        Always = "always",
        /// None.
        Never = "never",
    }
}

/// Logging.
#[derive(Clone, Debug)]
pub struct Log {
    /// JSON instead of text.
    pub json: bool,
    /// `error` to `trace`, or a tracing filter.
    pub level: String,
    /// The file that gets one JSON line per call.
    pub calls: Option<PathBuf>,
}

/// One gate.
#[derive(Clone, Debug)]
pub struct Gate {
    /// Its name.
    pub name: Arc<str>,
    /// The kind of API; same as `rules.kind`.
    pub kind: ApiKind,
    /// True if the gate writes Events about hot objects.
    pub events: bool,
    /// Its listeners; none if it has hosts, and at least one otherwise.
    pub listen: Vec<Listen>,
    /// The upstream that calls go to. Where the gate has hosts, a name that does not exist.
    pub upstream: Source,
    /// The hosts for which it is reached through the egress listener, in place of an upstream.
    pub hosts: Option<Hosts>,
    /// The credentials that the upstream sees.
    pub credentials: Credentials,
    /// True if `Impersonate-*` headers pass with inject.
    pub impersonation: bool,
    /// The refusals that carry Retry-After.
    pub retry_after: RetryAfter,
    /// The status of refusals that concern no key: 429, or 403 in the form of GitHub's secondary
    /// limit.
    pub refusal_status: u16,
    /// Host names to accept besides localhost and the listener's own.
    pub allowed_hosts: Vec<String>,
    /// The Host sent upstream.
    pub host: Host,
    /// True if links of the upstream's in response headers point back at the gate.
    pub rewrite_links: bool,
    /// Classes, flows and keys.
    pub rules: Arc<Rules>,
    /// The answers that count as failures, by class id.
    pub failures: Vec<Failures>,
    /// The requests of the upstream that are honoured.
    pub throttling: PausePolicy,
    /// The limits.
    pub policy: Policy,
    /// The provider's published limits, where the preset is made of them.
    pub figures: Option<Figures>,
    /// The answers that are kept, and asked about again.
    pub revalidation: Revalidation,
    /// True if everything is decided and counted, and everything is let through.
    pub shadow: bool,
    /// The longest time to an upstream connection.
    pub connect_timeout: Duration,
    /// The longest time to the response head; `None` for no limit.
    pub response_timeout: Option<Duration>,
    /// TLS on the listener.
    pub tls: Option<ListenerTls>,
    /// The proof of identity asked of clients; `None` where the gate does not ask.
    pub clients: Option<Clients>,
    /// TLS to the upstream, beyond what the upstream's own source says.
    pub upstream_tls: UpstreamTls,
    /// The header that inject adds on an external API.
    pub credential: Option<CredentialFile>,
}

/// The figures of a provider that a gate's preset takes a share of.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// The preset.
    pub preset: &'static str,
    /// The share that is taken, of 1 at most.
    pub share: f64,
    /// The figures: the gate's own, then those of its classes in their order.
    pub figures: Vec<Figure>,
}

/// A limit that a provider publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The class whose bucket is made of it; `None` for the gate's.
    pub class: Option<&'static str>,
    /// The limit: `20/s, burst 100 for each account, region and action`.
    pub says: String,
    /// The document that has it, and the day on which it was read.
    pub source: String,
}

/// A listener of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// The source to read the upstream from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The API server of the cluster this pod is in.
    InCluster,
    /// A kubeconfig's context; `None` for the current one.
    Kubeconfig(Option<String>),
    /// `http(s)://host[:port][/base]`.
    Url(Uri),
}

words! {
    /// The credentials that the upstream sees, as configured.
    pub enum Credentials {
        /// Inject on a plain loopback listener where there is something to inject, else pass
        /// through.
        Auto = "auto",
        /// The client's own.
        PassThrough = "pass_through",
        /// The gate's.
        Inject = "inject",
    }

    /// The refusals that carry the header Retry-After. Their bodies name the time in any case:
    /// nothing sleeps on it unasked.
    pub enum RetryAfter {
        /// Those of the table of reasons in docs/internals/design.md.
        Auto = "auto",
        /// All.
        Always = "always",
        /// None.
        Never = "never",
    }
}

/// The Host sent upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// The upstream's own authority.
    Rewrite,
    /// The client's.
    Preserve,
    /// This one.
    Literal(HeaderValue),
}

/// TLS on the listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// The source of the certificate.
    pub mode: TlsMode,
    /// More names in a self-signed certificate.
    pub names: Vec<String>,
    /// A folder for the controller to mount: ca.crt, kubeconfig, token, namespace.
    pub write_to: Option<PathBuf>,
    /// Clients must show a certificate of this CA.
    pub client_ca: Option<PathBuf>,
}

/// The source of the listener's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// A pod-local CA: made at start, or left by the gate that was here before.
    SelfSigned,
    /// PEM files.
    Files {
        /// Certificate chain.
        cert: PathBuf,
        /// Private key.
        key: PathBuf,
    },
}

/// TLS to the upstream, which wins over what its source says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// CA bundle instead of the default roots.
    pub ca: Option<PathBuf>,
    /// Client certificate.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// Name to verify and to send as SNI.
    pub server_name: Option<String>,
    /// True if nothing is verified.
    pub insecure: bool,
}

/// A header that inject adds on an external API, with a secret from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFile {
    /// Its name.
    pub header: HeaderName,
    /// The text before the secret.
    pub prefix: String,
    /// The file with the secret.
    pub file: PathBuf,
}

// === impl Gate ===

impl Gate {
    /// True if clients must show the token that is in the folder, where the gate injects: off
    /// loopback, unless they show certificates, or who they are.
    pub fn asks_for_a_token(&self) -> bool {
        let is_guarded = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_none() && tls.write_to.is_some());
        is_guarded && !self.is_local() && self.clients.is_none()
    }

    /// True if no other machine can connect.
    pub fn is_local(&self) -> bool {
        self.listen.iter().all(|listen| match listen {
            Listen::Tcp(address) => address.ip().is_loopback(),
            Listen::Unix(_) => true,
        })
    }

    /// True if the upstream sees the gate's own credentials: `auto` is decided by where the gate
    /// listens and what it has.
    pub fn injects(&self) -> bool {
        match self.credentials {
            Credentials::Inject => true,
            Credentials::PassThrough => false,
            Credentials::Auto => {
                let has_something = self.credential.is_some() || self.upstream.has_identity();
                self.tls.is_none() && self.is_local() && has_something
            }
        }
    }
}

// === impl Figures ===

impl Figures {
    /// Returns the figure behind the bucket of a class, or of the gate.
    pub fn of(&self, class: Option<&str>) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.class == class)
    }
}

// === impl Listen ===

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

// === impl Source ===

impl Source {
    /// True if it comes with an identity that the gate can lend.
    pub fn has_identity(&self) -> bool {
        !matches!(self, Self::Url(_))
    }
}

// === impl RetryAfter ===

impl RetryAfter {
    /// True if a refusal for `reason` carries the header. client-go sleeps on the header inside the
    /// worker and retries itself; without it the error goes to the reconcile loop, which is where a
    /// failing object belongs, and which finds the time in the body
    /// (`apierrors.SuggestsClientDelay`).
    #[must_use]
    pub fn is_on(self, reason: Reason, kind: ApiKind) -> bool {
        match (self, reason) {
            (Self::Always, _) => true,
            (Self::Never, _) | (Self::Auto, Reason::Deadline) => false,
            (Self::Auto, reason) => !reason.concerns_key() || kind == ApiKind::Http,
        }
    }
}
