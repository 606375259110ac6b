//! Objects by a time of theirs that only becomes later: the first is known, at 16 bytes for each
//! object and one step for each question.
//!
//! A change is not recorded here. An object keeps the time it was added with, which is never later
//! than its own; when it comes first, the table compares the two and corrects it. So a key that
//! fails again and again costs nothing here, and the first object whose time is right is the first
//! of all. Entries of objects that are gone are left behind by a copy, which is made a little at a
//! time.

use super::Position;
use crate::moment::Moment;

/// An object, and the moment it is due.
type Entry = (Moment, u64);

/// A binary heap, the earliest first, in pieces: one piece of memory for a million would be copied
/// when it grows and given back when it is empty, each in one go.
#[derive(Debug, Default)]
struct Heap {
    pieces: Vec<Vec<Entry>>,
    len: usize,
}

/// Objects by a time of theirs.
#[derive(Debug, Default)]
pub(crate) struct Due {
    heap: Heap,
    /// The copy that will replace it, and the position up to which objects are in the copy.
    copy: Option<(Heap, Option<Position>)>,
}

// === impl Due ===

impl Due {
    pub(crate) fn add(&mut self, at: Moment, object: u64) {
        self.heap.push((at, object));
        if let Some((copy, _)) = &mut self.copy {
            copy.push((at, object));
        }
    }

    /// Returns the object that comes first, and the moment it was last known to be due, which is
    /// never later than its own.
    pub(crate) fn first(&self) -> Option<(Moment, u64)> {
        self.heap.get(0)
    }

    /// Moves the first object to `at`, or removes it.
    pub(crate) fn correct_first(&mut self, at: Option<Moment>) {
        let Some((_, object)) = self.heap.get(0) else { return };
        match at.map(|at| (at, object)).or_else(|| self.heap.pop_last()) {
            Some(first) if self.heap.len > 0 => self.heap.sink(first),
            _ => {}
        }
    }

    /// Returns the objects that were last known to be due by `now`, each once. At most `most` are
    /// looked at.
    pub(crate) fn by(&self, now: Moment, most: usize) -> Vec<u64> {
        let mut found = Vec::new();
        let mut next = vec![0];
        while let Some(place) = next.pop() {
            if let Some((_, object)) = self.heap.get(place).filter(|(at, _)| *at <= now)
                && found.len() < most
            {
                found.push(object);
                next.extend([2 * place + 1, 2 * place + 2]);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the position at which the copy goes on, if there are so many more entries than
    /// objects that a copy is worth making.
    pub(crate) fn copies_after(&mut self, objects: usize) -> Option<Option<Position>> {
        if self.copy.is_none() && self.heap.len > 2 * objects + SPARE {
            self.copy = Some((Heap::default(), None));
        }
        self.copy.as_ref().map(|(_, place)| *place)
    }

    /// Adds the next objects to the copy. Without a last one it is complete, and replaces the heap.
    pub(crate) fn copied(&mut self, next: impl IntoIterator<Item = (Moment, u64)>, last: Option<Position>) {
        if let Some((copy, place)) = &mut self.copy {
            next.into_iter().for_each(|entry| copy.push(entry));
            *place = last;
        }
        if last.is_none() {
            self.heap = self.copy.take().map(|(copy, _)| copy).unwrap_or_default();
        }
    }

    /// Returns the number of entries in it.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len
    }
}

// === impl Heap ===

impl Heap {
    fn get(&self, place: usize) -> Option<Entry> {
        self.pieces.get(place / PIECE)?.get(place % PIECE).copied()
    }

    fn set(&mut self, place: usize, entry: Entry) {
        let there = self.pieces.get_mut(place / PIECE).and_then(|piece| piece.get_mut(place % PIECE));
        if let Some(there) = there {
            *there = entry;
        }
    }

    fn push(&mut self, entry: Entry) {
        let mut place = self.len;
        if place.is_multiple_of(PIECE) {
            // The first grows as it must: usually few keys fail.
            self.pieces.push(if place == 0 { Vec::new() } else { Vec::with_capacity(PIECE) });
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.push(entry);
            self.len += 1;
        }
        while let Some(parent) = place.checked_sub(1).map(|before| before / 2) {
            let Some(above) = self.get(parent).filter(|above| *above > entry) else { break };
            self.set(place, above);
            place = parent;
        }
        self.set(place, entry);
    }

    /// Takes the entry in the last place, which is not the last in time.
    fn pop_last(&mut self) -> Option<Entry> {
        let piece = self.pieces.last_mut()?;
        let last = piece.pop()?;
        if piece.is_empty() {
            self.pieces.pop();
        }
        self.len -= 1;
        Some(last)
    }

    /// Replaces the first entry by another, and moves that to where it belongs.
    fn sink(&mut self, entry: Entry) {
        let mut place = 0;
        loop {
            let child = |child: usize| Some((self.get(child)?, child));
            let least = child(2 * place + 1).into_iter().chain(child(2 * place + 2)).min();
            let Some((below, child)) = least.filter(|(below, _)| *below < entry) else { break };
            self.set(place, below);
            place = child;
        }
        self.set(place, entry);
    }
}

/// The number of entries of a piece: 16 KiB.
const PIECE: usize = 1024;
/// The number of superfluous entries that are not worth a copy.
const SPARE: usize = 64;

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;
    use crate::keys::backoff::mix;

    #[test]
    fn what_comes_first_is_what_a_heap_in_one_piece_says() {
        let (mut due, mut model) = (Due::default(), BinaryHeap::new());
        let mut number = 0;
        let mut chance = |below: u64| {
            number += 1;
            mix(number) % below
        };
        for round in 0..20_000 {
            // It grows to some pieces, shrinks to none, and again.
            let grows = round % 10_000 < 5_000;
            if chance(10) < if grows { 9 } else { 1 } {
                let entry = (Moment::from_millis(chance(1_000)), chance(1 << 40));
                due.add(entry.0, entry.1);
                model.push(Reverse(entry));
            } else {
                let later = (chance(3) == 0).then(|| Moment::from_millis(1_000 + chance(1_000)));
                let first = model.pop();
                if let (Some(Reverse((_, object))), Some(later)) = (first, later) {
                    model.push(Reverse((later, object)));
                }
                due.correct_first(later);
            }
            assert_eq!((due.first(), due.len()), (model.peek().map(|first| first.0), model.len()), "round {round}");
        }
    }

    #[test]
    fn no_piece_of_memory_is_larger_for_a_million_and_all_of_it_is_given_back() {
        let mut due = Due::default();
        (0..100_000).for_each(|object| due.add(Moment::from_millis(mix(object) % 1_000), object));
        assert!(due.heap.pieces.iter().all(|piece| piece.capacity() <= PIECE));
        assert_eq!(due.heap.pieces.len(), 100_000_usize.div_ceil(PIECE));
        (0..100_000).for_each(|_| due.correct_first(None));
        assert!(due.first().is_none() && due.heap.pieces.is_empty());
    }
}
