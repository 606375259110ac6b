//! Whether what stands behind the host of a URL is a port.

use http::uri::Authority;

/// True if nothing stands behind the host of an authority, or a port from 1 to 65535. Reading a URL
/// checks no port: it would pass for one without, and the scheme's port be dialled.
pub fn has_valid_port(authority: &Authority) -> bool {
    let is_bare = authority.as_str().rsplit('@').next() == Some(authority.host());
    let port = authority.port();
    is_bare || port.is_some_and(|port| port.as_u16() > 0 && port.as_str().bytes().all(|byte| byte.is_ascii_digit()))
}
