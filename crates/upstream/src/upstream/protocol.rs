//! Protocols a request can switch to.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderName, Version, request};

/// A protocol for a request to switch to.
///
/// The gate never requests any other from the upstream, above all not `h2c`: Java's client offers
/// that with every first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// SPDY, used by kubectl until 1.30, and later if WebSockets fail.
    Spdy,
    /// WebSocket (RFC 6455).
    WebSocket,
}

impl Protocol {
    /// Returns the protocol requested by a client, if it is a single one and supported.
    pub fn asked(parts: &request::Parts) -> Option<Self> {
        let asks = tokens(&parts.headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
        if asks && parts.version == Version::HTTP_11 { Self::named(&parts.headers) } else { None }
    }

    /// Returns the protocol in the Upgrade header, if it is a single one and supported.
    pub(super) fn named(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(UPGRADE).iter();
        let (Some(line), None) = (lines.next(), lines.next()) else { return None };
        let name = line.as_bytes().trim_ascii();
        let known = [(&b"websocket"[..], Self::WebSocket), (b"spdy/3.1", Self::Spdy)];
        known.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known)).map(|(_, protocol)| protocol)
    }
}

/// Returns the elements of a comma-separated header, from all of its lines.
pub fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn only_one_protocol_of_the_two_is_asked_for() {
        let asked = |version, fields: &[(&str, &str)]| {
            let request = Request::get("/").version(version);
            let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            Protocol::asked(&request.body(()).expect("valid").into_parts().0)
        };
        let http11 = Version::HTTP_11;
        for (connection, upgrade, protocol) in [
            ("Upgrade", "websocket", Some(Protocol::WebSocket)),
            ("keep-alive, upgrade", "WebSocket", Some(Protocol::WebSocket)),
            ("Upgrade", "SPDY/3.1", Some(Protocol::Spdy)),
            ("Upgrade, HTTP2-Settings", "h2c", None),
            ("Upgrade", "TLS/1.2", None),
            ("Upgrade", "websocket, h2c", None),
            ("keep-alive", "websocket", None),
            ("xupgrade", "websocket", None),
        ] {
            assert_eq!(
                asked(http11, &[("connection", connection), ("upgrade", upgrade)]),
                protocol,
                "{connection} {upgrade}"
            );
        }
        let lines = [("connection", "a"), ("connection", "Upgrade"), ("upgrade", "websocket")];
        assert_eq!(asked(http11, &lines), Some(Protocol::WebSocket));
        assert_eq!(asked(Version::HTTP_10, &lines), None);
        let twice = [("connection", "Upgrade"), ("upgrade", "websocket"), ("upgrade", "SPDY/3.1")];
        assert_eq!(asked(http11, &twice), None);
    }
}
