//! Objects in the order of a time of theirs: the first few, and the rest from any place on, cost as
//! much as they are.
//!
//! Time is kept in sixtieths of a second, so that an object takes twelve bytes. A finer time
//! would change neither what a status page shows nor which key is dropped. After two years of one
//! process all objects of the years beyond stand side by side.

use std::{
    collections::BTreeSet,
    ops::Bound::{Excluded, Unbounded},
};

use crate::moment::Moment;

/// Where an object stands: its time, and the two halves of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stand([u32; 3]);

/// Objects by a time of theirs.
#[derive(Debug, Default)]
pub(crate) struct Order {
    stands: BTreeSet<Stand>,
}

// === impl Stand ===

impl Stand {
    fn new(at: Moment, object: u64) -> Self {
        let units = at.as_nanos() >> UNIT;
        Self([u32::try_from(units).unwrap_or(u32::MAX), half(object >> 32), half(object & u64::from(u32::MAX))])
    }

    /// Its time, to compare with those of others.
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
    /// An object has another time; `None` is for one that does not stand here.
    pub(crate) fn change(&mut self, object: u64, before: Option<Moment>, after: Option<Moment>) {
        let stand = |at: Moment| Stand::new(at, object);
        let (before, after) = (before.map(stand), after.map(stand));
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.stands.remove(&before);
        }
        if let Some(after) = after {
            self.stands.insert(after);
        }
    }

    /// The object that comes first.
    pub(crate) fn first(&self) -> Option<u64> {
        self.stands.first().map(|stand| stand.object())
    }

    /// Those that come next after a place, or from the first on.
    pub(crate) fn after(&self, place: Option<Stand>) -> impl Iterator<Item = Stand> {
        self.stands.range((place.map_or(Unbounded, Excluded), Unbounded)).copied()
    }

    /// Objects in it.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.stands.len()
    }
}

/// As a power of two, in nanoseconds.
const UNIT: u32 = 24;
