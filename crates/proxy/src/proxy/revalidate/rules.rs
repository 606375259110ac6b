//! RFC 9111 through `http-cache-semantics`: what may be kept, for which requests it holds, and what
//! a 304 confirms.
//!
//! The library gets only what it needs, so that nothing is kept twice, and so that it does not
//! matter where it reads less strictly than it could: directives in capitals, a second line of a
//! header, freshness (here the upstream is asked each time).

use std::time::SystemTime;

use super::identity::detached;
use http::header::{
    CACHE_CONTROL, CONTENT_RANGE, DATE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, SET_COOKIE, TRAILER,
    VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_cache_semantics::{AfterResponse, BeforeRequest, CacheOptions, CachePolicy, RequestLike, ResponseLike};

/// The rules for using one kept answer.
pub(super) struct Rules {
    policy: CachePolicy,
    /// The answer's ETag or Last-Modified, to ask the upstream with.
    validator: (HeaderName, HeaderValue),
    /// The request headers the answer depends on (`Vary`).
    varies: Vec<HeaderName>,
}

/// What a 304 confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The kept answer still holds.
    Same,
    /// The kept answer holds for this request, but must not be kept any longer.
    SameOnce,
    /// The 304 confirms nothing: the right answer may be another.
    None,
}

/// A request in the form that `http-cache-semantics` reads. A HEAD is presented as a GET without a
/// body, as the library would not revalidate a HEAD by a weak ETag, which HTTP forbade before RFC
/// 9110.
struct PolicyRequest(HeaderMap);

/// An answer in the form that `http-cache-semantics` reads.
struct PolicyAnswer(StatusCode, HeaderMap);

// === impl Rules ===

impl Rules {
    /// Returns the rules for the 200 to a request with these headers. `None` if it may not be kept,
    /// or has no ETag and no usable date.
    pub(super) fn of(request: &HeaderMap, answer: &HeaderMap) -> Option<Self> {
        // What is for one session, or only a part, or has more to come after its body.
        if [SET_COOKIE, CONTENT_RANGE, TRAILER].iter().any(|name| answer.contains_key(name)) {
            return None;
        }
        let varies = names(answer.get_all(VARY).iter())?;
        let validator = validator(answer)?;
        let mut told = HeaderMap::from_iter([validator.clone()]);
        told.extend(directives(answer)?.map(|value| (CACHE_CONTROL, value)));
        for name in &varies {
            told.append(VARY, HeaderValue::from_name(name.clone()));
        }
        let policy = policy(&PolicyRequest(chosen(request, &varies)), &PolicyAnswer(StatusCode::OK, told));
        policy.is_storable().then_some(Self { policy, validator, varies })
    }

    /// Returns the conditions to add to a request; `None` if the kept answer does not fit it.
    pub(super) fn conditions(&self, request: &HeaderMap) -> Option<HeaderMap> {
        let BeforeRequest::Stale { request, matches: true } =
            self.policy.before_request(&self.asked(request), SystemTime::UNIX_EPOCH)
        else {
            return None;
        };
        let conditions = request.headers.into_iter().filter_map(|(name, value)| Some((name?, value)));
        let conditions: HeaderMap = conditions.filter(|(name, _)| CONDITIONS.contains(name)).collect();
        (!conditions.is_empty()).then_some(conditions)
    }

    /// Decides what the 304 to a request with these conditions confirms.
    pub(super) fn confirmed(&self, request: &HeaderMap, answer: &HeaderMap) -> Proof {
        let mut told = HeaderMap::new();
        let (name, own) = &self.validator;
        // Only one name was asked about, so a 304 without one means that one. A date stands for all
        // before it: an answer that was put back to an earlier one was "not modified since" either
        // (RFC 9110, section 13.1.3), so that only the same date says that it is the same answer
        // (RFC 9111, section 4.3.4).
        let Some(named) = answer.get(name).or_else(|| (!self.is_by_date()).then_some(own)) else { return Proof::None };
        told.insert(name.clone(), named.clone());
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

    /// Returns true if the condition is a date (Last-Modified).
    pub(super) fn is_by_date(&self) -> bool {
        self.validator.0 == LAST_MODIFIED
    }

    /// Returns roughly the memory the rules take.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + 2 * self.validator.1.len() + self.varies.len() * 300 + 600
    }

    /// Presents a request to `http-cache-semantics` as always to be revalidated.
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

/// Returns the ETag or date to ask the upstream with. A date serves only if the answer was given a
/// second or more after it: before that, a change within the same second would not show (RFC 9110,
/// section 8.8.2.2).
fn validator(answer: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
    let only = |name: &HeaderName| {
        let mut values = answer.get_all(name).iter();
        values.next().filter(|value| values.next().is_none() && value.to_str().is_ok_and(|text| !text.is_empty()))
    };
    if answer.contains_key(ETAG) {
        return Some((ETAG, detached(only(&ETAG)?)));
    }
    let time = |name| httpdate::parse_http_date(only(name)?.to_str().ok()?).ok();
    let age = time(&DATE)?.duration_since(time(&LAST_MODIFIED)?).ok()?;
    (age.as_secs() >= 1).then_some((LAST_MODIFIED, detached(only(&LAST_MODIFIED)?)))
}

/// Returns the Cache-Control directives of an answer in small letters; `None` if they cannot be
/// read, as they may say anything.
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

const CONDITIONS: [HeaderName; 2] = [IF_MODIFIED_SINCE, IF_NONE_MATCH];
