//! What a checked configuration says. Everything here is possible; nothing needs checking again.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

pub use crate::api::{Failures, Throttling};
use crate::{classify::Rules, limit::Policy};

/// The whole process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The admin port.
    pub admin: Admin,
    /// Logging.
    pub log: Log,
    /// After SIGTERM the gate serves on for at most this long.
    pub drain: Duration,
    /// By name, in order.
    pub gates: BTreeMap<Arc<str>, Gate>,
}

/// The admin port.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Where; `None` for none.
    pub listen: Option<SocketAddr>,
    /// Whether object names are shown.
    pub show_names: ShowNames,
    /// The control socket.
    pub socket: Socket,
}

/// Where the control socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Socket {
    /// `tidegate.sock` in the first gate's `tls.write_to`; without one there is none.
    Auto,
    /// Nowhere.
    Off,
    /// Here.
    At(PathBuf),
}

/// Whether object names are shown on the status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShowNames {
    /// Only on loopback.
    Auto,
    /// Yes.
    Always,
    /// No.
    Never,
}

/// Logging.
#[derive(Clone, Debug)]
pub struct Log {
    /// JSON instead of text.
    pub json: bool,
    /// `error` to `trace`, or a tracing filter.
    pub level: String,
    /// One JSON line per call goes here.
    pub calls: Option<PathBuf>,
}

/// One gate.
#[derive(Clone, Debug)]
pub struct Gate {
    /// Its name.
    pub name: Arc<str>,
    /// The kind of API; same as `rules.kind`.
    pub kind: crate::classify::Kind,
    /// Where it listens; at least one.
    pub listen: Vec<Listen>,
    /// Where calls go.
    pub upstream: Upstream,
    /// Whose credentials the upstream sees.
    pub credentials: Credentials,
    /// With inject: whether `Impersonate-*` headers pass.
    pub impersonation: bool,
    /// When refusals carry Retry-After.
    pub retry_after: RetryAfter,
    /// More Host names to accept.
    pub allowed_hosts: Vec<String>,
    /// The Host sent upstream.
    pub host: Host,
    /// Links of the upstream's in response headers point back at the gate.
    pub rewrite_links: bool,
    /// Classes, flows and keys.
    pub rules: Arc<Rules>,
    /// What counts as failure, by class id.
    pub failures: Vec<Failures>,
    /// What the upstream may ask of us.
    pub throttling: Throttling,
    /// The limits.
    pub policy: Policy,
    /// Identical calls that wait become one.
    pub coalesce: bool,
    /// Everything is decided and counted, and everything is let through.
    pub shadow: bool,
    /// To an upstream connection.
    pub connect_timeout: Duration,
    /// To the response head; `None` for no limit.
    pub response_timeout: Option<Duration>,
    /// TLS on the listener.
    pub tls: Option<ListenerTls>,
    /// TLS to the upstream, beyond what the upstream's own source says.
    pub upstream_tls: UpstreamTls,
    /// What inject adds on an external API.
    pub credential: Option<Credential>,
}

/// Where a gate listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Where calls go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// The API server of the cluster this pod is in.
    InCluster,
    /// A kubeconfig's context; `None` for the current one.
    Kubeconfig(Option<String>),
    /// `http(s)://host[:port][/base]`.
    Url(http::Uri),
}

/// Whose credentials the upstream sees, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Inject on a plain loopback listener where there is something to inject, else pass through.
    Auto,
    /// The client's own.
    PassThrough,
    /// The gate's.
    Inject,
}

/// When refusals carry Retry-After.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    /// By the table of reasons in docs/design.md.
    Auto,
    /// On every refusal.
    Always,
    /// On none.
    Never,
}

/// The Host sent upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// The upstream's own authority.
    Rewrite,
    /// The client's.
    Preserve,
    /// This one.
    Literal(http::HeaderValue),
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
    /// Clients must show a certificate of this CA.
    pub client_ca: Option<PathBuf>,
}

/// Where the listener's certificate comes from.
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

/// TLS to the upstream.
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
    /// No verification: loud.
    pub insecure: bool,
}

/// A header that inject adds on an external API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Header name.
    pub header: http::HeaderName,
    /// Before the file's content.
    pub prefix: String,
    /// The secret.
    pub file: PathBuf,
}
