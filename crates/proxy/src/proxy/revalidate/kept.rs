//! Answers stored for revalidation, complete and incomplete.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY_REPORT_ONLY, ETAG, LAST_MODIFIED,
    TRAILER, TRANSFER_ENCODING,
};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::identity::{HEADER, Identity, detached};
use super::rules::Rules;
use crate::proxy::share::Share;

/// A stored, complete answer, with the rules for using it.
pub(super) struct KeptAnswer {
    pub(super) rules: Rules,
    body: Box<[u8]>,
    head: Parts,
    /// The approximate memory of the answer and its request's identity, counted against the bound.
    _share: Share,
}

/// Keeps an answer in memory while a client still reads its body.
struct BodyOwner(Arc<KeptAnswer>);

/// An answer not completely received yet.
pub(super) struct Draft {
    rules: Rules,
    head: Parts,
    body: Vec<u8>,
    /// The memory taken so far, counted against the bound.
    pub(super) share: Share,
    /// The length of the body declared in the head.
    declared: Option<usize>,
    /// The memory besides the body.
    pub(super) overhead: usize,
    most: usize,
}

// === impl KeptAnswer ===

impl KeptAnswer {
    /// Returns the head for the client: the stored head, updated with the headers of the 304 (RFC
    /// 9111, section 3.2). Headers about the body are not updated, because the stored body is sent.
    pub(super) fn head(&self, told: &HeaderMap) -> Parts {
        let mut head = copy(&self.head, HeaderValue::clone);
        let is_news = |name: &&HeaderName| told.get_all(*name) != self.head.headers.get_all(*name);
        for name in told.keys().filter(|name| !is_of_body(name)).filter(is_news) {
            let mut values = told.get_all(name).iter().cloned();
            // In its place: an order is also something that a client may have come to rely on.
            values.next().map(|value| head.headers.insert(name.clone(), value));
            values.for_each(|value| _ = head.headers.append(name.clone(), value));
        }
        head
    }

    /// Returns the stored body. Its memory counts until the last piece is dropped, even if the
    /// answer has been dropped from the store: a client may read slowly.
    pub(super) fn body(answer: &Arc<Self>) -> Bytes {
        Bytes::from_owner(BodyOwner(Arc::clone(answer)))
    }
}

impl AsRef<[u8]> for BodyOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0.body
    }
}

// === impl Draft ===

impl Draft {
    /// Begins to copy an answer, with its head. `None` if the head declares more bytes than `most`.
    pub(super) fn begin(head: &Parts, rules: Rules, asked: &Identity, most: usize, share: Share) -> Option<Self> {
        let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        let declared = if *asked.method() == Method::HEAD { Some(0) } else { length };
        let headers: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER).sum();
        let overhead = asked.bytes() + headers + rules.bytes() + size_of::<KeptAnswer>() + ENTRY;
        let fits = declared.unwrap_or_default().saturating_add(overhead) <= most;
        fits.then(|| Self { rules, head: copy(head, detached), body: Vec::new(), share, declared, overhead, most })
    }

    /// Returns true if the answer is not too long with `bytes` more.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.body.len() + bytes + self.overhead <= self.most
    }

    /// Adds bytes to the body; there must be room for them. They are copied: a slice would keep the
    /// whole buffer that was read from the socket in memory.
    pub(super) fn add(&mut self, data: &[u8]) {
        self.body.extend_from_slice(data);
    }

    /// Returns the complete answer; `None` if it is shorter or longer than its head declares.
    pub(super) fn finish(self) -> Option<KeptAnswer> {
        let Self { rules, head, body, declared, share, .. } = self;
        if declared.is_some_and(|declared| declared != body.len()) {
            return None;
        }
        Some(KeptAnswer { rules, body: body.into_boxed_slice(), head, _share: share })
    }
}

/// Returns true for headers about a body or a connection, and for ETag and Last-Modified.
fn is_of_body(name: &HeaderName) -> bool {
    let is_policy = [CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY_REPORT_ONLY].contains(name);
    (name.as_str().starts_with("content-") && !is_policy)
        || [CONNECTION, ETAG, LAST_MODIFIED, TRAILER, TRANSFER_ENCODING].contains(name)
}

/// Copies a head, and each header value by `value`. hyper's notes on a head (the original spelling
/// of names, an unusual reason phrase) are left out: they would keep its read buffer in memory.
fn copy(head: &Parts, value: fn(&HeaderValue) -> HeaderValue) -> Parts {
    let mut copied = Response::new(()).into_parts().0;
    copied.status = StatusCode::OK;
    copied.headers = head.headers.iter().map(|(name, held)| (name.clone(), value(held))).collect();
    copied
}

/// The memory of an answer's entry in the store.
const ENTRY: usize = 256;
