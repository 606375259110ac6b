//! An order of objects by a time of theirs that only becomes later: which comes first is known, at 16 bytes each and one step per question.
//!
//! A change is not written down here. An object stands at the time it was added with, or before its own; when it comes first, whoever asks
//! compares the two and puts it right. So a key that fails again and again costs this order nothing, and the first whose time is right is
//! the first of all.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
};

use crate::moment::Moment;

/// Objects by a time of theirs.
#[derive(Debug, Default)]
pub(super) struct Order {
    heap: BinaryHeap<Reverse<(Moment, u64)>>,
}

// === impl Order ===

impl Order {
    pub(super) fn add(&mut self, at: Moment, object: u64) {
        self.heap.push(Reverse((at, object)));
    }

    /// The object that comes first, and when it was last known to be due: never later than it is.
    pub(super) fn first(&self) -> Option<(Moment, u64)> {
        self.heap.peek().map(|Reverse(first)| *first)
    }

    /// Puts the first one where it belongs: at `at`, or nowhere.
    pub(super) fn correct_first(&mut self, at: Option<Moment>) {
        let Some(mut first) = self.heap.peek_mut() else { return };
        match at {
            Some(at) => first.0.0 = at,
            None => drop(PeekMut::pop(first)),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether so many more stand here than there are that it is time to begin anew.
    pub(super) fn is_stale(&self, objects: usize) -> bool {
        self.heap.len() > 2 * objects + SPARE
    }
}

impl FromIterator<(Moment, u64)> for Order {
    fn from_iter<T: IntoIterator<Item = (Moment, u64)>>(objects: T) -> Self {
        Self { heap: objects.into_iter().map(Reverse).collect() }
    }
}

/// A handful is not worth beginning anew for.
const SPARE: usize = 64;
