//! Revalidation: kept answers, and 304s answered from them.
//!
//! An answer with an ETag or a Last-Modified is kept in memory for the client that asked. When it
//! asks again, the call goes upstream as always, with If-None-Match or If-Modified-Since. If the
//! upstream answers 304, the client gets the kept answer, byte for byte. Nothing is answered without
//! asking, so nothing is older than its question. RFC 9111 says what may be kept, for which requests
//! it holds, and what a 304 confirms, by `http-cache-semantics`. A 304 that proves nothing is no
//! answer to a client that made no condition: its call is made again without one. A client that
//! makes its own conditions has its own cache, and is left alone.

mod identity;
mod kept;
mod rules;
mod store;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock;
use bytes::Bytes;
use http::response;
use http::{HeaderValue, Method, StatusCode, request};
use http_body::Frame;

use self::identity::Identity;
use self::kept::{Draft, KeptAnswer};
use self::rules::{Proof, Rules};
use self::store::AnswerStore;
use crate::upstream::hides_fields;

/// The kept answers of a gate. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Answers {
    shared: Arc<AnswersState>,
}

#[derive(Default)]
struct AnswersState {
    store: Mutex<AnswerStore>,
    /// True once a 304 named an ETag other than the condition's.
    names_mislead: AtomicBool,
    /// True once a 304 did not repeat the date of the condition.
    dates_mislead: AtomicBool,
}

/// A question to the upstream: the call, and the kept answer if there is one.
pub(crate) struct Question {
    answers: Answers,
    identity: Arc<Identity>,
    /// The request without the conditions.
    request: request::Parts,
    kept: Option<Arc<KeptAnswer>>,
}

/// The upstream's reply to a question.
pub(crate) enum Reply {
    /// An answer for the client, and nothing more.
    Pass,
    /// An answer for the client, to be kept as it flows.
    New(Box<AnswerRecorder>),
    /// Nothing has changed: the client gets this head and body.
    Unchanged(Box<response::Parts>, Bytes),
    /// A 304 without proof: this request must be made without conditions.
    Unproven(Box<request::Parts>),
}

/// Keeps an answer as it flows. If it is dropped before the end, nothing is kept.
pub(crate) struct AnswerRecorder {
    answers: Answers,
    identity: Arc<Identity>,
    draft: Option<Draft>,
}

// === impl Answers ===

impl Answers {
    /// Bounds the bytes. After a change of the configuration an upstream is believed again.
    pub(crate) fn resize(&self, max_bytes: usize) {
        lock(&self.shared.store).resize(max_bytes);
        self.shared.names_mislead.store(false, Ordering::Relaxed);
        self.shared.dates_mislead.store(false, Ordering::Relaxed);
    }

    /// Returns the bytes of kept answers, and of bodies that clients still read.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.shared.store).bytes()
    }

    /// Adds the condition of the kept answer to a request. `None` if the request is left alone.
    /// `version` is that of the gate's own credential and client certificate.
    pub(crate) fn ask(&self, parts: &mut request::Parts, version: [u64; 2]) -> Option<Question> {
        if self.shared.names_mislead.load(Ordering::Relaxed) || !may_ask(parts) {
            return None;
        }
        let identity = Arc::new(Identity::of(parts, version));
        let kept = lock(&self.shared.store).find(&identity).filter(|kept| self.may_ask_by(&kept.rules));
        let conditions = kept.as_ref().and_then(|kept| kept.rules.conditions(&parts.headers));
        let question = Question {
            answers: self.clone(),
            identity,
            request: parts.clone(),
            kept: kept.filter(|_| conditions.is_some()),
        };
        parts.headers.extend(conditions.into_iter().flatten());
        Some(question)
    }

    fn may_ask_by(&self, rules: &Rules) -> bool {
        !(rules.is_by_date() && self.shared.dates_mislead.load(Ordering::Relaxed))
    }
}

// === impl Question ===

impl Question {
    /// Reads the head of the upstream's answer.
    pub(crate) fn answered(self, head: &response::Parts) -> Reply {
        match (head.status, &self.kept) {
            (StatusCode::NOT_MODIFIED, Some(kept)) => {
                match kept.rules.confirmed(&self.request.headers, &head.headers) {
                    Proof::Same => Reply::Unchanged(Box::new(kept.head(&head.headers)), KeptAnswer::body(kept)),
                    Proof::SameOnce => {
                        lock(&self.answers.shared.store).forget(&self.identity);
                        Reply::Unchanged(Box::new(kept.head(&head.headers)), KeptAnswer::body(kept))
                    }
                    Proof::None => {
                        let is_by_date = kept.rules.is_by_date();
                        self.unproven(is_by_date)
                    }
                }
            }
            (StatusCode::OK, _) => match Rules::of(&self.request.headers, &head.headers) {
                Some(rules) if self.answers.may_ask_by(&rules) => self.keep(head, rules),
                _ => self.forget(),
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

    /// Stops asking the upstream in this way. If it confirmed another ETag, it is not asked at all.
    /// A date is less: the rules allow a 304 for an earlier answer, and a 304 without a date.
    fn unproven(self, is_by_date: bool) -> Reply {
        let Self { answers, identity, request, .. } = self;
        let shared = &answers.shared;
        if is_by_date {
            lock(&answers.shared.store).forget(&identity);
            if !shared.dates_mislead.swap(true, Ordering::Relaxed) {
                tracing::info!(
                    path = request.uri.path(),
                    "the upstream answered 304 without a date: until a reload, only answers with an ETag are kept"
                );
            }
        } else {
            lock(&answers.shared.store).resize(0);
            if !shared.names_mislead.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    path = request.uri.path(),
                    "the upstream confirmed another answer than the one it was asked about: answers are not kept until the configuration changes"
                );
            }
        }
        Reply::Unproven(Box::new(request))
    }

    /// The kept response is no longer the answer.
    fn forget(self) -> Reply {
        lock(&self.answers.shared.store).forget(&self.identity);
        Reply::Pass
    }
}

// === impl AnswerRecorder ===

impl AnswerRecorder {
    /// Keeps a frame. False if there is no room for it: nothing will be kept.
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

    /// Keeps the complete answer.
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

/// True for a GET or HEAD without body, conditions, ranges or `no-store`.
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
        // What it is told apart by has to reach the upstream.
        && !hides_fields(headers)
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
