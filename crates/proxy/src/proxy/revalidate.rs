//! Revalidation: the gate stores answers, and sends a stored one to the client if the upstream
//! answers 304.
//!
//! An answer with an ETag is kept in memory for the client that asked. When it asks again, the call
//! goes upstream as always, with If-None-Match. If the upstream answers 304, the client gets the kept
//! answer, byte for byte. Every request goes to the upstream, so nothing is out of date. `rules`
//! decides by RFC 9111 what may be kept, for which requests it holds, and what a 304 confirms. If a
//! 304 does not confirm the kept answer, the call is made again without a condition. A client that
//! sends its own conditions has its own cache, and its requests are not changed.

mod identity;
mod kept;
mod rules;
mod store;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock;
use bytes::Bytes;
use http::response;
use http::{Method, StatusCode, request};
use http_body::Frame;

use self::identity::Identity;
use self::kept::{Draft, KeptAnswer};
use self::rules::{Proof, Rules};
use self::store::AnswerStore;
use crate::upstream::hides_fields;

/// The stored ("kept") answers of a gate. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Answers {
    shared: Arc<AnswersState>,
}

#[derive(Default)]
struct AnswersState {
    store: Mutex<AnswerStore>,
    /// Set once a 304 named an ETag other than the one in the request: from then on the ETags of
    /// this upstream are not used.
    names_mislead: AtomicBool,
}

/// A request with a storable answer, and the stored answer if there is one.
pub(crate) struct Question {
    answers: Answers,
    identity: Arc<Identity>,
    /// The request as the client sent it, without the added conditions.
    request: request::Parts,
    kept: Option<Arc<KeptAnswer>>,
}

/// What the upstream's response means for the stored answer.
pub(crate) enum Reply {
    /// The response goes to the client and is not stored.
    Pass,
    /// The response goes to the client, and a copy is stored.
    New(Box<AnswerRecorder>),
    /// The stored answer is still current: the client gets this head and body.
    Unchanged(Box<response::Parts>, Bytes),
    /// The 304 does not confirm the stored answer: this request must be sent again without
    /// conditions.
    Unproven(Box<request::Parts>),
}

/// Copies a response as it flows to the client, and stores the copy when it is complete.
pub(crate) struct AnswerRecorder {
    answers: Answers,
    identity: Arc<Identity>,
    draft: Option<Draft>,
}

// === impl Answers ===

impl Answers {
    /// Sets the bound on bytes. Because the configuration has changed, ETags of the upstream are tried
    /// again.
    pub(crate) fn resize(&self, max_bytes: usize) {
        lock(&self.shared.store).resize(max_bytes);
        self.shared.names_mislead.store(false, Ordering::Relaxed);
    }

    /// Returns the memory taken by stored answers, and by bodies of dropped ones that clients still
    /// read.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.shared.store).bytes()
    }

    /// Adds the condition for a stored answer to a request, if there is one. `None` if the request
    /// must not be changed. `version` numbers the gate's own credential and client certificate: an
    /// answer obtained with others does not count.
    pub(crate) fn ask(&self, parts: &mut request::Parts, version: [u64; 2]) -> Option<Question> {
        if self.shared.names_mislead.load(Ordering::Relaxed) || !may_ask(parts) {
            return None;
        }
        let identity = Arc::new(Identity::of(parts, version));
        let kept = lock(&self.shared.store).find(&identity);
        let condition = kept.as_ref().and_then(|kept| kept.rules.condition(&parts.headers));
        let question = Question {
            answers: self.clone(),
            identity,
            request: parts.clone(),
            kept: kept.filter(|_| condition.is_some()),
        };
        parts.headers.extend(condition.map(|etag| (http::header::IF_NONE_MATCH, etag)));
        Some(question)
    }
}

// === impl Question ===

