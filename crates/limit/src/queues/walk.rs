//! Walks over all waiting calls, a few at a time.

use super::{Waiter, Waiters};
use crate::WaiterIndex;
use crate::key::Group;

/// A change being applied to many waiting calls, a few at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) news: SweepNews,
    pub(crate) walk: WaiterWalk,
}

/// The kind of a change to many waiting calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SweepNews {
    /// No connection can be made for the calls of the group.
    Unconnected(Group),
    /// An operator lets every call pass without limits.
    Bypass,
    /// A pause began. It may end too late for some calls.
    Pause,
}

/// The progress of a walk over the calls waiting when it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaiterWalk {
    next: usize,
    /// The number of the newest waiting call; later calls are skipped.
    last: u32,
}

/// The result of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The next call looked for.
    At(WaiterIndex),
    /// No fitting call so far: the walk continues.
    On,
    /// All calls have been visited.
    Over,
}

// === impl WaiterWalk ===

impl WaiterWalk {
    pub(crate) fn over(waiters: &Waiters) -> Self {
        Self { next: 0, last: waiters.generation }
    }

    /// Looks at the next few calls, up to the first accepted by `meant`.
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

/// The number of calls or queue groups to look at in one step of a search.
pub(crate) const LOOKED_AT_ONCE: usize = 16;

/// The most steps of one dispatch, to keep each operation of the limiter far below a millisecond.
/// Work left over is done in later dispatches.
pub(crate) const STEPS: usize = 80;
