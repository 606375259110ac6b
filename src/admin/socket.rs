//! The control socket: it serves the same as the admin port, and accepts commands. Only the
//! process's own user can open it (0600).

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use crate::bind::{self, SocketFile};

/// Why the control socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process uses the socket at this path.
    #[error("the control socket {path} is in use; is another tidegate running? set admin.socket to another path, or to \"off\"", path = .0.display())]
    Taken(PathBuf),
    /// The socket could not be made.
    #[error("the control socket {path} cannot be made; {reason}; see admin.socket", path = path.display(), reason = bind::reason(source))]
    Unmade {
        /// The path of the socket.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
}

/// The control socket; its file is removed when dropped.
#[derive(Debug)]
pub(super) struct Socket {
    listener: UnixListener,
    _file: SocketFile,
}

// === impl Socket ===

impl Socket {
    pub(super) async fn bind(path: &Path) -> Result<Self, SocketError> {
        let listener = bind(path).await.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => SocketError::Taken(path.to_owned()),
            _ => SocketError::Unmade { path: path.to_owned(), source },
        })?;
        Ok(Self { listener, _file: SocketFile::at(path) })
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

/// Binds in a private folder, and moves the socket into its place once its mode is right. So other
/// users can never connect. Only the socket of a dead process is replaced.
async fn bind(path: &Path) -> io::Result<UnixListener> {
    bind::check_place(path).await?;
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let private = folder.join(format!(".tidegate-{}", std::process::id()));
    let inside = private.join("s");
    // A process that died in here had the same number: 1, in a container.
    drop(fs::remove_file(&inside));
    drop(fs::remove_dir(&private));
    fs::DirBuilder::new().mode(0o700).create(&private)?;
    let bound = UnixListener::bind(&inside).and_then(|listener| {
        fs::set_permissions(&inside, Permissions::from_mode(0o600))?;
        fs::rename(&inside, path)?;
        Ok(listener)
    });
    if bound.is_err() {
        drop(fs::remove_file(&inside));
    }
    fs::remove_dir(&private)?;
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_its_own_user_can_open_it_and_only_one_process_has_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep").join("tidegate.sock");
        let socket = Socket::bind(&path).await.expect("it can be made");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert!(matches!(Socket::bind(&path).await, Err(SocketError::Taken(_))));
        drop(socket);
        assert!(!path.exists());
        let stale = std::os::unix::net::UnixListener::bind(&path).expect("it can be made");
        drop(stale);
        drop(Socket::bind(&path).await.expect("what a dead process left is replaced"));
        assert_eq!(fs::read_dir(path.parent().expect("one")).expect("readable").count(), 0);
    }

    #[tokio::test]
    async fn nothing_but_a_socket_is_replaced_or_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let elsewhere = folder.path().join("elsewhere");
        let refused = async || Socket::bind(&path).await.expect_err("it is not ours").to_string();
        fs::write(&path, "mine").expect("it can be written");
        assert!(refused().await.contains("something else is at that path"));
        fs::rename(&path, &elsewhere).expect("ours");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("it can be made");
        assert!(refused().await.contains("something else is at that path"));
        assert_eq!(fs::read_to_string(&path).expect("it is still there"), "mine");
        fs::remove_file(&path).expect("ours");
        fs::create_dir(&path).expect("it can be made");
        assert!(refused().await.contains("something else is at that path"));
        fs::remove_dir(&path).expect("ours");
        let socket = Socket::bind(&path).await.expect("it is free");
        fs::rename(&elsewhere, &path).expect("ours");
        drop(socket);
        assert_eq!(fs::read_to_string(&path).expect("it is another's"), "mine");
    }

    #[tokio::test]
    async fn what_a_process_of_the_same_number_left_half_made_is_cleared_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let private = folder.path().join(format!(".tidegate-{}", std::process::id()));
        fs::create_dir(&private).expect("it can be made");
        drop(std::os::unix::net::UnixListener::bind(private.join("s")).expect("it can be made"));
        drop(Socket::bind(&folder.path().join("s")).await.expect("it can be made"));
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    }
}
