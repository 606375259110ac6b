//! The stores of shared buckets.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Settings, UpstreamTls};

/// A store of shared buckets: a Valkey or Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Its name.
    pub name: Arc<str>,
    /// Its address.
    pub address: StoreAddress,
    /// True if TLS is spoken there.
    pub has_tls: bool,
    /// TLS to it.
    pub tls: UpstreamTls,
    /// The user; `None` for the default one.
    pub user: Option<String>,
    /// The file with the password.
    pub password_file: Option<PathBuf>,
    /// The login at its sentinels.
    pub sentinel: StoreLogin,
    /// The beginning of every key.
    pub prefix: String,
    /// The longest time to an answer, and to a connection.
    pub timeout: Duration,
}

/// A login at a store or its sentinels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreLogin {
    /// The user; `None` for the default one.
    pub user: Option<String>,
    /// The file with the password.
    pub password_file: Option<PathBuf>,
}

/// The address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// One server.
    Tcp(Endpoint),
    /// One server, at a Unix socket.
    Unix(PathBuf),
    /// The sentinels' primary.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<Endpoint>,
        /// Its name at the sentinels.
        primary: String,
    },
    /// The nodes of a cluster.
    Cluster {
        /// Some of them; they know the others.
        seeds: Vec<Endpoint>,
    },
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// A name, or an IP address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

// === impl Settings ===

impl Settings {
    /// Returns the stores to dial at the start: those of buckets below a call per second,
    /// whose first call should not wait for a connection besides.
    pub fn stores_of_slow_buckets(&self) -> BTreeSet<Arc<str>> {
        let shared = self.gates.values().flat_map(|gate| gate.policy.shared_buckets());
        shared.filter(|(bucket, _)| bucket.rate < 1.0).map(|(_, shared)| Arc::clone(&shared.store)).collect()
    }
}

// === impl StoreAddress ===

impl StoreAddress {
    /// Returns its URL.
    pub fn url(&self, has_tls: bool) -> String {
        let scheme = if has_tls { "rediss" } else { "redis" };
        let list = |all: &[Endpoint]| all.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::Unix(path) => format!("unix:{}", path.display()),
            Self::Tcp(at) => format!("{scheme}://{at}"),
            Self::Sentinel { sentinels, primary } => format!("{scheme}+sentinel://{}/{primary}", list(sentinels)),
            Self::Cluster { seeds } => format!("{scheme}+cluster://{}", list(seeds)),
        }
    }

    /// True if it cannot lead off this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(at) => at.is_local(),
            Self::Sentinel { sentinels: all, .. } | Self::Cluster { seeds: all } => all.iter().all(Endpoint::is_local),
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// True if it is this machine.
    pub fn is_local(&self) -> bool {
        is_loopback(&self.host)
    }
}

/// True for a host of this machine: a name, or an address without brackets.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}
