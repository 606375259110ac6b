//! RFC 9111, in the words of `http-cache-semantics`: what may be kept, for which requests it holds,
//! and what a 304 confirms.
//!
//! The library is told only what it needs, so that nothing is kept twice, and so that what it reads
//! less strictly than it could never matters: directives in capitals, a second line of a header,
//! freshness (nothing here is answered without asking).

use std::time::SystemTime;

use super::identity::detached;
use http::header::{
    CACHE_CONTROL, CONTENT_RANGE, DATE, ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, SET_COOKIE, TRAILER,
    VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use http_cache_semantics::{AfterResponse, BeforeRequest, CacheOptions, CachePolicy, RequestLike, ResponseLike};

/// The rules that hold for one answer.
pub(super) struct Rules {
    policy: CachePolicy,
    /// The answer's own name or date, by which the upstream is asked.
    validator: (HeaderName, HeaderValue),
    /// The headers of the request that its answer varies by.
    varies: Vec<HeaderName>,
}

/// The proof in a 304.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The answer that is kept is the one.
    Same,
    /// The same, but it must not be kept any longer.
    SameOnce,
    /// None: the answer may be another.
    None,
}

/// A request as the library sees it. A HEAD is a GET without a body: the library would not ask by
/// weak names for a HEAD, as HTTP forbade it before RFC 9110.
struct PolicyRequest(HeaderMap);

/// An answer as the library sees it.
struct PolicyAnswer(StatusCode, HeaderMap);

// === impl Rules ===

impl Rules {
    /// Returns the rules for the 200 to a request with these headers; `None` if it may not be kept,
    /// or has nothing to ask by.
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

    /// Returns the conditions to ask with; `None` if the answer is not for such a request.
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

    /// Reads the 304 to a request that went with the conditions.
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

    /// True if the upstream is asked by the date of the answer.
    pub(super) fn is_by_date(&self) -> bool {
        self.validator.0 == LAST_MODIFIED
    }

    /// Returns about the memory that they take.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + 2 * self.validator.1.len() + self.varies.len() * 300 + 600
    }

    /// Returns a request as the library is to see it: one that is never answered without asking.
    fn asked(&self, request: &HeaderMap) -> PolicyRequest {
        let mut headers = chosen(request, &self.varies);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        PolicyRequest(headers)
    }
}

/// Returns the library's rules for an answer that is one client's.
fn policy(asked: &PolicyRequest, answered: &PolicyAnswer) -> CachePolicy {
    let options = CacheOptions { shared: false, ..CacheOptions::default() };
    CachePolicy::new_options(asked, answered, SystemTime::UNIX_EPOCH, options)
}

/// Returns what the upstream can be asked by. A date serves only if the answer was given a second
/// or more after it: before that, a change within the same second would not show (RFC 9110, section
/// 8.8.2.2).
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

/// Returns the directives of an answer in small letters; `None` if they cannot be read: they may
/// say anything.
fn directives(answer: &HeaderMap) -> Option<impl Iterator<Item = HeaderValue>> {
    let small = |value: &HeaderValue| HeaderValue::from_str(&value.to_str().ok()?.to_ascii_lowercase()).ok();
    let values: Option<Vec<HeaderValue>> = answer.get_all(CACHE_CONTROL).iter().map(small).collect();
    Some(values?.into_iter())
}

/// Returns the names that an answer varies by; `None` if it varies by what no request shows.
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

/// Returns the headers of these names, each as one line: the library compares the first.
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

    /// The identity has the target.
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
