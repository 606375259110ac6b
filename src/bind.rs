//! Says why an address or a path cannot be listened on, and what to do about it.

use std::io::{Error, ErrorKind};

/// Returns the reason of a failed bind, and the remedy, by what the kernel said.
pub(crate) fn reason(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::AddrInUse => "is another process there? end that, or take another port or path",
        ErrorKind::AddrNotAvailable => "no network interface of this machine has that address",
        ErrorKind::PermissionDenied => {
            "this user may not: a port below 1024 needs CAP_NET_BIND_SERVICE, a socket a folder that is writable"
        }
        ErrorKind::NotFound | ErrorKind::NotADirectory => "its folder is not there",
        ErrorKind::ReadOnlyFilesystem => "its folder cannot be written; mount an emptyDir there",
        ErrorKind::AlreadyExists => "something else is at that path",
        // The kind of EAFNOSUPPORT has no name.
        _ if error.raw_os_error() == Some(AFNOSUPPORT) => "this machine has no such addresses; is IPv6 off here?",
        _ => "see the reason below",
    }
}

/// The errors of Linux and macOS where a family of addresses is off.
const AFNOSUPPORT: i32 = if cfg!(target_os = "macos") { 47 } else { 97 };
