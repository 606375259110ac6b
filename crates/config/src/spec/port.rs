//! Checks the port in a URL.

use http::uri::Authority;

/// Returns true if a URL's authority has no port, or one from 1 to 65535.
///
/// URL parsing does not check ports. A wrong one would count as absent, and the gate would connect
/// to the scheme's default port.
pub fn has_valid_port(authority: &Authority) -> bool {
    let is_bare = authority.as_str().rsplit('@').next() == Some(authority.host());
    let port = authority.port();
    is_bare || port.is_some_and(|port| port.as_u16() > 0 && port.as_str().bytes().all(|byte| byte.is_ascii_digit()))
}
