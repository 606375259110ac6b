//! Prepares request heads for the upstream, and response heads for the client.
//!
//! Removes hop-by-hop fields, sets the authority, and prepends the base path. Everything else is
//! unchanged byte for byte, above all path and query. RBAC names contain `:` and `%3A`, and proxied
//! paths `..` and `//`, and only the API server knows their meaning.

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, PathAndQuery};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, Version, request};

use super::body::AttemptBody;
use super::protocol::{Protocol, tokens};
use super::{Host, Target};

/// A request head for the upstream. It can be sent in either HTTP version, and several times.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    /// hyper's record of the case of field names.
    extensions: Extensions,
    target: PathAndQuery,
    authority: Authority,
    /// The value of Host for HTTP/1.1.
    host: HeaderValue,
    /// True if the request came by HTTP/2, where each cookie may be in a header of its own.
    splits_cookies: bool,
}

/// Why a request cannot be sent to this upstream.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidRequest {
    #[error(
        "the request target, with the upstream's base path before it, is not valid ({0}); is it longer than 64 KiB?"
    )]
    Target(#[from] http::uri::InvalidUri),
    #[error("the request's Host header is not a valid host and port ({0})")]
    Authority(http::uri::InvalidUri),
}

impl Head {
    /// Converts the head of a client's request. Keeps the headers for an `upgrade`.
    pub(super) fn new(
        mut parts: request::Parts,
        target: &Target,
        host: &Host,
        upgrade: Option<Protocol>,
    ) -> Result<Self, InvalidRequest> {
        let path = join(&target.base_path, parts.uri.path_and_query())?;
        let (authority, host) = authority(&parts, target, host)?;
        let asked = upgrade.and_then(|_| parts.headers.get(UPGRADE).cloned());
        strip_hop_by_hop(&mut parts.headers);
        if let Some(protocol) = asked {
            switching(&mut parts.headers, protocol);
        }
        let splits_cookies = parts.version == Version::HTTP_2;
        let request::Parts { method, headers, extensions, .. } = parts;
        Ok(Self { method, headers, extensions, target: path, authority, host, splits_cookies })
    }

    /// Returns true if the client declared its body's length.
    pub(super) fn declares_length(&self) -> bool {
        self.headers.contains_key(CONTENT_LENGTH)
    }

    /// Creates an HTTP/1.1 request. Its target is a path, it has a Host header, and its body is
    /// chunked if the client declared no length.
    pub(super) fn http1<S>(&self, body: AttemptBody<S>) -> Request<AttemptBody<S>> {
        let is_chunked = !body.is_absent() && !self.declares_length();
        let mut request = self.request(Uri::from(self.target.clone()), Version::HTTP_11, body);
        request.headers_mut().insert(HOST, self.host.clone());
        if self.splits_cookies {
            join_cookies(request.headers_mut());
        }
        if is_chunked {
            // said outright: left to itself hyper drops the body of a GET that declares no length
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        request
    }

    /// Creates an HTTP/2 request, with the authority in its target.
    pub(super) fn http2<S>(&self, body: AttemptBody<S>) -> Request<AttemptBody<S>> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(http::uri::Scheme::HTTPS);
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(self.target.clone());
        // all three are there, so it cannot fail; were it to, the upstream refuses the empty
        // authority
        let mut request = self.request(Uri::from_parts(uri).unwrap_or_default(), Version::HTTP_2, body);
        request.headers_mut().remove(HOST);
        request
    }

    /// Creates a request with a copy of this head, for one attempt.
    fn request<B>(&self, uri: Uri, version: Version, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.version_mut() = version;
        *request.headers_mut() = self.headers.clone();
        *request.extensions_mut() = self.extensions.clone();
        request
    }
}

