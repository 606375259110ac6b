//! The settings of the process and its gates, as types.
//!
//! `config` creates them; the code that runs, shows or simulates a gate reads them. All values have
//! been checked.

mod clients;
mod clusters;
mod egress;
mod gate;
mod port;
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
pub use self::clusters::{ClusterLimits, ClusterPath};
pub use self::egress::{Egress, EgressCa, GivenCa, HostFate, HostPattern, HostSet, Hosts, PlainHttp};
pub use self::gate::{AnswerRules, ClientAccess, ForwardRules, Gate, GateIdentity, RefusalRules, Revalidation};
pub use self::port::has_valid_port;
pub use self::store::{Endpoint, Store, StoreAddress, StoreLogin, StorePassword, is_loopback};
use crate::classify::ApiKind;
use crate::limit::Reason;

/// The settings of the whole process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The admin port, with metrics and status.
    pub admin: Admin,
    /// Logging.
    pub log: Log,
    /// The longest time to wait for running calls after SIGTERM.
    pub drain: Duration,
    /// The number of threads for calls.
    pub threads: NonZeroU32,
    /// The file to preserve failing keys, pauses and bucket levels across a restart. By default it
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
    /// The limits of clusters by pattern, in the order of matching.
    pub clusters: Vec<ClusterLimits>,
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

/// The location of one of the process's own files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnFile {
    /// A suitable folder; if there is none, the process does without the file.
    Auto,
    /// Nowhere: the process does without the file.
    Off,
    /// This path.
    At(PathBuf),
}

words! {
    /// The readers allowed to see the names of objects on the status page.
    pub enum ShowNames {
        /// Only clients on loopback.
        Auto = "auto",
        /// Every client of the admin port.
        Always = "always",
        /// No client.
        Never = "never",
    }
}

/// The settings of the log.
#[derive(Clone, Debug)]
pub struct Log {
    /// True for JSON lines instead of text.
    pub json: bool,
    /// The least severe level to log, from `error` to `trace`, or a tracing filter.
    pub level: String,
    /// The file of the call log, with one JSON line per call.
    pub calls: Option<PathBuf>,
}

/// The OpenTelemetry collector to send traces to.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The collector's URL, without `/v1/traces`.
    pub endpoint: Uri,
    /// The CA of the collector's certificate; `None` for the system's CAs.
    pub ca: Option<PathBuf>,
    /// The fraction of calls to trace, from 0 to 1. It does not apply to calls already traced by
    /// their client.
    pub sample: f64,
}

/// The provider's published limits behind a gate's preset.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// The name of the preset, or the path of its file.
    pub preset: String,
    /// The gate's share of the provider's limits, at most 1.
    pub share: f64,
    /// The published limits: first the gate's own, then those of its classes, in order.
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

/// The source of the upstream's address and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The API server of the cluster this pod is in.
    InCluster,
    /// A kubeconfig's context; `None` for the current one.
    Kubeconfig(Option<String>),
    /// `http(s)://host[:port][/base]`.
    Url(Uri),
    /// Many clusters: the contexts of this kubeconfig, or those described in this folder.
    Clusters(PathBuf),
}

words! {
    /// The choice between the client's and the gate's credentials for the upstream, as configured.
    pub enum Credentials {
        /// The gate's own on a plain loopback listener, if it has some; otherwise the client's.
        Auto = "auto",
        /// The client's own credentials.
        PassThrough = "pass_through",
        /// The gate's own credentials.
        Inject = "inject",
    }

    /// Which refusals have the header Retry-After. Their bodies always state the time, but no
    /// client waits because of that alone.
    pub enum RetryAfter {
        /// Depends on the reason for the refusal: see the table of reasons in
        /// docs/internals/design.md.
        Auto = "auto",
        /// All refusals have the header.
        Always = "always",
        /// No refusal has the header.
        Never = "never",
    }
}

/// The Host header of requests to the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// The upstream's own host and port.
    Rewrite,
    /// The client's own Host.
    Preserve,
    /// This fixed host.
    Literal(HeaderValue),
}

/// TLS on the listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// The source of the certificate.
    pub mode: TlsMode,
    /// Further names to include in a self-signed certificate.
    pub names: Vec<String>,
    /// The folder of files for the controller: ca.crt, kubeconfig, token, namespace.
    pub write_to: Option<PathBuf>,
    /// The CA of client certificates. If set, clients must present a certificate signed by it.
    pub client_ca: Option<PathBuf>,
}

/// The source of the listener's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// A generated CA of this pod. A gate restarted in the same pod uses the CA of its predecessor.
    SelfSigned,
    /// PEM files the configuration names.
    Files {
        /// The file of the certificate chain.
        cert: PathBuf,
        /// The file of the private key.
        key: PathBuf,
    },
}

/// TLS settings for the upstream; they override those of its kubeconfig or cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// CAs to trust instead of the default ones.
    pub ca: Option<PathBuf>,
    /// The file of the client certificate, sent to the upstream.
    pub cert: Option<PathBuf>,
    /// The file of the client certificate's private key.
    pub key: Option<PathBuf>,
    /// The name to verify in the upstream's certificate, and to send as SNI.
    pub server_name: Option<String>,
    /// True if the upstream's certificate is not verified.
    pub insecure: bool,
}

/// A header with a secret, for the gate's own authentication at an external API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialFile {
    /// The name of the header.
    pub header: HeaderName,
    /// The text before the secret in the header, such as `Bearer `.
    pub prefix: String,
    /// The file with the secret.
    pub file: PathBuf,
}

// === impl Figures ===

impl Figures {
    /// Returns the published limit behind a class's bucket or, for `None`, behind the gate's.
    pub fn of(&self, class: Option<&str>) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.class.as_deref() == class)
    }
}

// === impl Listen ===

impl Listen {
    /// Returns the address of a TCP listener.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Returns true if only clients on this machine can connect.
    pub fn is_local(&self) -> bool {
        self.tcp().is_none_or(|address| address.ip().is_loopback())
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
    /// Returns true if this source has credentials for the gate to use on behalf of its clients.
    pub fn has_identity(&self) -> bool {
        !matches!(self, Self::Url(_))
    }
}

// === impl RetryAfter ===

impl RetryAfter {
    /// Returns true if a refusal for `reason` has the header Retry-After.
    ///
    /// client-go waits inside the worker if it gets the header, and then retries by itself. Without
    /// it, the error returns to the reconcile loop, which should handle a failing object. The loop
    /// finds the time in the body (`apierrors.SuggestsClientDelay`).
    #[must_use]
    pub fn is_on(self, reason: Reason, kind: ApiKind) -> bool {
        match (self, reason) {
            (Self::Always, _) => true,
            (Self::Never, _) | (Self::Auto, Reason::Deadline) => false,
            (Self::Auto, reason) => !reason.concerns_key() || kind == ApiKind::Http,
        }
    }
}
