//! The stores of shared buckets.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Settings, UpstreamTls};

/// A store of shared buckets: a Valkey or Redis server or cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The name of the store.
    pub name: Arc<str>,
    /// The address of the store.
    pub address: StoreAddress,
    /// True if connections to the store use TLS.
    pub has_tls: bool,
    /// The TLS settings for the store.
    pub tls: UpstreamTls,
    /// The login at the store.
    pub login: StoreLogin,
    /// The login at the store's sentinels.
    pub sentinel: StoreLogin,
    /// The prefix of every key in the store.
    pub prefix: String,
    /// The timeout of a request, and of a connection attempt.
    pub timeout: Duration,
}

/// A login at a store or its sentinels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreLogin {
    /// The user to log in as; `None` for the default user.
    pub user: Option<String>,
    /// The source of the password.
    pub password: Option<StorePassword>,
}

/// The source of a store's password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePassword {
    /// A file, followed as it changes.
    File(PathBuf),
    /// A program that prints the password.
    Command {
        /// The program and its arguments.
        words: Vec<String>,
        /// The time between two runs.
        refresh: Duration,
    },
}

/// The address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// A single server, by host and port.
    Tcp(Endpoint),
    /// A single server, at a Unix socket.
    Unix(PathBuf),
    /// A primary server; its address is requested from Redis sentinels.
    Sentinel {
        /// The addresses of the sentinels.
        sentinels: Vec<Endpoint>,
        /// The name of the primary at the sentinels.
        primary: String,
    },
    /// The nodes of a cluster.
    Cluster {
        /// Some of the nodes; the others are learned from these.
        seeds: Vec<Endpoint>,
    },
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// A name, or an IP address without brackets.
    pub host: String,
    /// The port of the server.
    pub port: u16,
}

// === impl Settings ===

impl Settings {
    /// Returns the stores to connect to at the start: those of buckets with less than one call per
    /// second. Their first call should not also have to wait for a connection.
    pub fn stores_of_slow_buckets(&self) -> BTreeSet<Arc<str>> {
        let shared = self.gates.values().flat_map(|gate| gate.policy.shared_buckets());
        shared.filter(|(bucket, _)| bucket.rate < 1.0).map(|(_, shared)| Arc::clone(&shared.store)).collect()
    }
}

// === impl StoreAddress ===

impl StoreAddress {
    /// Returns the store's URL, without a password.
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

    /// Returns true if the store is on this machine.
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
    /// Returns true if the host is this machine.
    pub fn is_local(&self) -> bool {
        is_loopback(&self.host)
    }
}

/// Returns true for a host of this machine, by name or by an address without brackets.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}
