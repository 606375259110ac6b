//! Walks over all waiting calls, a few at a time.

use super::{Waiter, Waiters};
use crate::key::Group;
use crate::moment::Moment;
use crate::{GroupIndex, WaiterIndex};

/// An event that many waiting calls have not learned of yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// No connection can be made for the calls of the group.
    Unconnected(Group, WaiterWalk),
    /// Every call is admitted without limits.
    Release(WaiterWalk),
    /// A pause began: calls whose wait ends before `until` may have no chance now. `from` is the
    /// last one that was looked at.
    Paused { from: (Moment, WaiterIndex), until: Moment },
    /// Every pause was lifted: what was set aside until then is looked at again.
    Unpark { from: (Moment, GroupIndex) },
}

/// A walk over all calls that waited when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterWalk {
    next: usize,
    /// The generation of the newest of them.
    last: u32,
}

/// The result of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The walk has come to this call.
    At(WaiterIndex),
    /// None of the calls that it looked at was meant.
    On,
    /// There are no more calls.
    Over,
}

// === impl WaiterWalk ===

impl WaiterWalk {
    pub(crate) fn over(waiters: &Waiters) -> Self {
        Self { next: 0, last: waiters.generation }
    }

    /// Returns the next waiter that is `meant`, if it is among the few that are looked at.
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

// === impl Sweep ===

impl Sweep {
    /// True if one of them does the work of both.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unconnected(one, _), Self::Unconnected(other, _)) => one == other,
            (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
        }
    }
}

/// The number of waiters or queue groups that one step looks at to find one.
pub(crate) const LOOKED_AT_ONCE: usize = 16;

/// The steps of one turn, each of which may conclude one wait: what is left is done in the next
/// one. Each operation has two turns, and stays far below a millisecond.
pub(crate) const STEPS: u32 = 80;
