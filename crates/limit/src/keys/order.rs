//! Objects in the order of a time of theirs. To read some of them, from the first or from any
//! position on, costs in proportion to their number.
//!
//! Time is kept in sixtieths of a second, so that an object takes twelve bytes. A finer time
//! would change neither what a status page shows nor which key is dropped. After two years of one
//! process all objects of the years beyond share one position.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use crate::moment::Moment;

/// The position of an object: its time, and the two halves of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position([u32; 3]);

/// Objects by a time of theirs.
#[derive(Debug, Default)]
pub(crate) struct Order {
    positions: BTreeSet<Position>,
}

// === impl Position ===

impl Position {
    fn new(at: Moment, object: u64) -> Self {
        let units = at.as_nanos() >> UNIT;
        Self([u32::try_from(units).unwrap_or(u32::MAX), half(object >> 32), half(object & u64::from(u32::MAX))])
    }

    /// Returns its time, to compare with those of others.
    pub(crate) fn time(self) -> u32 {
        self.0[0]
    }

    pub(crate) fn object(self) -> u64 {
        u64::from(self.0[1]) << 32 | u64::from(self.0[2])
    }
}

fn half(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

// === impl Order ===

impl Order {
    /// Moves an object to another time; `None` is for one that is not in the order.
    pub(crate) fn change(&mut self, object: u64, before: Option<Moment>, after: Option<Moment>) {
        let stand = |at: Moment| Position::new(at, object);
        let before = before.map(stand);
        let after = after.map(stand);
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.positions.remove(&before);
        }
        self.positions.extend(after);
    }

    /// Returns the object that comes first.
    pub(crate) fn first(&self) -> Option<u64> {
        self.positions.first().map(|stand| stand.object())
    }

    /// Returns the positions after this one, or all from the first on.
    pub(crate) fn after(&self, place: Option<Position>) -> impl Iterator<Item = Position> {
        self.positions.range((place.map_or(Unbounded, Excluded), Unbounded)).copied()
    }

    /// Returns the positions before this one, or all, from the last on.
    pub(crate) fn before(&self, place: Option<Position>) -> impl Iterator<Item = Position> {
        self.positions.range((Unbounded, place.map_or(Unbounded, Excluded))).rev().copied()
    }

    /// Returns the number of objects in it.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }
}

/// The unit of time, as a power of two in nanoseconds.
const UNIT: u32 = 24;
