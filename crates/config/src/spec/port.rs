//! Checks that what follows the host in a URL is a port.

use http::uri::Authority;

/// Returns true if nothing follows the host, or a port from 1 to 65535. URL parsing does not check
/// ports: a bad one would pass as absent, and the scheme's port be connected to.
pub fn has_valid_port(authority: &Authority) -> bool {
    let is_bare = authority.as_str().rsplit('@').next() == Some(authority.host());
    let port = authority.port();
    is_bare || port.is_some_and(|port| port.as_u16() > 0 && port.as_str().bytes().all(|byte| byte.is_ascii_digit()))
}
