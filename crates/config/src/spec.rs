//! The settings of the process and its gates. `config` fills them; everything that runs, shows or
//! simulates a gate reads them.
//!
//! All values have been checked and are possible.

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

/// The settings of the whole process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The admin port, with metrics and status.
    pub admin: Admin,
    /// Logging.
    pub log: Log,
    /// The longest time to wait for calls under way after SIGTERM.
    pub drain: Duration,
    /// The number of threads for calls.
    pub threads: NonZeroU32,
    /// The file keeping failing keys, pauses and bucket levels for the next start. By default it
    /// is `state` in the first gate's `tls.write_to`, or else in `/run/tidegate`, if either exists.
    pub state: OwnFile,
    /// The OpenTelemetry collector to send traces to.
    pub otlp: Option<Otlp>,
    /// The stores (Valkey or Redis) of buckets shared with other gates.
    pub stores: Vec<Store>,
    /// The egress listener, if there is one.
    pub egress: Option<Egress>,
    /// The gates by name, in order.
    pub gates: BTreeMap<Arc<str>, Gate>,
}

/// The admin port.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The address of the admin port; `None` for no admin port.
    pub listen: Option<SocketAddr>,
    /// The readers allowed to see the names of objects on the status page.
    pub show_names: ShowNames,
    /// The Unix socket for operators' commands. By default it is `tidegate.sock` in the first
    /// gate's `tls.write_to`, or else in a folder that only this user can enter, if there is one.
    pub socket: OwnFile,
}

/// Whether and where the process keeps a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnFile {
    /// The file is in a suitable folder, if there is one.
    Auto,
    /// There is no file.
    Off,
    /// The file is at this path.
    At(PathBuf),
}

words! {
    /// The readers allowed to see the names of objects on the status page.
    pub enum ShowNames {
        /// Only readers over loopback.
        Auto = "auto",
        /// Everybody.
        Always = "always",
        /// Nobody.
        Never = "never",
    }
}

/// The settings of the log.
#[derive(Clone, Debug)]
pub struct Log {
    /// True for JSON lines instead of text.
    pub json: bool,
    /// `error` to `trace`, or a tracing filter.
    pub level: String,
    /// The file for one JSON line per call.
    pub calls: Option<PathBuf>,
}

/// The provider's published limits that a gate's preset makes its buckets from.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// The name of the preset, or the path of its file.
    pub preset: String,
    /// The gate's share of the provider's limits, at most 1.
    pub share: f64,
    /// The published limits: those for the gate's own bucket, then those for its classes in their
    /// order.
    pub figures: Vec<Figure>,
}

/// A published limit of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The class under the limit; `None` for the whole gate.
    pub class: Option<String>,
    /// The limit in words: `20/s, burst 100 for each account, region and action`.
    pub says: String,
    /// The document stating the limit, and the day it was read.
    pub source: String,
}

/// Where a gate listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Where the upstream's address and credentials are read from.
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
        /// The gate's own on a plain loopback listener, if it has any; otherwise the client's.
        Auto = "auto",
        /// The client's own credentials.
        PassThrough = "pass_through",
        /// The gate's own credentials.
        Inject = "inject",
    }

    /// Which refusals have the header Retry-After. Their bodies name the time in any case: no
    /// client sleeps on that by itself.
    pub enum RetryAfter {
        /// The header is set as the table of reasons in docs/internals/design.md says.
        Auto = "auto",
        /// All refusals have the header.
        Always = "always",
        /// No refusal has the header.
        Never = "never",
    }
}

/// What to send as Host to the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// The upstream's own host and port.
    Rewrite,
    /// The Host the client sent.
    Preserve,
    /// Always this host.
    Literal(HeaderValue),
}

/// TLS on the listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// Where the certificate comes from.
    pub mode: TlsMode,
    /// More names in a self-signed certificate.
    pub names: Vec<String>,
    /// A folder for the controller to mount: ca.crt, kubeconfig, token, namespace.
    pub write_to: Option<PathBuf>,
    /// The CA that must have signed clients' certificates; clients must present one.
    pub client_ca: Option<PathBuf>,
}

/// Where the listener's certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// A pod-local CA: made at the start, or left by an earlier gate.
    SelfSigned,
    /// PEM files the configuration names.
    Files {
        /// The file of the certificate chain.
        cert: PathBuf,
        /// The file of the private key.
        key: PathBuf,
    },
}

/// TLS settings for the upstream; they override those from its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// CAs to trust instead of the default ones.
    pub ca: Option<PathBuf>,
    /// The file of the client certificate.
    pub cert: Option<PathBuf>,
    /// The key of the client certificate.
    pub key: Option<PathBuf>,
    /// Name to verify and to send as SNI.
    pub server_name: Option<String>,
    /// True if the upstream's certificate is not verified.
    pub insecure: bool,
}

/// The header and secret for the gate's own authentication at an external API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFile {
    /// The name of the header.
    pub header: HeaderName,
    /// The text before the secret.
    pub prefix: String,
    /// The file with the secret.
    pub file: PathBuf,
}

// === impl Figures ===

impl Figures {
    /// Returns the published limit behind the bucket of a class, or of the gate.
    pub fn of(&self, class: Option<&str>) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.class.as_deref() == class)
    }
}

// === impl Listen ===

impl Listen {
    /// Returns true if no other machine can connect.
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
    /// Returns true if this source has credentials the gate could use for its clients.
    pub fn has_identity(&self) -> bool {
        !matches!(self, Self::Url(_))
    }
}

// === impl RetryAfter ===

impl RetryAfter {
    /// Returns true if a refusal for `reason` has the header. client-go sleeps on the header inside
    /// the worker and retries itself; without it the error goes to the reconcile loop, which is
    /// where a failing object belongs, and which finds the time in the body
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
