//! Binding sockets: TCP ports, Unix sockets at a path that is free, and the remedy of a failed bind.

use std::fs::{self, Permissions};
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener, UnixStream};

/// A socket that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{what} cannot listen on {listen}; {}", reason(source))]
pub struct BindError {
    what: String,
    listen: String,
    #[source]
    source: Error,
}

// === impl BindError ===

impl BindError {
    /// Makes the error of a listener, `what`, at the address or path `listen`.
    pub fn new(what: impl Into<String>, listen: &impl ToString, source: Error) -> Self {
        Self { what: what.into(), listen: listen.to_string(), source }
    }
}

/// A Unix socket that accepts clients. Its file is removed when dropped, unless another socket has
/// taken its place.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, to recognize it later.
    id: Option<(u64, u64)>,
}

// === impl UnixSocket ===

impl UnixSocket {
    /// Binds in a private folder, and moves the socket to its path once its mode is right. So other
    /// users can never connect. Only the socket of an ended process is replaced.
    ///
    /// # Errors
    /// Something else is at the path, or the socket cannot be made.
    pub async fn bind(path: &Path, mode: u32) -> Result<Self, Error> {
        check_place(path).await?;
        let private = path.with_file_name(format!(".{}", std::process::id()));
        let inside = private.join("s");
        // A process that died in here had the same number: 1, in a container.
        drop(fs::remove_file(&inside));
        drop(fs::remove_dir(&private));
        fs::DirBuilder::new().mode(0o700).create(&private)?;
        let bound = UnixListener::bind(&inside).and_then(|listener| {
            fs::set_permissions(&inside, Permissions::from_mode(mode))?;
            fs::rename(&inside, path)?;
            Ok(Self { listener, path: path.to_owned(), id: id(path) })
        });
        if bound.is_err() {
            drop(fs::remove_file(&inside));
        }
        fs::remove_dir(&private)?;
        bound
    }

    /// Waits for the next client.
    ///
    /// # Errors
    /// None can be accepted now.
    pub async fn accept(&self) -> Result<UnixStream, Error> {
        Ok(self.listener.accept().await?.0)
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // another process may have taken the path over
        if self.id.is_some()
            && self.id == id(&self.path)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "cannot remove the file of a Unix socket: it stays behind");
        }
    }
}

fn id(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Binds a TCP port. If the node has no IPv6, it binds `0.0.0.0` or `127.0.0.1` in place of `[::]`
/// or `[::1]`: pods are commonly configured with `[::]`, and a warning is better than a pod that
/// does not start.
pub async fn tcp(listener: &str, listen: SocketAddr) -> Result<TcpListener, Error> {
    let error = match TcpListener::bind(listen).await {
        Ok(bound) => return Ok(bound),
        Err(error) => error,
    };
    let is_missing = error.raw_os_error() == Some(AFNOSUPPORT) || error.kind() == ErrorKind::AddrNotAvailable;
    let Some(instead) = in_ipv4(listen).filter(|_| is_missing) else { return Err(error) };
    let bound = TcpListener::bind(instead).await?;
    tracing::warn!(listener, %error, %listen, %instead, "this machine has no IPv6: the listener uses the IPv4 address instead");
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
async fn check_place(path: &Path) -> Result<(), Error> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(Error::new(ErrorKind::AlreadyExists, "there is a file that is not a socket"));
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(ErrorKind::AddrInUse.into()),
        Err(_) => Ok(()),
    }
}

/// Explains a failed bind and its remedy, from the kernel's error.
fn reason(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => "another process listens there; end that, or take another port or path",
        ErrorKind::AddrNotAvailable => "no network interface of this machine has that address",
        ErrorKind::PermissionDenied => {
            "this user has no permission: a port below 1024 needs CAP_NET_BIND_SERVICE, a socket a writable folder"
        }
        ErrorKind::NotFound | ErrorKind::NotADirectory => "its folder does not exist",
        ErrorKind::ReadOnlyFilesystem => "its folder cannot be written; mount an emptyDir there",
        ErrorKind::AlreadyExists => "a file at that path is not a socket; move it away, or take another path",
        // The kind of EAFNOSUPPORT has no name.
        _ if error.raw_os_error() == Some(AFNOSUPPORT) => "this machine has no such addresses; is IPv6 off here?",
        _ => "the operating system refuses it",
    }
}

/// The error number of Linux and macOS for an address family switched off, such as IPv6.
const AFNOSUPPORT: i32 = if cfg!(target_os = "macos") { 47 } else { 97 };

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_its_own_user_can_open_it_and_only_one_process_has_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tidegate.sock");
        let socket = UnixSocket::bind(&path, 0o600).await.expect("it can be made");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        let taken = UnixSocket::bind(&path, 0o600).await.expect_err("it is in use");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        drop(socket);
        assert!(!path.exists());
        let stale = std::os::unix::net::UnixListener::bind(&path).expect("it can be made");
        drop(stale);
        drop(UnixSocket::bind(&path, 0o600).await.expect("what a dead process left is replaced"));
        assert_eq!(fs::read_dir(path.parent().expect("one")).expect("readable").count(), 0);
    }

    #[tokio::test]
    async fn nothing_but_a_socket_is_replaced_or_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let elsewhere = folder.path().join("elsewhere");
        let refused = async || reason(&UnixSocket::bind(&path, 0o600).await.expect_err("it is not ours"));
        fs::write(&path, "mine").expect("it can be written");
        assert!(refused().await.contains("is not a socket"));
        fs::rename(&path, &elsewhere).expect("ours");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("it can be made");
        assert!(refused().await.contains("is not a socket"));
        assert_eq!(fs::read_to_string(&path).expect("it is still there"), "mine");
        fs::remove_file(&path).expect("ours");
        fs::create_dir(&path).expect("it can be made");
        assert!(refused().await.contains("is not a socket"));
        fs::remove_dir(&path).expect("ours");
        let socket = UnixSocket::bind(&path, 0o600).await.expect("it is free");
        fs::rename(&elsewhere, &path).expect("ours");
        drop(socket);
        assert_eq!(fs::read_to_string(&path).expect("it is another's"), "mine");
    }

    #[tokio::test]
    async fn what_a_process_of_the_same_number_left_half_made_is_cleared_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let private = folder.path().join(format!(".{}", std::process::id()));
        fs::create_dir(&private).expect("it can be made");
        drop(std::os::unix::net::UnixListener::bind(private.join("s")).expect("it can be made"));
        drop(UnixSocket::bind(&folder.path().join("s"), 0o600).await.expect("it can be made"));
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    }
}
