//! The client at the other end of a connection.

use std::net::IpAddr;
use std::sync::Arc;

use crate::places::Place;

/// What is known of a client from its connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// The address of this machine the client connected to; `None` over a Unix socket.
    pub(crate) local: Option<IpAddr>,
    /// The name in the client's certificate, empty if the certificate has none; `None` if the gate
    /// does not identify clients by certificates.
    pub(crate) name: Option<Arc<str>>,
    /// Counts its connection against the limit of the listener, if there is one.
    pub(crate) place: Option<Arc<Place>>,
}
