//! The path of the control socket: where a process makes it, and where commands look for it.
//!
//! Without `admin.socket` it is in the folder that the pod's containers share, or else in a folder
//! that only this user can enter. So commands work with any configuration. In the latter folder it
//! is named after an address of the process, because one user may run several.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::spec::{Gate, Listen, OwnFile, Settings};

/// A possible path of the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketPlace {
    /// The path of the socket.
    pub(crate) path: PathBuf,
    /// True if the folder is this user's private one; false if the configuration names the path.
    pub(crate) is_private: bool,
}

// === impl SocketPlace ===

impl SocketPlace {
    /// Makes this user's private folder; does nothing for a configured path.
    ///
    /// # Errors
    /// Other users could enter the folder, or replace it.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        let (true, Some(folder)) = (self.is_private, self.path.parent()) else { return Ok(()) };
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => check(folder),
        }
    }

    /// Returns true if the path exists, and no other user could have put a socket there.
    pub(crate) fn is_there(&self) -> bool {
        let is_safe = !self.is_private || self.path.parent().is_some_and(|folder| check(folder).is_ok());
        is_safe && self.path.exists()
    }
}

/// Returns the possible paths of the socket, the preferred one first.
pub(crate) fn places(settings: &Settings) -> Vec<SocketPlace> {
    let named = |path| vec![SocketPlace { path, is_private: false }];
    let volume = || settings.gates.values().find_map(Gate::folder);
    match (&settings.admin.socket, volume()) {
        (OwnFile::Off, _) => Vec::new(),
        (OwnFile::At(path), _) => named(path.clone()),
        (OwnFile::Auto, Some(volume)) => named(volume.join("tidegate.sock")),
        (OwnFile::Auto, None) => private_places(settings, &folders()),
    }
}

/// Returns the first possible path that has a socket; if none has, the preferred path.
pub(crate) fn place_to_ask(settings: &Settings) -> Option<PathBuf> {
    let places = places(settings);
    places.iter().find(|place| place.is_there()).or_else(|| places.first()).map(|place| place.path.clone())
}

/// Returns the possible folders for this user's sockets: that of the login session first, then one
/// in the folder for temporary files.
fn folders() -> Vec<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join("tidegate"));
    session.into_iter().chain([std::env::temp_dir().join(format!("tidegate-{user}"))]).collect()
}

fn private_places(settings: &Settings, folders: &[PathBuf]) -> Vec<SocketPlace> {
    let listens = settings.gates.values().flat_map(|gate| &gate.listen).filter_map(Listen::tcp);
    let Some(address) = listens.chain(settings.admin.listen).find(|address| address.port() != 0) else {
        return Vec::new();
    };
    let paths = folders.iter().map(|folder| folder.join(name(address)));
    // The kernel's limit, as for `admin.socket`.
    let fits = paths.filter(|path| path.is_absolute() && path.as_os_str().len() <= 80);
    fits.map(|path| SocketPlace { path, is_private: true }).collect()
}

fn name(address: SocketAddr) -> String {
    format!("{}-{}.sock", address.ip(), address.port())
}

/// Checks the owner and modes of a folder: only this user may enter or replace it.
fn check(folder: &Path) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let own = fs::symlink_metadata(folder)?;
    let around = folder.parent().map(fs::metadata).transpose()?;
    let is_own = own.is_dir() && own.uid() == user && own.mode() & 0o077 == 0;
    if is_own && around.is_none_or(|around| keeps(&around, user)) {
        return Ok(());
    }
    Err(io::Error::other(format!("other users can enter or replace the folder {}", folder.display())))
}

/// Returns true if only this user or root can rename this user's files in a folder.
fn keeps(folder: &Metadata, user: u32) -> bool {
    const STICKY: u32 = 0o1000;
    (folder.uid() == user || folder.uid() == 0) && (folder.mode() & 0o022 == 0 || folder.mode() & STICKY != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::config;

    fn settings(text: &str) -> Settings {
        config::load_text("test".to_owned(), text.to_owned(), &[]).expect("it is right").settings
    }

    const PLAIN: &str = "[gates.k]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"127.0.0.1:8001\"\n";

    #[test]
    fn two_processes_of_a_user_have_a_socket_each() {
        let folders = ["/run/user/7/tidegate".into(), "/tmp/tidegate-7".into()];
        let paths = |text: &str| -> Vec<_> {
            private_places(&settings(text), &folders).into_iter().map(|place| place.path).collect()
        };
        assert_eq!(
            paths(PLAIN),
            [Path::new("/run/user/7/tidegate/127.0.0.1-8001.sock"), Path::new("/tmp/tidegate-7/127.0.0.1-8001.sock")]
        );
        let other = PLAIN.replace("8001", "8002");
        assert!(paths(&other)[0].ends_with("127.0.0.1-8002.sock"));
        let unix = "[gates.k]\nupstream = \"http://127.0.0.1:9\"\nlisten = \"unix:/run/k.sock\"\n";
        assert!(paths(unix)[0].ends_with("127.0.0.1-9464.sock"), "the admin port's address is its own too");
        assert_eq!(paths(&format!("[admin]\nlisten = \"off\"\n{unix}")), Vec::<PathBuf>::new());
        let long = [PathBuf::from(format!("/{}", "x".repeat(80))), "relative".into()];
        assert_eq!(private_places(&settings(PLAIN), &long), []);
    }

    #[test]
    fn what_the_configuration_says_wins() {
        let at = |text: &str| places(&settings(text)).into_iter().map(|place| place.path).collect::<Vec<_>>();
        let volume = format!("{PLAIN}tls = {{ write_to = \"/run/shared\" }}\n");
        assert_eq!(at(&volume), [Path::new("/run/shared/tidegate.sock")]);
        assert_eq!(at(&format!("admin.socket = \"/run/own.sock\"\n{volume}")), [Path::new("/run/own.sock")]);
        assert_eq!(at(&format!("admin.socket = \"off\"\n{volume}")), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_folder_that_others_can_enter_or_replace_is_not_used() {
        let around = tempfile::tempdir().expect("a folder");
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
        let folder = around.path().join("tidegate");
        let place = SocketPlace { path: folder.join("s.sock"), is_private: true };
        place.prepare().expect("it is made");
        assert_eq!(fs::metadata(&folder).expect("it is there").mode() & 0o777, 0o700);
        fs::write(&place.path, "").expect("it can be written");
        assert!(place.is_there());
        for (path, wrong) in [(&*folder, 0o755), (&*folder, 0o770), (around.path(), 0o777)] {
            mode(path, wrong);
            let refused = place.prepare().expect_err("others can enter or replace it").to_string();
            assert!(refused.contains("other users") && !place.is_there(), "{refused}");
            mode(path, 0o700);
        }
        mode(around.path(), 0o1777);
        place.prepare().expect("as in /tmp, none but the owner can rename it");
        let link = around.path().join("link");
        symlink(&folder, &link).expect("it can be made");
        assert!(
            SocketPlace { path: link.join("s.sock"), is_private: true }.prepare().is_err(),
            "a link is another's to set"
        );
    }
}
