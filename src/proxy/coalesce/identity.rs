//! The identity of a call: all of it that its answer can depend on.

use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Uri, Version};

use crate::upstream::hides_fields;

/// All of a request that its answer can depend on: the target as bytes, and every header except
/// those that only trace it. Credentials and impersonation are among the headers, so that no client
/// is answered with what only another may see. It is compared whole: equal hashes are not enough.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    uri: Uri,
    version: Version,
    headers: Vec<(HeaderName, HeaderValue)>,
}

// === impl Identity ===

impl Identity {
    /// The identity of a GET; `None` for requests of which no two are the same. The caller has seen
    /// that it has no body and is not long-running.
    pub(crate) fn of(parts: &Parts) -> Option<Self> {
        // What it is told apart by has to reach the upstream.
        if parts.method != Method::GET || parts.headers.contains_key(UPGRADE) || hides_fields(&parts.headers) {
            return None;
        }
        let told = parts.headers.iter().filter(|(name, _)| !TRACES.contains(name) && *name != CONNECTION);
        let mut headers: Vec<_> = told.map(|(name, value)| (name.clone(), value.clone())).collect();
        // Values of one name keep their order, names have none.
        headers.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        Some(Self { uri: parts.uri.clone(), version: parts.version, headers })
    }
}

/// Headers that say where a call comes from and nothing about what it asks.
static TRACES: [HeaderName; 2] = [HeaderName::from_static("traceparent"), HeaderName::from_static("tracestate")];

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn identity(method: &str, target: &str, headers: &[(&str, &str)]) -> Option<Identity> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Identity::of(&request.body(()).expect("a request").into_parts().0)
    }

    #[test]
    fn whatever_an_answer_can_depend_on_tells_calls_apart() {
        let same = identity("GET", "/a?b=1", &[("accept", "x"), ("authorization", "Bearer 1")]);
        assert!(same.is_some());
        for (target, headers) in [
            ("/a?b=2", vec![("accept", "x"), ("authorization", "Bearer 1")]),
            ("/%61?b=1", vec![("accept", "x"), ("authorization", "Bearer 1")]),
            ("/a?b=1", vec![("accept", "y"), ("authorization", "Bearer 1")]),
            ("/a?b=1", vec![("accept", "x"), ("authorization", "Bearer 2")]),
            ("/a?b=1", vec![("accept", "x")]),
            ("/a?b=1", vec![("accept", "x"), ("authorization", "Bearer 1"), ("impersonate-user", "root")]),
            ("/a?b=1", vec![("accept", "x"), ("authorization", "Bearer 1"), ("if-none-match", "\"1\"")]),
            ("/a?b=1", vec![("accept", "x"), ("authorization", "Bearer 1"), ("cookie", "s=1")]),
            ("/a?b=1", vec![("accept", "x"), ("accept", "x"), ("authorization", "Bearer 1")]),
        ] {
            assert_ne!(identity("GET", target, &headers), same, "{target} {headers:?}");
        }
        let other =
            [("authorization", "Bearer 1"), ("traceparent", "00-1-2-01"), ("accept", "x"), ("connection", "close")];
        assert_eq!(identity("GET", "/a?b=1", &other), same, "order of names, traces and the hop's own say nothing");
    }

    #[test]
    fn only_a_get_that_stays_a_get_has_one() {
        for method in ["HEAD", "POST", "OPTIONS", "get"] {
            assert_eq!(identity(method, "/a", &[]), None, "{method}");
        }
        assert_eq!(identity("GET", "/a", &[("upgrade", "websocket")]), None);
        assert_eq!(
            identity("GET", "/a", &[("connection", "X-Token"), ("x-token", "1")]),
            None,
            "the upstream sees no token"
        );
    }
}
