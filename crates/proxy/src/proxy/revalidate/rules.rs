//! The rules of RFC 9111, through `http-cache-semantics`: which answers may be stored, which
//! requests they answer, and what a 304 confirms.
//!
//! The library gets only the headers it needs. So nothing is stored twice, and its laxness in some
//! cases does no harm: directives in capitals, a second line of a header, freshness (here the
//! upstream is asked each time).

use std::time::SystemTime;

use super::identity::detached;
use http::header::{CACHE_CONTROL, CONTENT_RANGE, ETAG, IF_NONE_MATCH, SET_COOKIE, TRAILER, VARY};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_cache_semantics::{AfterResponse, BeforeRequest, CacheOptions, CachePolicy, RequestLike, ResponseLike};

/// The rules for using one stored answer.
pub(super) struct Rules {
    policy: CachePolicy,
    /// The answer's ETag, to ask the upstream with.
    etag: HeaderValue,
    /// The request headers the answer depends on (`Vary`).
    varies: Vec<HeaderName>,
}

/// What a 304 confirms about the stored answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The stored answer is still current.
    Same,
    /// The stored answer is current for this request, but must then be dropped.
    SameOnce,
    /// The 304 confirms nothing: the current answer may be another.
    None,
}

/// A request in the form that `http-cache-semantics` reads. A HEAD is presented as a GET: the
/// library would not revalidate a HEAD by a weak ETag, which HTTP forbade before RFC 9110.
struct PolicyRequest(HeaderMap);

/// An answer in the form that `http-cache-semantics` reads.
struct PolicyAnswer(StatusCode, HeaderMap);

// === impl Rules ===

impl Rules {
    /// Returns the rules for the 200 to a request with these headers. `None` if it may not be kept,
    /// or has not one ETag.
    pub(super) fn of(request: &HeaderMap, answer: &HeaderMap) -> Option<Self> {
        // What is for one session, or only a part, or has more to come after its body.
        if [SET_COOKIE, CONTENT_RANGE, TRAILER].iter().any(|name| answer.contains_key(name)) {
            return None;
        }
        let varies = names(answer.get_all(VARY).iter())?;
        let etag = etag(answer)?;
        let mut told = HeaderMap::from_iter([(ETAG, etag.clone())]);
        told.extend(directives(answer)?.map(|value| (CACHE_CONTROL, value)));
        for name in &varies {
            told.append(VARY, HeaderValue::from_name(name.clone()));
        }
        let policy = policy(&PolicyRequest(chosen(request, &varies)), &PolicyAnswer(StatusCode::OK, told));
        policy.is_storable().then_some(Self { policy, etag, varies })
    }

    /// Returns the `If-None-Match` to add to a request; `None` if the kept answer does not fit it.
    pub(super) fn condition(&self, request: &HeaderMap) -> Option<HeaderValue> {
        let BeforeRequest::Stale { mut request, matches: true } =
            self.policy.before_request(&self.asked(request), SystemTime::UNIX_EPOCH)
        else {
            return None;
        };
        request.headers.remove(IF_NONE_MATCH)
    }

    /// Decides what the 304 to a request with this condition confirms.
    pub(super) fn confirmed(&self, request: &HeaderMap, answer: &HeaderMap) -> Proof {
        // Only one ETag was asked about, so a 304 without one means that one.
        let named = answer.get(ETAG).unwrap_or(&self.etag);
        let mut told = HeaderMap::from_iter([(ETAG, named.clone())]);
        let directives = directives(answer);
        let is_readable = directives.is_some();
        told.extend(directives.into_iter().flatten().map(|value| (CACHE_CONTROL, value)));
        let asked = self.asked(request);
        // The library looks at those headers of a 304 only that the answer before had too.
        let may_stay = is_readable && policy(&asked, &PolicyAnswer(StatusCode::OK, told.clone())).is_storable();
        let answered = PolicyAnswer(StatusCode::NOT_MODIFIED, told);
        match self.policy.after_response(&asked, &answered, SystemTime::UNIX_EPOCH) {
            AfterResponse::Modified(..) => Proof::None,
            AfterResponse::NotModified(..) if may_stay => Proof::Same,
            AfterResponse::NotModified(..) => Proof::SameOnce,
        }
    }

    /// Returns roughly the memory the rules take.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + 2 * self.etag.len() + self.varies.len() * 300 + 600
    }

    /// Returns a request in the library's form, with `no-cache`: so the library always asks for a
    /// revalidation.
    fn asked(&self, request: &HeaderMap) -> PolicyRequest {
        let mut headers = chosen(request, &self.varies);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        PolicyRequest(headers)
    }
}

/// Returns the rules of `http-cache-semantics` for an answer kept for a single client.
fn policy(asked: &PolicyRequest, answered: &PolicyAnswer) -> CachePolicy {
    let options = CacheOptions { shared: false, ..CacheOptions::default() };
    CachePolicy::new_options(asked, answered, SystemTime::UNIX_EPOCH, options)
}

/// Returns the ETag of an answer, if it has one and no other.
fn etag(answer: &HeaderMap) -> Option<HeaderValue> {
    let mut etags = answer.get_all(ETAG).iter();
    let etag = etags.next().filter(|etag| etag.to_str().is_ok_and(|text| !text.is_empty()))?;
    etags.next().is_none().then(|| detached(etag))
}

/// Returns the Cache-Control directives of an answer in lower case; `None` if one is unreadable,
/// because it could forbid anything.
fn directives(answer: &HeaderMap) -> Option<impl Iterator<Item = HeaderValue>> {
    let small = |value: &HeaderValue| HeaderValue::from_str(&value.to_str().ok()?.to_ascii_lowercase()).ok();
    let values: Option<Vec<HeaderValue>> = answer.get_all(CACHE_CONTROL).iter().map(small).collect();
    Some(values?.into_iter())
}

/// Returns the header names in Vary; `None` if the answer varies by something else (`*`).
fn names<'a>(values: impl Iterator<Item = &'a HeaderValue>) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for value in values {
        for name in value.to_str().ok()?.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let name = HeaderName::try_from(name).ok().filter(|name| name.as_str() != "*")?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    Some(names)
}

/// Returns the headers of these names, each joined into one line: `http-cache-semantics` compares
/// only the first.
fn chosen(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    let one = |name: &HeaderName| {
        let lines: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        let line = HeaderValue::from_bytes(&lines.join(b", ".as_slice())).ok();
        line.filter(|_| !lines.is_empty()).map(|line| (name.clone(), line))
    };
    names.iter().filter(|name| **name != CACHE_CONTROL).filter_map(one).collect()
}

impl RequestLike for PolicyRequest {
    fn uri(&self) -> Uri {
        Uri::default()
    }

    /// Returns true always: the target is part of the identity, which was compared before.
    fn is_same_uri(&self, _: &Uri) -> bool {
        true
    }

    fn method(&self) -> &Method {
        &Method::GET
    }

    fn headers(&self) -> &HeaderMap {
        &self.0
    }
}

impl ResponseLike for PolicyAnswer {
    fn status(&self) -> StatusCode {
        self.0
    }

    fn headers(&self) -> &HeaderMap {
        &self.1
    }
}
