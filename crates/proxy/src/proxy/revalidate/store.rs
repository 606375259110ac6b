//! The stored answers, within a number of bytes: the least recently requested is dropped first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::identity::Identity;
use super::kept::KeptAnswer;
use crate::proxy::share::Share;

/// The stored answers of one gate.
#[derive(Default)]
pub(super) struct AnswerStore {
    answers: HashMap<Arc<Identity>, StoredAnswer>,
    /// The requests, ordered by when they were last made.
    order: BTreeMap<u64, Arc<Identity>>,
    /// The number of requests so far, to put them in order.
    questions: u64,
    /// The bytes of all stored answers, of answers being received, and of dropped answers that
    /// clients still read.
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

    /// Returns the most bytes of one answer: a quarter of the memory, so that a single answer does
    /// not replace all others.
    pub(super) fn longest(&self) -> usize {
        self.max_bytes / 4
    }

    /// Returns the stored answer to a request.
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

    /// Returns a counter for the memory of an answer being received.
    pub(super) fn share(&self) -> Share {
        Share::of(&self.taken)
    }

    /// Takes memory for more bytes of an answer, and drops older answers if necessary. Returns
    /// false if there is not enough.
    pub(super) fn take(&mut self, share: &mut Share, bytes: usize) -> bool {
        let fits = self.make_room(bytes);
        if fits {
            share.set(share.bytes() + bytes);
        }
        fits
    }

    /// Stores an answer in place of an earlier one to the same request.
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

    /// Drops stored answers until there is room for `bytes`. Returns false if that is not enough:
    /// other answers are being received or read.
    fn make_room(&mut self, bytes: usize) -> bool {
        while self.bytes().saturating_add(bytes) > self.max_bytes {
            let Some((_, oldest)) = self.order.pop_first() else { return false };
            self.forget(&oldest);
        }
        true
    }
}
