//! The client at the other end of a connection.

use std::net::IpAddr;
use std::sync::Arc;

use crate::places::Place;

/// A client, as far as its connection shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// The address of this machine the client connected to; `None` over a Unix socket.
    pub(crate) local: Option<IpAddr>,
    /// The name in the client's certificate, where the gate tells clients apart by it; empty if it
    /// has none.
    pub(crate) name: Option<Arc<str>>,
    /// Counts its connection against the limit of the listener, if there is one.
    pub(crate) place: Option<Arc<Place>>,
}
