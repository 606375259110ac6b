//! Whether what stands behind the host of a URL is a port.

use http::uri::Authority;

/// True if nothing stands behind the host of an authority, or a port from 1 to 65535. Reading a URL
/// checks no port: it would pass for one without, and the scheme's port be dialled.
pub fn has_valid_port(authority: &Authority) -> bool {
    let text = authority.as_str();
    let behind = text.rsplit_once('@').map_or(text, |(_, rest)| rest).strip_prefix(authority.host());
    match behind {
        Some("") => true,
        Some(behind) => behind.strip_prefix(':').is_some_and(is_port),
        None => false,
    }
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}
