//! The control socket: it serves what the port serves, and takes orders. Only the process's own
//! user can open it (0600).

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use crate::bind;

/// The reason why the control socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process answers there.
    #[error("the control socket {path} is in use; is another tidegate running? set admin.socket to another path, or to \"off\"", path = .0.display())]
    Taken(PathBuf),
    /// The socket cannot be made.
    #[error("the control socket {path} cannot be made; {reason}; see admin.socket", path = path.display(), reason = bind::reason(source))]
    Unmade {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The control socket; removed when dropped.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

// === impl Socket ===

impl Socket {
    pub(super) async fn bind(path: &Path) -> Result<Self, SocketError> {
        if UnixStream::connect(path).await.is_ok() {
            return Err(SocketError::Taken(path.to_owned()));
        }
        let listener = bind(path).map_err(|source| SocketError::Unmade { path: path.to_owned(), source })?;
        Ok(Self { listener, path: path.to_owned() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A later process at worst finds a stale socket, and replaces it.
        drop(fs::remove_file(&self.path));
    }
}

/// Binds in a folder that no other user can look into, and moves the socket into its place once its
/// mode is right, so that other users can connect at no moment. A socket that a dead process has
/// left there is replaced.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let private = folder.join(format!(".tidegate-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&private)?;
    let inside = private.join("s");
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
}