/// Adapts a response to the client's connection: removes hop-by-hop headers. The server frames the
/// body anew, in the client's HTTP version.
pub(super) fn answer<B>(response: &mut Response<B>) {
    strip_hop_by_hop(response.headers_mut());
    join_lengths(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
}

/// Adapts the response head of a protocol switch to the client's connection.
pub(super) fn switched(response: &mut Response<()>) {
    let protocol = response.headers().get(UPGRADE).cloned();
    answer(response);
    response.headers_mut().remove(CONTENT_LENGTH); // what follows is no body
    if let Some(protocol) = protocol {
        switching(response.headers_mut(), protocol);
    }
}

fn switching(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Returns the base path followed by the client's own path and query, both unchanged.
fn join(base: &str, path: Option<&PathAndQuery>) -> Result<PathAndQuery, http::uri::InvalidUri> {
    let Some(path) = path else { return PathAndQuery::try_from(if base.is_empty() { "/" } else { base }) };
    let has_path = path.as_str().starts_with('/');
    if path.as_str() == "*" || (base.is_empty() && has_path) {
        return Ok(path.clone());
    }
    let mut joined = Vec::with_capacity(base.len() + path.as_str().len());
    joined.extend_from_slice(base.as_bytes());
    if !has_path {
        joined.push(b'/'); // `?query` alone is a legal path and query
    }
    joined.extend_from_slice(path.as_str().as_bytes());
    PathAndQuery::from_maybe_shared(Bytes::from(joined))
}

/// Returns the authority for the upstream, as `:authority` and as a Host header.
fn authority(parts: &request::Parts, target: &Target, host: &Host) -> Result<(Authority, HeaderValue), InvalidRequest> {
    let clients = || {
        let of_uri = parts.uri.authority().map(|authority| HeaderValue::from_str(authority.as_str()));
        parts.headers.get(HOST).cloned().or_else(|| of_uri.and_then(Result::ok))
    };
    let value = match host {
        Host::Rewrite => None,
        Host::Preserve => clients(),
        Host::Literal(value) => Some(value.clone()),
    };
    let Some(value) = value else {
        let value = HeaderValue::from_str(target.authority.as_str());
        return Ok((target.authority.clone(), value.unwrap_or_else(|_| HeaderValue::from_static(""))));
    };
    Ok((Authority::try_from(value.as_bytes()).map_err(InvalidRequest::Authority)?, value))
}

/// Merges equal Content-Length headers into one, as RFC 9110, 8.6 demands of a forwarded response.
fn join_lengths(headers: &mut HeaderMap) {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return };
    let mut parts = first.as_bytes().split(|byte| *byte == b',');
    let length = parts.next().unwrap_or_default().trim_ascii();
    if (lengths.next().is_some() || parts.next().is_some())
        && let Ok(length) = HeaderValue::from_bytes(length)
    {
        headers.insert(CONTENT_LENGTH, length);
    }
}

/// Joins several Cookie fields into one, as RFC 9113, 8.2.3 demands of requests forwarded by
/// HTTP/1.1.
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (cookies.next(), cookies.next()) else { return };
    let mut joined = first.as_bytes().to_vec();
    let is_sensitive = first.is_sensitive();
    for cookie in std::iter::once(second).chain(cookies) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie.as_bytes());
    }
    if let Ok(mut joined) = HeaderValue::from_bytes(&joined) {
        joined.set_sensitive(is_sensitive);
        headers.insert(COOKIE, joined);
    }
}

/// Removes hop-by-hop headers, except `Trailer` and the value `trailers` of TE.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if !headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        return; // as nearly always: to compare a few names costs less than to hash all of these
    }
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter(|token| !token.eq_ignore_ascii_case(b"keep-alive")) // the usual one, removed below in any case
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .collect();
    let trailers = tokens(headers, &TE).any(|coding| coding.eq_ignore_ascii_case(b"trailers"));
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Returns true if `Connection` lists another header of the request, which then is not forwarded.
pub fn hides_fields(headers: &HeaderMap) -> bool {
    let is_hidden = |name: &[u8]| HeaderName::from_bytes(name).is_ok_and(|name| headers.contains_key(&name));
    let is_usual = |name: &[u8]| [b"keep-alive".as_slice(), b"te"].iter().any(|usual| name.eq_ignore_ascii_case(usual));
    headers.contains_key(CONNECTION) && tokens(headers, &CONNECTION).any(|name| !is_usual(name) && is_hidden(name))
}

static HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    TE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

#[cfg(test)]
mod tests {
    use http::uri::Scheme;

    use super::*;
    use crate::upstream::body::OutgoingBody;