impl Question {
    /// Decides from the upstream's response head what the client gets.
    pub(crate) fn answered(self, head: &response::Parts) -> Reply {
        match (head.status, &self.kept) {
            (StatusCode::NOT_MODIFIED, Some(kept)) => match kept.rules.confirmed(&head.headers) {
                Proof::Same => Reply::Unchanged(Box::new(kept.head(&head.headers)), KeptAnswer::body(kept)),
                Proof::SameOnce => {
                    lock(&self.answers.shared.store).forget(&self.identity);
                    Reply::Unchanged(Box::new(kept.head(&head.headers)), KeptAnswer::body(kept))
                }
                Proof::None => self.unproven(),
            },
            (StatusCode::OK, _) => match Rules::of(&self.request.headers, &head.headers) {
                Some(rules) => self.keep(head, rules),
                None => self.forget(),
            },
            // A failure says nothing of the object.
            (status, Some(_)) if !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS => self.forget(),
            _ => Reply::Pass,
        }
    }

    fn keep(self, head: &response::Parts, rules: Rules) -> Reply {
        let Self { answers, identity, .. } = self;
        let draft = {
            let store = lock(&answers.shared.store);
            Draft::begin(head, rules, &identity, store.longest(), store.share())
        };
        match draft {
            Some(draft) => Reply::New(Box::new(AnswerRecorder { answers, identity, draft: Some(draft) })),
            None => Reply::Pass,
        }
    }

    /// Keeps nothing any more, as the upstream confirmed an ETag nobody asked about.
    fn unproven(self) -> Reply {
        let Self { answers, request, .. } = self;
        lock(&answers.shared.store).resize(0);
        if !answers.shared.names_mislead.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                path = request.uri.path(),
                "the upstream confirmed another answer than the one it was asked about: answers are not kept until the configuration changes"
            );
        }
        Reply::Unproven(Box::new(request))
    }

    /// Drops the stored answer, because the upstream's answer is now another.
    fn forget(self) -> Reply {
        lock(&self.answers.shared.store).forget(&self.identity);
        Reply::Pass
    }
}

// === impl AnswerRecorder ===

impl AnswerRecorder {
    /// Adds a frame to the copy. Returns false if there is no room for it; then nothing is stored.
    pub(crate) fn keep(&mut self, frame: &Frame<Bytes>) -> bool {
        let fits = match (&mut self.draft, frame.data_ref()) {
            (Some(draft), Some(data)) if draft.has_room(data.len()) => {
                let fits = lock(&self.answers.shared.store).take(&mut draft.share, data.len());
                if fits {
                    draft.add(data);
                }
                fits
            }
            // No room; or trailers, which belong to the one answer that they came with.
            _ => false,
        };
        if !fits && self.draft.take().is_some() {
            lock(&self.answers.shared.store).forget(&self.identity);
        }
        fits
    }

    /// Stores the complete answer.
    pub(crate) fn finish(mut self) {
        if let Some(mut draft) = self.draft.take() {
            let mut store = lock(&self.answers.shared.store);
            store.forget(&self.identity);
            if store.take(&mut draft.share, draft.overhead)
                && let Some(answer) = draft.finish()
            {
                store.keep(Arc::new(self.identity.detached()), answer);
            }
        }
    }
}

/// Returns true for a GET or HEAD without a body, conditions, ranges or `no-store`.
fn may_ask(parts: &request::Parts) -> bool {
    let headers = &parts.headers;
    let has_body = headers.contains_key(http::header::TRANSFER_ENCODING)
        || headers.get_all(http::header::CONTENT_LENGTH).iter().any(|length| length != "0");
    (parts.method == Method::GET || parts.method == Method::HEAD)
        && !has_body
        && !OWN_CONDITIONS.iter().any(|name| headers.contains_key(name))
        && !rules::forbids_store(headers)
        // The headers that kept answers depend on must reach the upstream.
        && !hides_fields(headers)
}

/// Request headers with conditions or ranges of the client's own: only that client can use the
/// answer to them.
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
