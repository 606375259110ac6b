//! Objects ordered by a time. Reading a few of them, from any position on, costs the same however
//! many there are.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use crate::moment::Moment;

/// The position of an object in the order: first by its time, then by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) at: Moment,
    pub(crate) object: u64,
}

/// Objects ordered by a time.
#[derive(Debug, Default)]
pub(crate) struct Order {
    positions: BTreeSet<Position>,
}

// === impl Order ===

impl Order {
    /// Moves an object from the time `before` to the time `after`; `None` means it is not in the
    /// order.
    pub(super) fn change(&mut self, object: u64, before: Option<Moment>, after: Option<Moment>) {
        if before == after {
            return;
        }
        if let Some(at) = before {
            self.positions.remove(&Position { at, object });
        }
        self.positions.extend(after.map(|at| Position { at, object }));
    }

    pub(super) fn first(&self) -> Option<Position> {
        self.positions.first().copied()
    }

    /// Returns all positions, the earliest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Position> {
        self.positions.iter().copied()
    }

    /// Returns the positions before `place`, or all of them for `None`, the latest first.
    pub(super) fn before(&self, place: Option<Position>) -> impl Iterator<Item = Position> {
        self.positions.range((Unbounded, place.map_or(Unbounded, Excluded))).rev().copied()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.positions.len()
    }
}
