//! Reads names and addresses, for several tables of the configuration.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::Value;

use super::cursor::{Cursor, TomlValue};
use crate::spec::Listen;

/// A description of valid names, for error messages.
pub(super) const SNAKE_CASE: &str = "snake_case: lower-case letters, digits and single underscores";

/// Reads an IP address with a port. The error ends with `or`, a text with further alternatives.
pub(super) fn address(text: &str, or: &str) -> Result<SocketAddr, String> {
    let expected = "expected an IP address with a port, such as \"127.0.0.1:8001\" or \"[::1]:8001\"";
    text.parse().map_err(|_| format!("is {text:?}, {expected}{or}"))
}

/// Reads what to listen on: an address, or the path of a Unix socket.
pub(super) fn listen(text: &str) -> Result<Listen, String> {
    let Some(path) = text.strip_prefix("unix:") else {
        return address(text, ", or \"unix:/path/of/a.sock\"").map(Listen::Tcp);
    };
    if !path.starts_with('/') || path.ends_with('/') || path.len() > SOCKET_PATH {
        return Err(format!(
            "is \"unix:{path}\", expected \"unix:\" and an absolute path of at most {SOCKET_PATH} bytes"
        ));
    }
    Ok(Listen::Unix(PathBuf::from(path)))
}

/// Reads one listener's address or a list of them. `or` is a text with alternatives, for the error
/// about an empty list.
pub(super) fn listeners(
    value: &Value,
    at: &Cursor<'_>,
    or: &str,
    listen: impl Fn(&str) -> Result<Listen, String>,
) -> Option<Vec<Listen>> {
    let Some(items) = value.as_array() else {
        let text = at.expect(value.as_str(), value, "text in quotes, or a list of such")?;
        return at.accept(listen(text)).map(|listen| vec![listen]);
    };
    if items.is_empty() {
        at.problem(format!("is an empty list, expected at least one address{or}"));
    }
    let texts = Vec::<String>::read(value, at)?;
    let read = |(index, text): (usize, &String)| at.item(index).accept(listen(text));
    Some(texts.iter().enumerate().filter_map(read).collect())
}

/// Returns true for a name usable in keys and environment variables.
pub(super) fn is_snake_case(name: &str) -> bool {
    let word =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.split('_').all(word) && name.len() <= 63
}

/// The longest path of a Unix socket, in bytes. It is less than the 107 of `sockaddr_un`, because
/// the socket first gets a longer, temporary name.
const SOCKET_PATH: usize = 100;
