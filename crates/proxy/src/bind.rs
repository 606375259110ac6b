//! Binding sockets: checks whether the path of a Unix socket is free, removes its file at the end,
//! and explains a failed bind with its remedy.

use std::fs;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixStream};

/// The file of a Unix socket; removed when dropped, unless another socket has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file, to recognize it later.
    id: Option<(u64, u64)>,
}

// === impl SocketFile ===

impl SocketFile {
    /// Takes ownership of the file at a path.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), id: id(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // another process may have taken the path over
        if self.id.is_some()
            && self.id == id(&self.path)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "the socket's file stays behind");
        }
    }
}

fn id(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Binds a TCP port. On a node without IPv6 it uses the same address of IPv4: pods are told to
/// listen on `[::]`, and one line is better than no pod.
pub async fn tcp(listener: &str, listen: SocketAddr) -> Result<TcpListener, Error> {
    let error = match TcpListener::bind(listen).await {
        Ok(bound) => return Ok(bound),
        Err(error) => error,
    };
    let is_missing = error.raw_os_error() == Some(AFNOSUPPORT) || error.kind() == ErrorKind::AddrNotAvailable;
    let Some(instead) = in_ipv4(listen).filter(|_| is_missing) else { return Err(error) };
    let bound = TcpListener::bind(instead).await?;
    tracing::warn!(listener, %error, %listen, %instead, "there is no IPv6 here; it listens on IPv4 instead");
    Ok(bound)
}

/// Returns the IPv4 counterpart of the IPv6 wildcard or loopback address; `None` for other
/// addresses.
pub fn in_ipv4(address: SocketAddr) -> Option<SocketAddr> {
    match address.ip() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Some((Ipv4Addr::UNSPECIFIED, address.port()).into()),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Some((Ipv4Addr::LOCALHOST, address.port()).into()),
        _ => None,
    }
}

/// Fails if something else already uses the path of a Unix socket. A socket without a listener may
/// be replaced; one with a listener, or any other file, may not.
pub async fn check_place(path: &Path) -> Result<(), Error> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(Error::new(ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(ErrorKind::AddrInUse.into()),
        Err(_) => Ok(()),
    }
}

/// Explains a failed bind and its remedy, from the kernel's error.
pub fn reason(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => "is another process there? end that, or take another port or path",
        ErrorKind::AddrNotAvailable => "no network interface of this machine has that address",
        ErrorKind::PermissionDenied => {
            "this user may not: a port below 1024 needs CAP_NET_BIND_SERVICE, a socket a folder that is writable"
        }
        ErrorKind::NotFound | ErrorKind::NotADirectory => "its folder is not there",
        ErrorKind::ReadOnlyFilesystem => "its folder cannot be written; mount an emptyDir there",
        ErrorKind::AlreadyExists => "something else is at that path; move it away, or take another path",
        // The kind of EAFNOSUPPORT has no name.
        _ if error.raw_os_error() == Some(AFNOSUPPORT) => "this machine has no such addresses; is IPv6 off here?",
        _ => "see the reason below",
    }
}

/// The error number of Linux and macOS for an address family switched off, such as IPv6.
const AFNOSUPPORT: i32 = if cfg!(target_os = "macos") { 47 } else { 97 };
