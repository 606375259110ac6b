//! Values that several sections have: names and addresses.

use std::net::SocketAddr;

use super::cursor::Cursor;

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

/// True for a name as keys and environment variables can carry it.
pub(super) fn is_snake_case(name: &str) -> bool {
    let word =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.split('_').all(word) && name.len() <= 63
}
