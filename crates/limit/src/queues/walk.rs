//! Walks over all waiting calls, a few at a time.

use super::{Waiter, Waiters};
use crate::WaiterIndex;
use crate::key::Group;

/// A change on its way to many waiting calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) news: SweepNews,
    pub(crate) walk: WaiterWalk,
}

/// The change of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SweepNews {
    /// No connection can be made for the calls of the group.
    Unconnected(Group),
    /// Every call is admitted without limits.
    Bypass,
    /// A pause began. It may end too late for some calls.
    Pause,
}

/// A walk over all calls waiting at its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaiterWalk {
    next: usize,
    /// The generation of the newest of them.
    last: u32,
}

/// The result of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The wanted call.
    At(WaiterIndex),
    /// No wanted call so far: the walk continues.
    On,
    /// There are no more calls.
    Over,
}

// === impl WaiterWalk ===

impl WaiterWalk {
    pub(crate) fn over(waiters: &Waiters) -> Self {
        Self { next: 0, last: waiters.generation }
    }

    /// Looks at the next few waiters, up to the first `meant` one.
    pub(crate) fn step(&mut self, waiters: &Waiters, meant: impl Fn(&Waiter) -> bool) -> Step {
        for _ in 0..LOOKED_AT_ONCE {
            if self.next >= waiters.store.capacity() {
                return Step::Over;
            }
            let index = WaiterIndex::at(self.next);
            self.next += 1;
            let was_there = |waiter: &&Waiter| self.last.wrapping_sub(waiter.generation) < u32::MAX / 2;
            if waiters.get(index).filter(was_there).is_some_and(&meant) {
                return Step::At(index);
            }
        }
        Step::On
    }
}

/// The number of waiters or queue groups in one step of a search.
pub(crate) const LOOKED_AT_ONCE: usize = 16;

/// The steps of one turn. Each may conclude one wait; the rest of the work is done in the next
/// one. Each operation has two turns, and stays far below a millisecond.
pub(crate) const STEPS: usize = 80;
