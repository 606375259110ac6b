//! What an egress listener is started with.

use std::net::SocketAddr;
use std::sync::Arc;

use super::directory::Directory;
use crate::clients::Clients;
use crate::credentials::Secret;
use crate::proxy::options::Options;
use crate::tls;
use crate::upstream::Judge;

/// The settings and keys for starting the egress listener.
#[derive(Debug)]
pub struct EgressOptions {
    /// The hosts gates list, and the listener's settings.
    pub directory: Directory,
    /// The settings of the gates with hosts. None of them listens.
    pub gates: Vec<Options>,
    /// The settings of the gate for unencrypted calls to hosts of no gate, which has no limits.
    pub clear: Options,
    /// The token clients must send, if one is configured.
    pub token: Option<Secret>,
    /// TLS of the listener itself.
    pub tls: Option<Arc<tls::Listener>>,
    /// Authenticates clients, if the listener requires it.
    pub clients: Option<Arc<Clients>>,
    /// The CA for decrypted hosts, if a gate decrypts TLS.
    pub ca: Option<Arc<tls::CurrentCa>>,
    /// The process's own addresses; they are never connected to.
    pub own: Vec<SocketAddr>,
    /// Allows or refuses addresses to connect to; `None` for the usual rules.
    pub judge: Option<Judge>,
}
