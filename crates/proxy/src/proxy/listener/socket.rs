//! Sockets to listen on: TCP and Unix.
//!
//! A Unix socket appears at its path with its mode set (0660: the gate's user and group, which a
//! pod's `fsGroup` shares between containers). It replaces the socket of an ended process, but not
//! one on which a process listens. At the end the gate removes its own socket and no other.

use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, UnixListener};

use super::stream::Stream;
use crate::bind::{self, SocketFile};
use crate::spec::Listen;

/// A socket that accepts clients.
#[derive(Debug)]
pub(crate) enum ListenSocket {
    Tcp(TcpListener),
    /// A Unix socket. Its file is removed with the listener.
    Unix {
        listener: UnixListener,
        _file: SocketFile,
    },
}

/// A new client.
pub(crate) struct NewClient {
    pub(crate) stream: Box<dyn Stream>,
    /// The address of this machine the client connected to; `None` over a Unix socket.
    pub(crate) local: Option<IpAddr>,
}

// === impl ListenSocket ===

impl ListenSocket {
    pub(crate) async fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => bind_unix(path).await,
        }
    }

    /// Returns the TCP address, with the real port instead of 0.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix { .. } => None,
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
            Self::Unix { listener, .. } => Ok(NewClient { stream: Box::new(listener.accept().await?.0), local: None }),
        }
    }
}

/// Binds at another path and renames the socket into place, so that it never has another mode
/// there.
async fn bind_unix(path: &Path) -> io::Result<ListenSocket> {
    bind::check_place(path).await?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    remove_socket(&beside)?;
    let listener = UnixListener::bind(&beside)?;
    fs::set_permissions(&beside, Permissions::from_mode(MODE))?;
    fs::rename(&beside, path)?;
    Ok(ListenSocket::Unix { listener, _file: SocketFile::at(path) })
}

fn remove_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path),
        _ => Ok(()),
    }
}

/// The mode of the socket's file: the gate's user and group may connect.
const MODE: u32 = 0o660;
/// The interval of TCP keepalive: a vanished client is noticed within a few minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);