    fn target(base: &str) -> Target {
        Target {
            scheme: Scheme::HTTPS,
            authority: Authority::from_static("api.test:6443"),
            base_path: base.into(),
            server_name: None,
            proxy: None,
        }
    }

    fn no_body() -> AttemptBody<()> {
        OutgoingBody::default().attempt(None)
    }

    fn head(request: Request<()>, base: &str, host: &Host) -> Head {
        Head::new(request.into_parts().0, &target(base), host, None).expect("valid")
    }

    #[test]
    fn path_and_query_pass_byte_for_byte() {
        for path in [
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:controller?a=%3A&b=",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3acontroller",
            "/api/v1/namespaces/d/services/s:80/proxy/a/../b//c;d=e/%2F%2e%2e/?x=y?z",
            "/?",
            "//double",
            "/a{b}|\"",
        ] {
            let request = || Request::get(path).body(()).expect("hyper takes it");
            let http1 = head(request(), "", &Host::Rewrite).http1(no_body());
            assert_eq!(http1.uri().to_string(), path);
            assert_eq!(http1.headers()[HOST], "api.test:6443");
            let http2 = head(request(), "/base", &Host::Rewrite).http2(no_body());
            assert_eq!(http2.uri().path_and_query().map(PathAndQuery::as_str), Some(format!("/base{path}").as_str()));
            assert_eq!(http2.uri().authority().map(Authority::as_str), Some("api.test:6443"));
        }
    }

    #[test]
    fn a_query_without_a_path_gets_one() {
        for (base, expected) in [("", "/?x=1"), ("/base", "/base/?x=1")] {
            let request = Request::get("http://localhost?x=1").body(()).expect("hyper takes it");
            let sent = head(request, base, &Host::Rewrite).http2(no_body());
            assert_eq!(sent.uri().path_and_query().map(PathAndQuery::as_str), Some(expected));
        }
    }

    #[test]
    fn fields_of_one_hop_go_over_all_connection_lines() {
        let request = Request::post("/x")
            .header("Connection", "close, X-One")
            .header("Connection", " keep-alive ,x-two,TE")
            .header("X-One", "1")
            .header("X-Two", "2")
            .header("X-Three", "3")
            .header("Keep-Alive", "timeout=5")
            .header("Proxy-Connection", "keep-alive")
            .header("Proxy-Authorization", "Basic eA==")
            .header("TE", "gzip, trailers;q=1")
            .header("TE", "Trailers")
            .header("Trailer", "X-Sum")
            .header("Upgrade", "h2c")
            .header("Transfer-Encoding", "chunked")
            .body(())
            .expect("valid");
        let sent = head(request, "", &Host::Rewrite).http1(no_body());
        let mut left: Vec<_> = sent.headers().iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
        left.sort();
        assert_eq!(left, ["host: \"api.test:6443\"", "te: \"trailers\"", "trailer: \"X-Sum\"", "x-three: \"3\""]);
    }

    #[test]
    fn the_host_is_whose_it_is_asked_to_be() {
        let request = || Request::get("/").header(HOST, "localhost:8001").body(()).expect("valid");
        for (host, expected) in [
            (Host::Rewrite, "api.test:6443"),
            (Host::Preserve, "localhost:8001"),
            (Host::Literal(HeaderValue::from_static("ec2.example")), "ec2.example"),
        ] {
            assert_eq!(head(request(), "", &host).http1(no_body()).headers()[HOST], expected);
            let http2 = head(request(), "", &host).http2(no_body());
            assert_eq!(http2.uri().authority().map(Authority::as_str), Some(expected));
            assert!(!http2.headers().contains_key(HOST));
        }
    }

    #[test]
    fn a_body_of_undeclared_length_is_chunked_even_on_a_get() {
        let request = Request::get("/").body(()).expect("valid");
        let sent = head(request, "", &Host::Rewrite).http1(OutgoingBody::new(vec![], None, None).attempt::<()>(None));
        assert_eq!(sent.headers()[TRANSFER_ENCODING], "chunked");
        let request = Request::get("/").body(()).expect("valid");
        assert!(!head(request, "", &Host::Rewrite).http1(no_body()).headers().contains_key(TRANSFER_ENCODING));
    }
}
