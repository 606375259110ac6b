//! Revalidation: an answer that its upstream can vouch for is kept, and a 304 is answered from it.
//!
//! An answer with an ETag or a Last-Modified is kept in memory for the client that asked. When it
//! asks again, the call goes upstream as always, with If-None-Match or If-Modified-Since. If the
//! upstream says that nothing has changed, the client gets what is kept, byte for byte. Nothing is
//! ever answered without asking, so that nothing is older than its question. What may be kept, for
//! which requests it holds, and what a 304 confirms is RFC 9111's to say, in the words of
//! `http-cache-semantics`. A client that makes its own conditions has its own cache, and is left
//! alone.

mod identity;
mod kept;
mod rules;
mod store;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::response;
use http::{HeaderMap, HeaderValue, Method, StatusCode, request};
use http_body::Frame;

use self::identity::Identity;
use self::kept::{Answer, Draft};
use self::rules::{Proof, Rules};
use self::store::Store;

/// The answers that a gate keeps. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Answers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    store: Mutex<Store>,
    /// True once a 304 named another answer than the one that was asked about.
    is_distrusted: AtomicBool,
}

/// A call whose answer may be kept, and the answer that is kept already.
pub(crate) struct Question {
    answers: Answers,
    identity: Arc<Identity>,
    headers: HeaderMap,
    kept: Option<Arc<Answer>>,
}

/// The meaning of the upstream's answer for what is kept.
pub(crate) enum Meaning {
    /// It is the client's, and nothing more.
    Pass,
    /// It is the client's, and may be kept as it flows.
    New(Box<Keeping>),
    /// Nothing has changed: the client gets this head and body.
    Unchanged(Box<response::Parts>, Bytes),
    /// It confirms what was not asked about: there is no answer for the client.
    Wrong,
}

/// An answer that is kept as it flows. If it is dropped before its end, nothing is kept.
pub(crate) struct Keeping {
    answers: Answers,
    identity: Arc<Identity>,
    draft: Option<Draft>,
}

// === impl Answers ===

impl Answers {
    /// Bounds the bytes that are kept.
    pub(crate) fn resize(&self, max_bytes: usize) {
        self.store().resize(max_bytes);
    }

    /// Returns the bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.store().bytes()
    }

    /// Asks for the answer to a request, which gets the conditions of the one that is kept. `None`
    /// for requests that are left alone. The gate's own credential, if it injects one, is the one
    /// of this `version`.
    pub(crate) fn ask(&self, parts: &mut request::Parts, version: u64) -> Option<Question> {
        if self.shared.is_distrusted.load(Ordering::Relaxed) || !may_ask(parts) {
            return None;
        }
        let identity = Arc::new(Identity::of(parts, version));
        let kept = self.store().find(&identity);
        let conditions = kept.as_ref().and_then(|kept| kept.rules.conditions(&parts.headers));
        let question = Question {
            answers: self.clone(),
            identity,
            headers: parts.headers.clone(),
            kept: kept.filter(|_| conditions.is_some()),
        };
        parts.headers.extend(conditions.into_iter().flatten());
        Some(question)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        // Nothing under the lock can panic half-way; what were left is bounded, and is never given
        // out without asking.
        self.shared.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Question ===

impl Question {
    /// Reads the head of the upstream's answer.
    pub(crate) fn answered(self, head: &response::Parts) -> Meaning {
        match (head.status, &self.kept) {
            (StatusCode::NOT_MODIFIED, Some(kept)) => match kept.rules.confirmed(&self.headers, &head.headers) {
                Proof::Same => Meaning::Unchanged(Box::new(kept.head(&head.headers)), kept.body.clone()),
                Proof::SameOnce => {
                    self.answers.store().forget(&self.identity);
                    Meaning::Unchanged(Box::new(kept.head(&head.headers)), kept.body.clone())
                }
                Proof::Other => {
                    self.answers.shared.is_distrusted.store(true, Ordering::Relaxed);
                    self.answers.store().resize(0);
                    Meaning::Wrong
                }
            },
            (StatusCode::OK, _) => match Rules::of(&self.headers, &head.headers) {
                Some(rules) => self.keep(head, rules),
                None => self.forget(),
            },
            // A failure says nothing of the object.
            (status, Some(_)) if !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS => self.forget(),
            _ => Meaning::Pass,
        }
    }

    fn keep(self, head: &response::Parts, rules: Rules) -> Meaning {
        let Self { answers, identity, .. } = self;
        let most = answers.store().longest();
        match Draft::begin(head, rules, identity.bytes(), most, *identity.method() == Method::HEAD) {
            Some(draft) => Meaning::New(Box::new(Keeping { answers, identity, draft: Some(draft) })),
            None => Meaning::Pass,
        }
    }

    /// The kept response is no longer the answer.
    fn forget(self) -> Meaning {
        self.answers.store().forget(&self.identity);
        Meaning::Pass
    }
}

// === impl Keeping ===

impl Keeping {
    /// Keeps a frame. False if there is no room for it: nothing will be kept.
    pub(crate) fn keep(&mut self, frame: &Frame<Bytes>) -> bool {
        let fits = match (&mut self.draft, frame.data_ref()) {
            (Some(draft), Some(data)) if draft.has_room(data.len()) && self.answers.store().reserve(data.len()) => {
                draft.add(data);
                true
            }
            // No room; or trailers, which belong to the one answer that they came with.
            _ => false,
        };
        if !fits && let Some(draft) = self.draft.take() {
            self.answers.store().release(draft.reserved());
            self.answers.store().forget(&self.identity);
        }
        fits
    }

    /// Keeps the answer, which is complete.
    pub(crate) fn finish(mut self) {
        if let Some(draft) = self.draft.take() {
            let mut store = self.answers.store();
            store.release(draft.reserved());
            match draft.finish() {
                Some(answer) => store.keep(Arc::clone(&self.identity), answer),
                None => store.forget(&self.identity),
            }
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.answers.store().release(draft.reserved());
        }
    }
}

/// True for a GET or HEAD without body, conditions or ranges, whose client lets its answer be kept.
fn may_ask(parts: &request::Parts) -> bool {
    let headers = &parts.headers;
    let has_body = headers.contains_key(http::header::TRANSFER_ENCODING)
        || headers.get_all(http::header::CONTENT_LENGTH).iter().any(|length| length != "0");
    let no_store =
        |value: &HeaderValue| value.to_str().map_or(true, |value| value.to_ascii_lowercase().contains(NO_STORE));
    (parts.method == Method::GET || parts.method == Method::HEAD)
        && !has_body
        && !OWN_CONDITIONS.iter().any(|name| headers.contains_key(name))
        && !headers.get_all(http::header::CACHE_CONTROL).iter().any(no_store)
}

const NO_STORE: &str = "no-store";
/// The headers of a request that only its own client can read the answer to.
const OWN_CONDITIONS: [http::HeaderName; 7] = [
    http::header::IF_MATCH,
    http::header::IF_MODIFIED_SINCE,
    http::header::IF_NONE_MATCH,
    http::header::IF_RANGE,
    http::header::IF_UNMODIFIED_SINCE,
    http::header::RANGE,
    http::header::UPGRADE,
];

#[cfg(test)]
mod tests;
