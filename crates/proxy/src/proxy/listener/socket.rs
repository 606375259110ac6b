//! Sockets to listen on: TCP and Unix.
//!
//! A Unix socket appears at its path with its mode set (0660: the gate's user and group, which a
//! pod's `fsGroup` shares between containers). A socket that an ended process left there is
//! replaced, one on which a living process listens is not, and at the end the gate removes its own
//! and no other.

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

/// A socket, bound.
#[derive(Debug)]
pub(crate) enum Bound {
    Tcp(TcpListener),
    /// With its file, which is removed with it.
    Unix {
        listener: UnixListener,
        _file: SocketFile,
    },
}

// === impl Bound ===

impl Bound {
    pub(crate) async fn bind(listen: &Listen) -> io::Result<Self> {
        match listen {
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => bind_unix(path).await,
        }
    }

    /// The address it listens on, with the port that was given for port 0.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix { .. } => None,
        }
    }

    /// True if clients on other machines can reach it.
    pub(crate) fn is_reached_from_elsewhere(&self) -> bool {
        self.address().is_some_and(|address| !address.ip().to_canonical().is_loopback())
    }

    /// A client, with the address of ours that it connected to.
    pub(crate) async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Small answers must not wait for the acknowledgement of the one before (40 ms).
                stream.set_nodelay(true)?;
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                let local = stream.local_addr()?.ip();
                Ok((Box::new(stream), Some(local)))
            }
            Self::Unix { listener, .. } => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }
}

/// Binds beside the path and renames into it, so that the socket is never there with another mode.
async fn bind_unix(path: &Path) -> io::Result<Bound> {
    bind::check_place(path).await?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    remove_socket(&beside)?;
    let listener = UnixListener::bind(&beside)?;
    fs::set_permissions(&beside, Permissions::from_mode(MODE))?;
    fs::rename(&beside, path)?;
    Ok(Bound::Unix { listener, _file: SocketFile::at(path) })
}

fn remove_socket(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path),
        _ => Ok(()),
    }
}

/// The gate's user and group may connect.
const MODE: u32 = 0o660;
/// With this, a peer that vanished without a word is noticed within a few minutes.
const KEEPALIVE: Duration = Duration::from_secs(30);
