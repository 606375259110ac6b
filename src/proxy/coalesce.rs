//! Coalescing: of identical calls that wait, one is sent, and its answer is everybody's.
//!
//! Calls that would send the same bytes for the same client form a group while they wait. Each keeps its own place in its queue. Whoever's
//! turn comes first is sent and leads; its answer is kept as it flows, and once it is complete the others are answered from it. If their own
//! turn comes first they are sent like anybody. A leader that leaves, or whose answer is none to share (a failure, one that is too long, one
//! that says that it is for one client only), leaves the group as it was: the next whose turn comes leads. Nobody joins a group whose leader is out: an answer is never older than the question.

mod capture;
mod identity;
mod shareable;
mod table;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use self::table::{Seat, Table};
pub(crate) use self::{
    capture::{Capture, Whole},
    identity::Identity,
};

/// The groups of one gate. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Coalescer {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    table: Mutex<Table<Identity, Whole>>,
    /// Bytes of answers that are kept.
    kept: AtomicUsize,
}

/// A call in a group, waiting; dropping it leaves.
pub(crate) struct Member {
    coalescer: Coalescer,
    /// `None` once it has left.
    seat: Option<Seat>,
}

/// The call of a group that is out. Dropped without an answer: another may lead.
pub(crate) struct Leader {
    coalescer: Coalescer,
    seat: Option<Seat>,
}

// === impl Coalescer ===

impl Coalescer {
    /// Joins those who wait with the same request.
    pub(crate) fn join(&self, identity: Identity) -> Member {
        let seat = self.table().join(identity);
        Member { coalescer: self.clone(), seat: Some(seat) }
    }

    fn table(&self) -> MutexGuard<'_, Table<Identity, Whole>> {
        // Nothing under the lock can panic half-way; were it to, everybody still has a place of their own.
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for bytes of an answer.
    fn charge(&self, bytes: usize) -> bool {
        let taken = self.shared.kept.fetch_add(bytes, Ordering::Relaxed);
        let fits = taken.saturating_add(bytes) <= KEPT_TOGETHER;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.shared.kept.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Coalescer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Coalescer")
    }
}

// === impl Member ===

impl Member {
    /// Ready when the leader's answer is complete.
    pub(crate) fn poll_answer(&mut self, cx: &Context<'_>) -> Poll<Arc<Whole>> {
        let Some(seat) = self.seat else { return Poll::Pending };
        let answer = self.coalescer.table().poll(seat, cx.waker());
        match answer {
            Some(answer) => {
                self.seat = None;
                Poll::Ready(answer)
            }
            None => Poll::Pending,
        }
    }

    /// The call is sent. It leads if nobody of the group is out and somebody waits.
    pub(crate) fn go(mut self) -> Option<Leader> {
        let seat = self.seat.take()?;
        let leads = self.coalescer.table().go(seat);
        leads.then(|| Leader { coalescer: self.coalescer.clone(), seat: Some(seat) })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            self.coalescer.table().leave(seat);
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Member").field(&self.seat).finish()
    }
}

// === impl Leader ===

impl Leader {
    /// The answer is complete.
    fn answer(mut self, whole: Whole) {
        if let Some(seat) = self.seat.take() {
            let woken = self.coalescer.table().answer(seat, whole);
            woken.into_iter().for_each(std::task::Waker::wake);
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            self.coalescer.table().give_up(seat);
        }
    }
}

impl fmt::Debug for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leader").field(&self.seat).finish()
    }
}

/// What all answers that are kept may take together; what does not fit is not shared.
const KEPT_TOGETHER: usize = 16 * 1024 * 1024;
