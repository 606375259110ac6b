//! Objects by a time of theirs that only becomes later: which comes first is known, at 16 bytes
//! each and one step per question.
//!
//! A change is not written down here. An object stands at the time it was added with, or before its
//! own; when it comes first, the table compares the two and puts it right. So a key that fails
//! again and again costs this nothing, and the first whose time is right is the first of all. What
//! stays of objects that are gone is left behind by a copy, which is made a little at a time.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
};

use super::order::Stand;
use crate::moment::Moment;

type Heap = BinaryHeap<Reverse<(Moment, u64)>>;

/// Objects by a time of theirs.
#[derive(Debug, Default)]
pub(super) struct Due {
    heap: Heap,
    /// What takes its place, and up to where the objects are in it already.
    copy: Option<(Heap, Option<Stand>)>,
}

// === impl Due ===

impl Due {
    pub(super) fn add(&mut self, at: Moment, object: u64) {
        self.heap.push(Reverse((at, object)));
        if let Some((copy, _)) = &mut self.copy {
            copy.push(Reverse((at, object)));
        }
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

    /// The objects that were last known to be due by `now`, each once; not more than `most` are
    /// looked at.
    pub(super) fn by(&self, now: Moment, most: usize) -> Vec<u64> {
        let heap = self.heap.as_slice();
        let (mut found, mut next) = (Vec::new(), vec![0]);
        while let Some(place) = next.pop() {
            if let Some(Reverse((_, object))) = heap.get(place).filter(|due| due.0.0 <= now)
                && found.len() < most
            {
                found.push(*object);
                next.extend([2 * place + 1, 2 * place + 2]);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Where to go on with the copy, if so many more stand here than there are objects that one is
    /// worth making.
    pub(super) fn copies_after(&mut self, objects: usize) -> Option<Option<Stand>> {
        if self.copy.is_none() && self.heap.len() > 2 * objects + SPARE {
            self.copy = Some((Heap::new(), None));
        }
        self.copy.as_ref().map(|(_, place)| *place)
    }

    /// The next objects of the copy; without a last one it is whole, and takes its place.
    pub(super) fn copied(&mut self, next: impl IntoIterator<Item = (Moment, u64)>, last: Option<Stand>) {
        if let Some((copy, place)) = &mut self.copy {
            copy.extend(next.into_iter().map(Reverse));
            *place = last;
        }
        if last.is_none() {
            self.heap = self.copy.take().map(|(copy, _)| copy).unwrap_or_default();
        }
    }

    /// Entries in it.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}

/// A handful is not worth a copy.
const SPARE: usize = 64;
