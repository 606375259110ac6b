//! The identity of a request for revalidation: everything its response can depend on.

use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, PRAGMA, USER_AGENT};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Uri};

/// Everything a response can depend on: method, target and every header of the request, except
/// those in `SAYS_NOTHING`. (`Vary` is checked separately: it may name one of the exceptions.) So a
/// credential in an unknown header still separates clients. Identities are compared in full: equal
/// hashes are not enough.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Identity {
    method: Method,
    uri: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The versions of the gate's own credential and client certificate.
    version: [u64; 2],
}

// === impl Identity ===

impl Identity {
    pub(super) fn of(parts: &Parts, version: [u64; 2]) -> Self {
        let telling = parts.headers.iter().filter(|(name, _)| !SAYS_NOTHING.contains(name));
        let mut headers: Vec<_> = telling.map(|(name, value)| (name.clone(), value.clone())).collect();
        // Values of one name keep their order, names have none.
        headers.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        headers.shrink_to_fit();
        Self { method: parts.method.clone(), uri: parts.uri.clone(), headers, version }
    }

    /// Returns a copy that does not keep the buffers of the request in memory.
    pub(super) fn detached(&self) -> Self {
        let target = |uri: &Uri| uri.to_string().parse().unwrap_or_else(|_| uri.clone());
        let headers = self.headers.iter().map(|(name, value)| (name.clone(), detached(value))).collect();
        Self { method: self.method.clone(), uri: target(&self.uri), headers, version: self.version }
    }

    pub(super) fn method(&self) -> &Method {
        &self.method
    }

    /// Returns roughly the memory an identity takes.
    pub(super) fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER);
        headers.sum::<usize>() + self.uri.path().len() + self.uri.query().map_or(0, str::len) + size_of::<Self>()
    }
}

/// Copies a value so that it does not keep its buffer in memory.
pub(super) fn detached(value: &HeaderValue) -> HeaderValue {
    let mut copy = HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone());
    copy.set_sensitive(value.is_sensitive());
    copy
}

/// Request headers that differ from call to call without a different response: tracing, connection
/// and the like.
static SAYS_NOTHING: [HeaderName; 16] = [
    CACHE_CONTROL,
    CONNECTION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    DATE,
    PRAGMA,
    USER_AGENT,
    HeaderName::from_static("baggage"),
    HeaderName::from_static("b3"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-amzn-trace-id"),
    HeaderName::from_static("x-b3-spanid"),
    HeaderName::from_static("x-b3-traceid"),
    HeaderName::from_static("x-correlation-id"),
    HeaderName::from_static("x-request-id"),
];
/// The memory of a header besides its text.
pub(super) const HEADER: usize = 80;
