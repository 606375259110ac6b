//! The rules of RFC 9111 for answers that one client gets again: which may be stored, which
//! requests they answer, and what a 304 confirms. The upstream is asked each time, so freshness
//! does not matter.

use http::header::{CACHE_CONTROL, CONTENT_RANGE, ETAG, SET_COOKIE, TRAILER, VARY};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::identity::{HEADER, detached};
use crate::upstream::tokens;

/// The rules for using one stored answer.
pub(super) struct Rules {
    /// The answer's ETag, to ask the upstream with.
    etag: HeaderValue,
    /// The request headers that the answer depends on (`Vary`), with their values.
    varies: Vec<(HeaderName, Vec<HeaderValue>)>,
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

// === impl Rules ===

impl Rules {
    /// Returns the rules for the 200 to a request with these headers. `None` if it may not be kept,
    /// or has not one ETag.
    pub(super) fn of(request: &HeaderMap, answer: &HeaderMap) -> Option<Self> {
        // What is for one session, or only a part, or has more to come after its body.
        if [SET_COOKIE, CONTENT_RANGE, TRAILER].iter().any(|name| answer.contains_key(name)) || forbids_store(answer) {
            return None;
        }
        let varies = tokens(answer, &VARY).filter(|name| !name.is_empty()).map(|name| {
            let name = HeaderName::from_bytes(name).ok().filter(|name| name != "*")?;
            let values = request.get_all(&name).iter().map(detached).collect();
            Some((name, values))
        });
        Some(Self { varies: varies.collect::<Option<_>>()?, etag: etag(answer)? })
    }

    /// Returns the `If-None-Match` to add to a request; `None` if the kept answer does not fit it.
    pub(super) fn condition(&self, request: &HeaderMap) -> Option<HeaderValue> {
        let is_same = |(name, values): &(HeaderName, Vec<_>)| request.get_all(name).iter().eq(values);
        self.varies.iter().all(is_same).then(|| self.etag.clone())
    }

    /// Decides what the 304 to a request with this condition confirms.
    pub(super) fn confirmed(&self, answer: &HeaderMap) -> Proof {
        // Only one ETag was asked about, so a 304 without one means that one.
        let named = answer.get(ETAG).unwrap_or(&self.etag);
        match opaque(named) == opaque(&self.etag) {
            false => Proof::None,
            true if forbids_store(answer) => Proof::SameOnce,
            true => Proof::Same,
        }
    }

    /// Returns roughly the memory the rules take.
    pub(super) fn bytes(&self) -> usize {
        let values = self.varies.iter().flat_map(|(_, values)| values).map(HeaderValue::len);
        size_of::<Self>() + self.etag.len() + self.varies.len() * HEADER + values.sum::<usize>()
    }
}

/// Returns true if Cache-Control forbids to store an answer, or is unreadable: then it could forbid
/// anything.
pub(super) fn forbids_store(headers: &HeaderMap) -> bool {
    let forbids = |line: &HeaderValue| line.to_str().map_or(true, |line| line.to_ascii_lowercase().contains(NO_STORE));
    headers.get_all(CACHE_CONTROL).iter().any(forbids)
}

/// Returns the ETag of an answer, if it has one and no other.
fn etag(answer: &HeaderMap) -> Option<HeaderValue> {
    let mut etags = answer.get_all(ETAG).iter();
    let etag = etags.next().filter(|etag| etag.to_str().is_ok_and(|text| !text.is_empty()))?;
    etags.next().is_none().then(|| detached(etag))
}

/// Returns an ETag without the sign of a weak one: a 304 may name either of the same answer.
fn opaque(etag: &HeaderValue) -> &[u8] {
    etag.as_bytes().strip_prefix(b"W/").unwrap_or(etag.as_bytes())
}

const NO_STORE: &str = "no-store";
