//! Values that several sections have: names and addresses.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::cursor::Cursor;
use crate::spec::Listen;

/// The form of names.
pub(super) const SNAKE_CASE: &str = "snake_case: lower-case letters, digits and single underscores";

/// Reads an IP address with a port; `or` says what else may stand there.
pub(super) fn address(text: &str, at: &Cursor<'_>, or: &str) -> Option<SocketAddr> {
    let address = text.parse();
    if address.is_err() {
        at.problem(format!(
            "is {text:?}, expected an IP address with a port, such as \"127.0.0.1:8001\" or \"[::1]:8001\"{or}"
        ));
    }
    address.ok()
}

/// Reads a listener: an address, or a path that a Unix socket can have.
pub(super) fn listen(text: &str, at: &Cursor<'_>) -> Option<Listen> {
    let Some(path) = text.strip_prefix("unix:") else {
        return address(text, at, ", or \"unix:/path/of/a.sock\"").map(Listen::Tcp);
    };
    if !path.starts_with('/') || path.ends_with('/') || path.len() > SOCKET_PATH {
        at.problem(format!(
            "is \"unix:{path}\", expected \"unix:\" and an absolute path of at most {SOCKET_PATH} bytes"
        ));
        return None;
    }
    Some(Listen::Unix(PathBuf::from(path)))
}

/// True for a name as keys and environment variables can carry it.
pub(super) fn is_snake_case(name: &str) -> bool {
    let word =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.split('_').all(word) && name.len() <= 63
}

/// The length that `sockaddr_un` holds, less the end and what the socket is called while it is
/// made.
const SOCKET_PATH: usize = 100;
