//! Request heads for a forward proxy: CONNECT, and requests with a whole URL. A host and port can be
//! spelled in many ways; a head with two different ones is refused.

use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use subtle::ConstantTimeEq;

use super::directory::Inside;
use super::reason::{EgressRefusal, Why};
use super::target::{Host, Origin};
use crate::clients;
use crate::proxy::guard::request::{Violation, drops_protected, is_cut, is_too_long};

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
    let is_connect = *request.method() == Method::CONNECT;
    let bytes = || headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
    if is_connect && bytes() > LONGEST_CONNECT {
        let text = "the head of the CONNECT request is longer than 64 KiB";
        return Err(malformed(text).with(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
    }
    if *request.method() == Method::TRACE || (is_connect && inside.is_some()) {
        let text = "CONNECT must be the first request of its connection, and TRACE is not allowed";
        return Err(malformed(text).with(StatusCode::METHOD_NOT_ALLOWED));
    }
    let origin = match (uri.scheme(), uri.authority(), inside) {
        (None, Some(authority), None) if is_connect => read(authority.as_str(), None)?,
        _ if is_connect => return Err(malformed("the target of CONNECT must be a host and a port")),
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

/// Returns the client's User-Agent, for the log and the status.
pub(super) fn agent(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    let visible = agent.iter().filter(|byte| byte.is_ascii_graphic() || **byte == b' ');
    visible.take(LONGEST_AGENT).map(|byte| char::from(*byte)).collect()
}

/// Returns true if the token was sent once, as a bearer token or as the password of a login.
pub(super) fn shows(token: &str, shown: &[&[u8]]) -> bool {
    clients::to_proxy(shown).is_ok_and(|shown| shown.as_bytes().ct_eq(token.as_bytes()).into())
}

/// Returns the values of `Proxy-Authorization`.
pub(super) fn shown(headers: &HeaderMap) -> Vec<&[u8]> {
    headers.get_all(header::PROXY_AUTHORIZATION).iter().map(HeaderValue::as_bytes).collect()
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
const LONGEST_CONNECT: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// Reads a CONNECT with these headers.
    fn connect(target: &str, headers: &[(&str, &str)]) -> Result<String, StatusCode> {
        let request = Request::connect(target);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let origin = plain(&request.body(()).expect("hyper takes it"), None);
        origin.map(|origin| origin.to_string()).map_err(|refused| refused.response().status())
    }

    #[test]
    fn every_client_s_connect_is_read() {
        for (target, headers) in [
            ("h.example:443", &[][..]),
            ("h.example:443", &[("host", "h.example:443"), ("user-agent", "Go-http-client/1.1")]),
            ("h.example:443", &[("proxy-connection", "keep-alive"), ("host", "h.example"), ("connection", "close")]),
            ("H.example.:443", &[("host", "h.EXAMPLE:443"), ("accept", "*/*"), ("content-length", "0")]),
        ] {
            assert_eq!(connect(target, headers).as_deref(), Ok("h.example:443"), "{target} {headers:?}");
        }
    }

    #[test]
    fn a_connect_that_means_two_things_is_refused() {
        for (target, headers) in [
            ("h.example:443", &[("host", "other.example:443")][..]),
            ("h.example:443", &[("host", "h.example:80")]),
            ("h.example:443", &[("host", "h.example"), ("host", "h.example")]),
            ("http://h.example/", &[]),
            ("/h.example:443", &[]),
            ("u:p@h.example:443", &[]),
            ("h.example", &[]),
        ] {
            assert_eq!(connect(target, headers), Err(StatusCode::BAD_REQUEST), "{target} {headers:?}");
        }
        let long = "x".repeat(LONGEST_CONNECT);
        let refused = connect("h.example:443", &[("user-agent", &long)]);
        assert_eq!(refused, Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
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
