//! Request heads for a forward proxy: CONNECT, and requests with a whole URL.
//!
//! The guard scans every line first. A host and port can be spelled in many ways; a head with two
//! different ones is refused.

use http::uri::Scheme;
use http::{HeaderMap, Method, Request, StatusCode, header};
use subtle::ConstantTimeEq;

use super::directory::Inside;
use super::reason::{EgressRefusal, Why};
use super::target::{Host, Origin, TargetError};
use crate::clients;
use crate::proxy::guard::request::{Violation, drops_protected, is_cut, is_too_long};
use crate::proxy::guard::scan::{Rest, Scanner};

/// A client's CONNECT; it asks for a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Connect {
    pub(super) origin: Origin,
    /// The values of `Proxy-Authorization`.
    pub(super) shown: Vec<Vec<u8>>,
    /// The client's User-Agent.
    pub(super) agent: String,
}

/// The state of reading the head of a CONNECT.
#[derive(Default)]
pub(super) struct ConnectHead {
    scanner: Scanner,
    /// The number of bytes scanned so far.
    scanned: usize,
}

// === impl ConnectHead ===

impl ConnectHead {
    /// Reads further. Returns the length of the head once it is complete, and `None` if more must
    /// come.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Option<usize>, EgressRefusal> {
        let end = memchr::memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4);
        let lines = end.or_else(|| memchr::memrchr(b'\n', bytes).map(|at| at + 1)).unwrap_or_default();
        let new = bytes.get(self.scanned..lines).unwrap_or_default();
        match self.scanner.scan(new).rest {
            Rest::Refused(fault) => return Err(malformed(fault.to_string())),
            // Characters that must be encoded are not in a name.
            Rest::Replaced(_) => return Err(malformed(TargetError::Name.to_string())),
            Rest::None | Rest::Held => {}
        }
        // A name is ASCII (RFC 3986, 3.2.2), even before the end of its line.
        let line = memchr::memchr(b'\n', bytes).unwrap_or(bytes.len());
        if !bytes.get(..line).unwrap_or_default().is_ascii() {
            return Err(malformed(TargetError::Name.to_string()));
        }
        self.scanned += new.len();
        if end.is_none() && bytes.len() > LONGEST_HEAD {
            let too_long = malformed("the head of the CONNECT request is longer than 64 KiB");
            return Err(too_long.with(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        }
        // A body, or another protocol, would be in the way of the tunnel.
        if end.is_some() && !self.scanner.is_between_requests() {
            return Err(malformed("the CONNECT request has a body; expected none"));
        }
        Ok(end)
    }
}

/// Reads the head of a CONNECT in pieces of this length. Returns its host and port and its length,
/// or `None` if more must come.
///
/// # Errors
/// Says why the head is refused.
pub fn connect_in(bytes: &[u8], piece: usize) -> Result<Option<(Origin, usize)>, String> {
    let mut reading = ConnectHead::default();
    for come in (0..=bytes.len()).step_by(piece.max(1)).chain([bytes.len()]) {
        let end = reading.read(bytes.get(..come).unwrap_or_default()).map_err(|refused| refused.to_string())?;
        if let Some(end) = end {
            let head = bytes.get(..end).unwrap_or_default();
            return connect(head).map(|head| Some((head.origin, end))).map_err(|refused| refused.to_string());
        }
    }
    Ok(None)
}

/// Parses the complete head of a CONNECT.
pub(super) fn connect(head: &[u8]) -> Result<Connect, EgressRefusal> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let target = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let origin = read(target, None)?;
    let fields = || lines.clone().filter_map(|line| line.split_once(':'));
    let named = |name: &'static str| {
        fields().filter(move |(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    };
    let mut hosts = named("host");
    if let Some(host) = hosts.next() {
        same(host, &origin)?;
    }
    if hosts.next().is_some() {
        return Err(malformed("the request has several Host headers; expected one"));
    }
    let shown = named("proxy-authorization").map(|value| value.as_bytes().to_vec()).collect();
    let agent = named("user-agent").next().unwrap_or_default();
    let agent = agent.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(LONGEST_AGENT).collect();
    Ok(Connect { origin, shown, agent })
}

