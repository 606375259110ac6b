//! The stores of shared buckets.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::UpstreamTls;

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
    /// The beginning of every key.
    pub prefix: String,
    /// The longest time to an answer, and to a connection.
    pub timeout: Duration,
}

/// The address of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// A host and a port.
    Tcp {
        /// A name, or an IP address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

// === impl StoreAddress ===

impl StoreAddress {
    /// True if it cannot lead off this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }
}
