//! The other end of a connection.

use std::net::IpAddr;
use std::sync::Arc;

use crate::places::Place;

/// A client, as far as its connection tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// The client's address of this machine; `None` over a Unix socket.
    pub(crate) local: Option<IpAddr>,
    /// The name in its certificate, where the gate knows clients by it; empty if it has none.
    pub(crate) name: Option<Arc<str>>,
    /// The place of its connection, where it came through a door.
    pub(crate) place: Option<Arc<Place>>,
}