/// Checks a request to the proxy, and returns its host and port. Inside a tunnel its target is a
/// path, and it must be for the tunnel's host.
pub(super) fn plain<B>(request: &Request<B>, inside: Option<&Inside>) -> Result<Origin, EgressRefusal> {
    let uri = request.uri();
    let headers = request.headers();
    let is_tls = inside.is_some_and(|inside| inside.is_tls);
    if is_cut(request) {
        return Err(malformed(Violation::HeadSize.to_string()).with(Violation::HeadSize.status()));
    }
    if is_too_long(request) {
        return Err(malformed(Violation::TargetLength.to_string()).with(StatusCode::URI_TOO_LONG));
    }
    if [Method::CONNECT, Method::TRACE].contains(request.method()) {
        let text = "CONNECT must be the first request of its connection, and TRACE is not allowed";
        return Err(malformed(text).with(StatusCode::METHOD_NOT_ALLOWED));
    }
    let origin = match (uri.scheme(), uri.authority(), inside) {
        (None, None, Some(inside)) => inside.origin.clone(),
        (Some(scheme), Some(authority), Some(inside)) if is_tls && *scheme == Scheme::HTTPS => {
            same(authority.as_str(), &inside.origin)
                .map_err(|refused| refused.with(StatusCode::MISDIRECTED_REQUEST))?;
            inside.origin.clone()
        }
        (Some(scheme), Some(authority), None) if *scheme == Scheme::HTTP => read(authority.as_str(), Some(80))?,
        (Some(_), _, None) => {
            return Err(malformed("the target is not an http:// URL; for https use CONNECT"));
        }
        (None, None, None) => {
            return Err(EgressRefusal::new(
                Why::Direct,
                "this is a forward proxy, not a server; set it in HTTPS_PROXY or HTTP_PROXY",
            ));
        }
        _ => return Err(malformed("the request's target is not a URL")),
    };
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => same(host.to_str().unwrap_or_default(), &origin)
            .map_err(|refused| if is_tls { refused.with(StatusCode::MISDIRECTED_REQUEST) } else { refused })?,
        (None, None) if inside.is_none() || (is_tls && uri.authority().is_some()) => {}
        _ => return Err(malformed("the request has no Host header, or several; expected one")),
    }
    if headers.contains_key("sec-fetch-site") && !is_tls {
        return Err(EgressRefusal::new(Why::Browser, "a page in a browser may not call through this proxy"));
    }
    if drops_protected(headers) {
        return Err(malformed(Violation::Connection.to_string()));
    }
    Ok(origin)
}

/// Checks a request redirected here by a hosts file, and returns its host and port.
pub(super) fn named<B>(request: &Request<B>) -> Result<Origin, EgressRefusal> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let origin = read(host, Some(80))?;
    plain(request, Some(&Inside { origin, is_tls: false }))
}

/// Returns true if the token was sent once, as a bearer token or as the password of a login.
pub(super) fn shows(token: &str, shown: &[&[u8]]) -> bool {
    clients::to_proxy(shown).is_ok_and(|shown| shown.as_bytes().ct_eq(token.as_bytes()).into())
}

/// Returns the values of `Proxy-Authorization`.
pub(super) fn shown(headers: &HeaderMap) -> Vec<&[u8]> {
    headers.get_all(header::PROXY_AUTHORIZATION).iter().map(header::HeaderValue::as_bytes).collect()
}

fn read(target: &str, usual: Option<u16>) -> Result<Origin, EgressRefusal> {
    Origin::read(target, usual).map_err(|error| malformed(error.to_string()))
}

/// Checks that a Host header means the same host and port, in any spelling.
fn same(host: &str, origin: &Origin) -> Result<(), EgressRefusal> {
    if matches!(&origin.host, Host::Name(name) if **name == *host) {
        return Ok(()); // the spelling of nearly all calls
    }
    // Some clients leave the port of a CONNECT out of Host.
    let named = Origin::read(host, Some(origin.port)).ok();
    let is_same = named.is_some_and(|named| named == *origin);
    if is_same { Ok(()) } else { Err(malformed("the Host header and the request's target name different hosts")) }
}

fn malformed(text: impl Into<String>) -> EgressRefusal {
    EgressRefusal::new(Why::Malformed, text)
}

