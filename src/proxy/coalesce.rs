//! Coalescing: of identical calls that wait, one is sent, and its answer answers all of them.
//!
//! Calls that would send the same bytes for the same client form a group while they wait. Each
//! keeps its own place in its queue. The first whose turn comes is sent and leads; its answer is
//! kept as it flows, and once it is complete the others are answered from it. One whose own turn
//! comes first is sent like any other call. A leader that leaves, or whose answer is not to be
//! shared (a failure, one that is too long, one that says that it is for one client only), leaves
//! the group as it was: the next whose turn comes leads. No call joins a group whose leader is out:
//! an answer is never older than the question.

mod capture;
mod identity;
mod shareable;
mod table;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

pub(crate) use self::capture::{Capture, Whole};
pub(crate) use self::identity::Identity;
use self::table::{Seat, Table};

/// The groups of one gate. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Coalescer {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    table: Mutex<Table<Identity, Whole>>,
    /// The bytes of answers that are kept.
    kept: AtomicUsize,
}

/// A call in a group, waiting; it leaves the group when dropped.
pub(crate) struct Member {
    coalescer: Coalescer,
    /// `None` once it has left.
    seat: Option<Seat>,
}

/// The call of a group that is out. If it is dropped without an answer, another may lead.
pub(crate) struct Leader {
    coalescer: Coalescer,
    seat: Option<Seat>,
}

// === impl Coalescer ===

impl Coalescer {
    /// Joins the calls that wait with the same request.
    pub(crate) fn join(&self, identity: Identity) -> Member {
        let seat = self.table().join(identity);
        Member { coalescer: self.clone(), seat: Some(seat) }
    }

    fn table(&self) -> MutexGuard<'_, Table<Identity, Whole>> {
        // Nothing under the lock can panic half-way; were it to, each call still has a place of its
        // own.
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Member ===

impl Member {
    /// Ready when the leader's answer is complete.
    pub(crate) fn poll_answer(&mut self, cx: &Context<'_>) -> Poll<Arc<Whole>> {
        let answer = self.seat.and_then(|seat| self.coalescer.table().poll(seat, cx.waker()));
        if answer.is_some() {
            self.seat = None;
        }
        answer.map_or(Poll::Pending, Poll::Ready)
    }

    /// The call is sent. It leads if no call of the group is out and another waits.
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

// === impl Leader ===

impl Leader {
    /// Answers the group: the answer is complete.
    fn answer(mut self, whole: Whole) {
        if let Some(seat) = self.seat.take() {
            let woken = self.coalescer.table().answer(seat, whole);
            woken.into_iter().for_each(Waker::wake);
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

// === impl Shared ===

impl Shared {
    /// Takes room for bytes of an answer; false if there is none.
    fn keep(&self, bytes: usize) -> bool {
        let fits = |kept: usize| kept.checked_add(bytes).filter(|kept| *kept <= KEPT_TOGETHER);
        self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

/// The bytes of all answers that are kept together; an answer that does not fit is not shared.
const KEPT_TOGETHER: usize = 16 * 1024 * 1024;
