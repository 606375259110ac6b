//! The guard's second half: checks the requests that hyper has parsed.
//!
//! Before anything is read, counted or sent, it refuses three kinds of requests: those a web page
//! made a browser send (DNS rebinding, cross-site requests), those meant for a forward proxy
//! (CONNECT, absolute targets), and those with protected headers removed on the way (`Connection:
//! Authorization`).

use std::net::IpAddr;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header};

use super::scan::{CUT, LONGEST_TARGET};
use crate::proxy::hosts::Hosts;
use crate::upstream::tokens;

sentences! {
    /// Why the guard refused a request.
    pub(crate) enum Violation {
        /// The `Connection` header names a header that must not be removed.
        Connection = "connection": "the request's Connection header names a header that must not be removed",
        /// The head has more bytes or lines than are accepted.
        HeadSize = "head_size": "the request's head has more than 1 MiB or more than 24,000 lines",
        /// The client uses the gate as a forward proxy.
        Connect = "connect": "this gate is a reverse proxy and does not take CONNECT",
        /// A web page of another site made the request.
        CrossSite = "cross_site": "a page of another site may not call this gate",
        /// The request is addressed to a name that is not this gate's.
        Host = "host": "the request's Host is not a name of this gate; add it to allowed_hosts if it should be",
        /// The request has no Host, more than one, or two different ones.
        HostCount = "host_count": "the request has no Host header, or several; expected one",
        /// The target is not a path.
        Target = "target": "the request target must be a path",
        /// The target is longer than can be forwarded.
        TargetLength = "target": "the request target is longer than 65,500 bytes minus the length of the upstream's base path",
    }
}

// === impl Violation ===

impl Violation {
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::Connect => StatusCode::METHOD_NOT_ALLOWED,
            Self::Connection | Self::HostCount | Self::Target => StatusCode::BAD_REQUEST,
            Self::CrossSite => StatusCode::FORBIDDEN,
            Self::HeadSize => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::TargetLength => StatusCode::URI_TOO_LONG,
        }
    }
}

/// Refuses malformed requests, and requests for another server.
pub(crate) fn check<B>(request: &Request<B>, hosts: &Hosts, local: Option<IpAddr>) -> Result<(), Violation> {
    // Before the rest: of a head or a target that is too long only the beginning is here.
    if is_cut(request) {
        return Err(Violation::HeadSize);
    }
    if target_length(request) > LONGEST_TARGET.saturating_sub(hosts.base_path) {
        return Err(Violation::TargetLength);
    }
    if request.method() == Method::CONNECT {
        return Err(Violation::Connect);
    }
    target(request)?;
    host(request, hosts, local)?;
    // One look at each of few names costs less than a search for each of these.
    let is_checked = |name: &HeaderName| [&header::ORIGIN, &header::CONNECTION, &SEC_FETCH_SITE].contains(&name);
    if request.headers().keys().any(is_checked) {
        site(request.headers(), hosts, local)?;
        if drops_protected(request.headers()) {
            return Err(Violation::Connection);
        }
    }
    Ok(())
}

/// Returns true if a request's head was cut because it is too large.
pub(crate) fn is_cut<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(&CUT)
}

/// Returns true if a target is longer than can be forwarded.
pub(crate) fn is_too_long<B>(request: &Request<B>) -> bool {
    target_length(request) > LONGEST_TARGET
}

/// Returns true if `Connection` names a protected header, and so demands its removal.
pub(crate) fn drops_protected(headers: &HeaderMap) -> bool {
    tokens(headers, &header::CONNECTION).any(is_protected)
}

/// Returns the length of the target as it came: HTTP/2 has scheme and authority in fields of their
/// own.
fn target_length<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    if request.version() == Version::HTTP_2 {
        return path;
    }
    let scheme = uri.scheme().map_or(0, |scheme| scheme.as_str().len() + "://".len());
    scheme + uri.authority().map_or(0, |authority| authority.as_str().len()) + path
}

/// Checks the target: it must be a path, or `*` for OPTIONS. An authority before it is checked like
/// Host and never connected to.
fn target<B>(request: &Request<B>) -> Result<(), Violation> {
    let method = request.method();
    let uri = request.uri();
    let authority_form = uri.scheme().is_none() && uri.authority().is_some();
    // `http::Uri` takes `1http` for a scheme too
    let is_http = uri.scheme().is_none_or(|scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme));
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    // An absolute target may have a query and no path (RFC 9112, 3.2.2), the `:path` of HTTP/2 may
    // not.
    let is_bare_query = path.starts_with('?') && uri.scheme().is_some() && request.version() != Version::HTTP_2;
    let is_path = path.starts_with('/') || is_bare_query || (path == "*" && method == Method::OPTIONS);
    if authority_form || !is_http || !is_path { Err(Violation::Target) } else { Ok(()) }
}

/// Checks the Host header: there must be exactly one, and it must name this gate.
fn host<B>(request: &Request<B>, hosts: &Hosts, local: Option<IpAddr>) -> Result<(), Violation> {
    let mut fields = request.headers().get_all(header::HOST).iter();
    let named: Option<Authority> = match (fields.next(), fields.next()) {
        (Some(field), None) => Some(field.as_bytes().try_into().map_err(|_| Violation::Host)?),
        (None, None) if request.version() == Version::HTTP_2 => None,
        _ => return Err(Violation::HostCount),
    };
    let target = request.uri().authority();
    let has_user = |authority: &Authority| authority.as_str().contains('@');
    if !named.iter().chain(target).all(|authority| hosts.allow(authority, local) && !has_user(authority)) {
        return Err(Violation::Host);
    }
    match (&named, target) {
        (None, None) => Err(Violation::HostCount),
        // Two names, though both are ours: readers do not agree on which one counts (RFC 9112,
        // 3.2.2, and what servers do).
        (Some(named), Some(target)) if named != target => Err(Violation::HostCount),
        _ => Ok(()),
    }
}