const LONGEST_AGENT: usize = 80;
/// The longest head of a CONNECT: far more than any client sends.
const LONGEST_HEAD: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// Reads a head in pieces of this length.
    fn head(text: &str, piece: usize) -> Result<String, String> {
        let (origin, end) = connect_in(text.as_bytes(), piece)?.ok_or("more must come")?;
        Ok(format!("{origin} {}", text.get(end..).expect("whole characters")))
    }

    #[test]
    fn every_client_s_connect_is_read() {
        for text in [
            "CONNECT h.example:443 HTTP/1.0\r\n\r\n",
            "CONNECT h.example:443 HTTP/1.1\r\nHost: h.example:443\r\nUser-Agent: Go-http-client/1.1\r\n\r\n",
            "CONNECT h.example:443 HTTP/1.1\r\nProxy-Connection: keep-alive\r\nHost: h.example\r\nConnection: close\r\n\r\n",
            "CONNECT H.example.:443 HTTP/1.1\r\nHost: h.EXAMPLE:443\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n",
        ] {
            for piece in [1, 7, 1000] {
                assert_eq!(head(text, piece).as_deref(), Ok("h.example:443 "), "{text}");
            }
        }
        let early = "CONNECT h.example:443 HTTP/1.1\r\n\r\n\u{16}hello";
        assert_eq!(head(early, 1000).as_deref(), Ok("h.example:443 \u{16}hello"));
    }

    #[test]
    fn a_target_with_other_characters_than_a_name_s_is_refused_as_such() {
        for target in ["h<.example:443", "h.\u{e9}xample:443", "h\"example:443"] {
            for piece in [1, 7, 1000] {
                let text = format!("CONNECT {target} HTTP/1.1\r\nHost: h.example:443\r\n\r\n");
                assert_eq!(
                    head(&text, piece),
                    Err("the host in the request's target is not a valid name".to_owned()),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_byte_that_no_name_has_is_refused_before_its_line_ends_however_it_is_cut() {
        for target in [&b"h.\xc3\xa9xample"[..], b"h.\xc3", b"h\xff", b"\x01\0\0+\xd0\xb5"] {
            let bytes = [b"CONNECT ", target].concat();
            for piece in 1..=bytes.len() {
                let expected = Err("the host in the request's target is not a valid name".to_owned());
                assert_eq!(connect_in(&bytes, piece), expected, "{:?} in {piece}", bytes.escape_ascii().to_string());
            }
        }
        // Other fields than the target may have them.
        let text = "CONNECT h.example:443 HTTP/1.1\r\nUser-Agent: \u{e9}\r\n\r\n";
        for piece in 1..=text.len() {
            assert_eq!(head(text, piece).as_deref(), Ok("h.example:443 "), "{piece}");
        }
    }

    #[test]
    fn a_connect_that_means_two_things_is_refused() {
        for text in [
            "CONNECT h.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n",
            "CONNECT h.example:443 HTTP/1.1\r\nHost: h.example:80\r\n\r\n",
            "CONNECT h.example:443 HTTP/1.1\r\nHost: h.example\r\nHost: h.example\r\n\r\n",
            "CONNECT h.example:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
            "CONNECT h.example:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "CONNECT h.example:443 HTTP/1.1\nHost: h.example\n\n",
            "CONNECT h.example:443 HTTP/1.1\r\n Host: h.example\r\n\r\n",
            "CONNECT  h.example:443 HTTP/1.1\r\n\r\n",
            "CONNECT h.example:443\r\n\r\n",
            "CONNECT http://h.example/ HTTP/1.1\r\n\r\n",
            "CONNECT u:p@h.example:443 HTTP/1.1\r\n\r\n",
            "CONNECT h.example HTTP/1.1\r\n\r\n",
        ] {
            for piece in [1, 1000] {
                assert!(head(text, piece).is_err_and(|error| error != "more must come"), "{text}");
            }
        }
    }

    #[test]
    fn a_head_that_does_not_end_is_refused_for_its_length() {
        let head = format!("CONNECT h.example:443 HTTP/1.1\r\nUser-Agent: {}", "x".repeat(LONGEST_HEAD));
        let refused = ConnectHead::default().read(head.as_bytes()).expect_err("it is too long");
        assert_eq!(refused.response().status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }

    #[test]
    fn the_token_is_a_password_or_a_bearer_s() {
        let basic = |login: &str| format!("Basic {}", STANDARD.encode(login));
        for (shown, expected) in [
            (basic("anyone:secret"), true),
            (basic(":secret"), true),
            (basic("anyone:secret2"), false),
            (basic("secret"), false),
            ("Bearer secret".to_owned(), true),
            ("bearer secret ".to_owned(), true),
            ("secret".to_owned(), false),
            ("Basic \u{1}".to_owned(), false),
        ] {
            assert_eq!(shows("secret", &[shown.as_bytes()]), expected, "{shown}");
        }
        assert!(!shows("secret", &[]) && !shows("secret", &[b"Bearer secret", b"Bearer secret"]));
    }
}
