//! The parts of an egress listener, and its start errors.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::directory::Directory;
use crate::bind;
use crate::clients::Clients;
use crate::credentials::Secret;
use crate::proxy::gate::GateError;
use crate::proxy::options::Options;
use crate::spec::Listen;
use crate::tls;
use crate::upstream::Judge;

/// The parts of the egress listener.
#[derive(Debug)]
pub struct EgressOptions {
    /// The hosts, and the listener's settings.
    pub directory: Directory,
    /// The gates with hosts. None of them listens.
    pub gates: Vec<Options>,
    /// The gate for calls in clear to unlisted hosts, without limits.
    pub clear: Options,
    /// The token for clients.
    pub token: Option<Secret>,
    /// TLS to the listener itself.
    pub tls: Option<Arc<tls::Listener>>,
    /// Identifies clients, where the listener asks.
    pub clients: Option<Arc<Clients>>,
    /// The CA of interception, if a gate intercepts.
    pub ca: Option<Arc<tls::CurrentCa>>,
    /// The process's own addresses, never dialled.
    pub own: Vec<SocketAddr>,
    /// Judges addresses; `None` for the usual rules.
    pub judge: Option<Judge>,
}

/// The egress listener could not start.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// Its socket could not be bound.
    #[error("the egress listener cannot listen on {listen}; {}", bind::reason(source))]
    Bind {
        /// The address.
        listen: Listen,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// One of its gates could not start.
    #[error(transparent)]
    Gate(#[from] GateError),
}
