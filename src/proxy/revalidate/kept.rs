//! An answer that is kept, and one in the making.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, ETAG, LAST_MODIFIED, TRAILER, TRANSFER_ENCODING};
use http::response::Parts;
use http::{HeaderMap, HeaderName, Response, StatusCode};

use super::identity::HEADER;
use super::rules::Rules;

/// A complete answer, and what says when it holds.
pub(super) struct Answer {
    pub(super) rules: Rules,
    pub(super) body: Bytes,
    head: Parts,
    /// About the memory that it takes, with the identity of its request.
    pub(super) bytes: usize,
}

/// An answer in the making.
pub(super) struct Draft {
    rules: Rules,
    head: Parts,
    body: Vec<u8>,
    /// The length that its head declares.
    declared: Option<usize>,
    /// The memory that it takes besides the body.
    overhead: usize,
    most: usize,
}

// === impl Answer ===

impl Answer {
    /// Returns the head of the answer to the next client: as it was kept, with what the 304 tells
    /// (RFC 9111, section 3.2), except of the body, which is the one that is kept.
    pub(super) fn head(&self, told: &HeaderMap) -> Parts {
        let mut head = copy(&self.head);
        let is_news = |name: &&HeaderName| told.get_all(*name) != self.head.headers.get_all(*name);
        for name in told.keys().filter(|name| !is_of_body(name)).filter(is_news) {
            let mut values = told.get_all(name).iter().cloned();
            // In its place: an order is also something that a client may have come to rely on.
            values.next().map(|value| head.headers.insert(name.clone(), value));
            values.for_each(|value| _ = head.headers.append(name.clone(), value));
        }
        head
    }
}

// === impl Draft ===

impl Draft {
    /// Begins with the head of an answer to a request that takes `bytes`. `None` if the head says
    /// that the answer is longer than `most`.
    pub(super) fn begin(head: &Parts, rules: Rules, bytes: usize, most: usize, is_bare: bool) -> Option<Self> {
        let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        let declared = if is_bare { Some(0) } else { length };
        let headers: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER).sum();
        let overhead = bytes + headers + rules.bytes() + size_of::<Answer>() + ENTRY;
        let fits = declared.unwrap_or_default().saturating_add(overhead) <= most;
        fits.then(|| Self { rules, head: copy(head), body: Vec::new(), declared, overhead, most })
    }

    /// True if it may have so many bytes more.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.body.len() + bytes + self.overhead <= self.most
    }

    /// Adds to the body. It is copied: a piece of what was read from a socket would keep all of
    /// that.
    pub(super) fn add(&mut self, data: &[u8]) {
        self.body.extend_from_slice(data);
    }

    /// Returns the bytes that were reserved for its body.
    pub(super) fn reserved(&self) -> usize {
        self.body.len()
    }

    /// Returns the answer; `None` if it is not the whole that its head declares.
    pub(super) fn finish(self) -> Option<Answer> {
        let Self { rules, head, body, declared, overhead, .. } = self;
        let is_whole = declared.is_none_or(|declared| declared == body.len());
        let bytes = overhead + body.len();
        is_whole.then(|| Answer { rules, body: Bytes::from(body.into_boxed_slice()), head, bytes })
    }
}

/// True for a header of a 304 that describes a body or a connection, or names the answer.
fn is_of_body(name: &HeaderName) -> bool {
    name.as_str().starts_with("content-")
        || [CONNECTION, ETAG, LAST_MODIFIED, TRAILER, TRANSFER_ENCODING].contains(name)
}

/// Copies a head with what else hyper notes of it, such as how its names were written.
fn copy(head: &Parts) -> Parts {
    let mut copied = Response::new(()).into_parts().0;
    copied.status = StatusCode::OK;
    copied.headers = head.headers.clone();
    copied.extensions = head.extensions.clone();
    copied
}

/// The memory of an answer's place in the store.
const ENTRY: usize = 256;
