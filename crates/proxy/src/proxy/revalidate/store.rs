//! The kept answers, within a number of bytes: the least recently requested is dropped first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::identity::Identity;
use super::kept::KeptAnswer;
use crate::proxy::share::Share;

/// The kept answers of one gate.
#[derive(Default)]
pub(super) struct AnswerStore {
    answers: HashMap<Arc<Identity>, StoredAnswer>,
    /// The requests, ordered by when they were last made.
    order: BTreeMap<u64, Arc<Identity>>,
    /// The number of requests so far, to put them in order.
    questions: u64,
    /// The bytes of all answers, of those in the making, and of those that are no longer kept but
    /// still read.
    taken: Arc<AtomicUsize>,
    max_bytes: usize,
}

struct StoredAnswer {
    answer: Arc<KeptAnswer>,
    asked: u64,
}

// === impl AnswerStore ===

impl AnswerStore {
    pub(super) fn bytes(&self) -> usize {
        self.taken.load(Relaxed)
    }

    pub(super) fn resize(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
        self.make_room(0);
    }

    /// Returns the most bytes of one answer, so that a few of them do not push out all others.
    pub(super) fn longest(&self) -> usize {
        self.max_bytes / 4
    }

    /// Returns the answer to a request, if it is kept.
    pub(super) fn find(&mut self, identity: &Identity) -> Option<Arc<KeptAnswer>> {
        let (identity, place) = self.answers.get_key_value(identity)?;
        let identity = Arc::clone(identity);
        let answer = Arc::clone(&place.answer);
        self.questions += 1;
        self.order.remove(&place.asked);
        let place = StoredAnswer { answer: Arc::clone(&answer), asked: self.questions };
        self.answers.insert(Arc::clone(&identity), place);
        self.order.insert(self.questions, identity);
        Some(answer)
    }

    /// Returns the share of an answer in the making.
    pub(super) fn share(&self) -> Share {
        Share::of(&self.taken)
    }

    /// Takes room for more bytes of an answer. False if there is none.
    pub(super) fn take(&mut self, share: &mut Share, bytes: usize) -> bool {
        let fits = self.make_room(bytes);
        if fits {
            share.set(share.bytes() + bytes);
        }
        fits
    }

    /// Keeps an answer, and drops an earlier one to the same request.
    pub(super) fn keep(&mut self, identity: Arc<Identity>, answer: KeptAnswer) {
        self.forget(&identity);
        self.questions += 1;
        self.order.insert(self.questions, Arc::clone(&identity));
        self.answers.insert(identity, StoredAnswer { answer: Arc::new(answer), asked: self.questions });
    }

    pub(super) fn forget(&mut self, identity: &Identity) {
        if let Some(StoredAnswer { asked, .. }) = self.answers.remove(identity) {
            self.order.remove(&asked);
        }
    }

    /// Drops answers until there is room for `bytes`. Returns false if there cannot be, because the
    /// rest is being received or read.
    fn make_room(&mut self, bytes: usize) -> bool {
        while self.bytes().saturating_add(bytes) > self.max_bytes {
            let Some((_, oldest)) = self.order.pop_first() else { return false };
            self.forget(&oldest);
        }
        true
    }
}