/// Refuses requests made by web pages of other sites. Clients other than browsers send none of
/// these headers, or this gate's own name.
fn site(headers: &HeaderMap, hosts: &Hosts, local: Option<IpAddr>) -> Result<(), Violation> {
    let cross_site = headers.get_all(&SEC_FETCH_SITE).iter().any(|site| site == "cross-site");
    let own = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        origin.as_ref().and_then(Uri::authority).is_some_and(|authority| hosts.allow(authority, local))
    };
    if cross_site || !headers.get_all(header::ORIGIN).iter().all(own) {
        return Err(Violation::CrossSite);
    }
    Ok(())
}

/// Returns true for headers that must not be removed: they say who calls, what is sent or where it
/// goes.
fn is_protected(token: &[u8]) -> bool {
    let begins =
        |prefix: &&str| token.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()));
    PROTECTED.iter().any(|name| token.eq_ignore_ascii_case(name.as_bytes())) || PROTECTED_PREFIXES.iter().any(begins)
}

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const PROTECTED: &[&str] = &["authorization", "content-length", "content-type", "cookie", "host"];
const PROTECTED_PREFIXES: &[&str] = &["impersonate-", "sec-websocket-", "x-remote-"];

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a request written as a line and headers.
    fn verdict(text: &str) -> Result<(), Violation> {
        let mut lines = text.lines();
        let mut words = lines.next().unwrap().split(' ');
        let mut request = Request::builder().method(words.next().unwrap()).uri(words.next().unwrap());
        for line in lines {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let hosts = Hosts::new(["Gate.Example", "kubernetes.default.svc"], "");
        check(&request.body(()).unwrap(), &hosts, Some([10, 1, 2, 3].into()))
    }

    #[test]
    fn the_gates_own_names_are_let_in_with_any_port() {
        for host in ["localhost", "LOCALHOST:8001", "127.0.0.1:80", "[::1]:8001", "gate.example", "10.1.2.3:8001"] {
            assert_eq!(verdict(&format!("GET /api\nHost: {host}")), Ok(()), "{host}");
        }
    }

    #[test]
    fn other_names_are_misdirected() {
        for host in
            ["evil.test:8001", "10.1.2.4", "127.0.0.1.evil.test", "localhost.evil.test", "me@localhost", "[::2]"]
        {
            assert_eq!(verdict(&format!("GET /api\nHost: {host}")), Err(Violation::Host), "{host}");
        }
    }

    #[test]
    fn one_host_no_more_no_less() {
        assert_eq!(verdict("GET /api"), Err(Violation::HostCount));
        assert_eq!(verdict("GET /api\nHost: localhost\nHost: localhost"), Err(Violation::HostCount));
    }

    #[test]
    fn targets_that_are_no_path_are_not_followed() {
        assert_eq!(verdict("GET http://169.254.169.254/latest\nHost: localhost"), Err(Violation::Host));
        assert_eq!(verdict("GET http://localhost/api\nHost: localhost"), Ok(()));
        assert_eq!(verdict("GET http://localhost/api\nHost: 127.0.0.1"), Err(Violation::HostCount));
        assert_eq!(verdict("GET localhost:80\nHost: localhost"), Err(Violation::Target));
        assert_eq!(verdict("GET 1http://localhost/api\nHost: localhost"), Err(Violation::Target));
        assert_eq!(verdict("GET foo\nHost: localhost"), Err(Violation::Target));
        assert_eq!(verdict("GET http://localhost?a=b\nHost: localhost"), Ok(()));
        assert_eq!(verdict("CONNECT a:443\nHost: localhost"), Err(Violation::Connect));
        assert_eq!(verdict("OPTIONS *\nHost: localhost"), Ok(()));
        assert_eq!(verdict("GET *\nHost: localhost"), Err(Violation::Target));
    }

    #[test]
    fn over_http2_a_target_without_a_path_is_none() {
        for (path, expected) in [("/", Ok(())), ("/?a=b", Ok(())), ("?a=b", Err(Violation::Target))] {
            let uri = Uri::builder().scheme("http").authority("localhost").path_and_query(path).build().unwrap();
            let request = Request::builder().version(Version::HTTP_2).uri(uri).body(()).unwrap();
            assert_eq!(check(&request, &Hosts::new([""; 0], ""), None), expected, "{path}");
        }
    }

    #[test]
    fn pages_of_other_sites_are_turned_away() {
        let from = |field: &str| verdict(&format!("POST /api\nHost: localhost\n{field}"));
        assert_eq!(from("Origin: https://evil.test"), Err(Violation::CrossSite));
        assert_eq!(from("Origin: null"), Err(Violation::CrossSite));
        assert_eq!(from("Sec-Fetch-Site: cross-site"), Err(Violation::CrossSite));
        assert_eq!(from("Origin: http://127.0.0.1:8001"), Ok(()));
        assert_eq!(from("Sec-Fetch-Site: same-origin"), Ok(()));
    }

    #[test]
    fn no_field_that_matters_can_be_dropped_by_name() {
        let named =
            |tokens: &str| verdict(&format!("GET /api\nHost: localhost\nConnection: close\nConnection: {tokens}"));
        for tokens in ["Impersonate-User", "x, AUTHORIZATION", "impersonate-extra-scopes", "X-Remote-Group ,y", "host"]
        {
            assert_eq!(named(tokens), Err(Violation::Connection), "{tokens}");
        }
        assert_eq!(named("keep-alive, Upgrade, X-Own"), Ok(()));
    }
}
