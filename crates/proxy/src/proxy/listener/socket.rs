//! Sockets to listen on: TCP and Unix.
//!
//! A Unix socket appears at its path with its mode set (0660: the gate's user and group, which a
//! pod's `fsGroup` shares between containers). It replaces the socket of an ended process, but not
//! one on which a process listens. At the end the gate removes its own socket and no other.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpListener;

use super::stream::Stream;
use crate::bind::{BindError, UnixSocket};
use crate::spec::Listen;

/// A socket that accepts clients.
#[derive(Debug)]
pub(crate) enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

/// A new client.
pub(crate) struct NewClient {
    pub(crate) stream: Box<dyn Stream>,
    /// The address of this machine the client connected to; `None` over a Unix socket.
    pub(crate) local: Option<IpAddr>,
}

// === impl ListenSocket ===

impl ListenSocket {
    /// Binds a socket of the listener `what`.
    pub(crate) async fn bind(what: &str, listen: &Listen) -> Result<Self, BindError> {
        let bound = match listen {
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => UnixSocket::bind(path, MODE).await.map(Self::Unix),
        };
        bound.map_err(|error| BindError::new(what, listen, error))
    }

    /// Returns the TCP address, with the real port instead of 0.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    /// Returns true if clients on other machines can reach the socket.
    pub(crate) fn is_reached_from_elsewhere(&self) -> bool {
        self.address().is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }

    /// Waits for the next client.
    pub(crate) async fn accept(&self) -> io::Result<NewClient> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Small answers must not wait for the acknowledgement of the one before (40 ms).
                stream.set_nodelay(true)?;
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                let local = stream.local_addr()?.ip();
                Ok(NewClient { stream: Box::new(stream), local: Some(local) })
            }
            Self::Unix(socket) => Ok(NewClient { stream: Box::new(socket.accept().await?), local: None }),
        }
    }
}

/// The mode of the socket's file: the gate's user and group may connect.
const MODE: u32 = 0o660;
/// The interval of TCP keepalive: a vanished client is noticed within a few minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);
