//! The settings of the process and its gates. `config` fills them; everything that runs, shows or
//! simulates a gate reads them.
//!
//! Everything here has been checked and is possible.

mod clients;
mod egress;
mod gate;
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
pub use self::egress::{Egress, EgressCa, GivenCa, HostFate, HostPattern, HostSet, Hosts, PlainHttp};
pub use self::gate::{AnswerRules, ClientAccess, ForwardRules, Gate, GateIdentity, RefusalRules};
pub use self::otlp::Otlp;
pub use self::port::has_valid_port;
pub use self::revalidation::Revalidation;
pub use self::store::{Endpoint, Store, StoreAddress, StoreLogin, is_loopback};
use crate::classify::ApiKind;
use crate::limit::Reason;

/// The whole process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The admin port.
    pub admin: Admin,
    /// Logging.
    pub log: Log,
    /// The longest time for ending calls after SIGTERM.
    pub drain: Duration,
    /// The number of threads for calls.
    pub threads: NonZeroU32,
    /// The file of failing keys, pauses and levels for the next start. By itself it is `state`
    /// in the first gate's `tls.write_to`, else in `/run/tidegate`, if either is there.
    pub state: OwnFile,
    /// The collector of spans.
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
    /// Who sees the names of objects.
    pub show_names: ShowNames,
    /// The control socket. By itself it is `tidegate.sock` in the first gate's `tls.write_to`, else
    /// in a folder that only this user can enter, if there is one.
    pub socket: OwnFile,
}

/// A file of the process's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnFile {
    /// In a suitable folder, if there is one.
    Auto,
    /// There is none.
    Off,
    /// A path.
    At(PathBuf),
}

words! {
    /// The readers of objects' names on the status page.
    pub enum ShowNames {
        /// Readers over loopback.
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
    /// The file for one JSON line per call.
    pub calls: Option<PathBuf>,
}

/// The published figures behind a gate's preset, and the share of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// The preset.
    pub preset: &'static str,
    /// The share, of 1 at most.
    pub share: f64,
    /// The figures: the gate's own, then those of its classes in their order.
    pub figures: Vec<Figure>,
}

/// A published limit of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The class with this bucket; `None` for the gate's.
    pub class: Option<String>,
    /// The limit: `20/s, burst 100 for each account, region and action`.
    pub says: String,
    /// Its document, and the day of reading it.
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
    /// The credentials for the upstream, as configured.
    pub enum Credentials {
        /// Inject on a plain loopback listener where there is something to inject, else pass
        /// through.
        Auto = "auto",
        /// The client's own.
        PassThrough = "pass_through",
        /// The gate's.
        Inject = "inject",
    }

    /// The refusals with the header Retry-After. Their bodies name the time in any case:
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
    /// A pod-local CA: made at start, or left by an earlier gate.
    SelfSigned,
    /// PEM files.
    Files {
        /// Certificate chain.
        cert: PathBuf,
        /// Private key.
        key: PathBuf,
    },
}

/// TLS to the upstream, in place of what its source says.
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

/// A header of inject on an external API, with a secret from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFile {
    /// Its name.
    pub header: HeaderName,
    /// The text before the secret.
    pub prefix: String,
    /// The file with the secret.
    pub file: PathBuf,
}

// === impl Figures ===

impl Figures {
    /// Returns the figure behind the bucket of a class, or of the gate.
    pub fn of(&self, class: Option<&str>) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.class.as_deref() == class)
    }
}

// === impl Listen ===

impl Listen {
    /// True if no other machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

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
    /// True if it comes with an identity to lend.
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
