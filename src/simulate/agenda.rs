//! Future events in order of time; events at the same moment keep the order in which they were
//! added.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use crate::moment::Moment;

/// A queue of future events.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    due: BinaryHeap<Reverse<Due<T>>>,
    puts: u64,
}

#[derive(Debug)]
struct Due<T> {
    at: Moment,
    place: u64,
    what: T,
}

// === impl Agenda ===

impl<T> Agenda<T> {
    pub(super) fn new() -> Self {
        Self { due: BinaryHeap::new(), puts: 0 }
    }

    pub(super) fn put(&mut self, at: Moment, what: T) {
        self.puts += 1;
        self.due.push(Reverse(Due { at, place: self.puts, what }));
    }

    /// Returns the moment of the next event.
    pub(super) fn next(&self) -> Option<Moment> {
        self.due.peek().map(|Reverse(due)| due.at)
    }

    /// Takes the next event, if it happens by `end`.
    pub(super) fn take(&mut self, end: Moment) -> Option<(Moment, T)> {
        self.next().filter(|at| *at <= end)?;
        self.due.pop().map(|Reverse(due)| (due.at, due.what))
    }

    pub(super) fn len(&self) -> usize {
        self.due.len()
    }
}

// === impl Due ===

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.place) == (other.at, other.place)
    }
}

impl<T> Eq for Due<T> {}

impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Due<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.place).cmp(&(other.at, other.place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_in_order_and_those_of_one_moment_as_they_were_put() {
        let mut agenda = Agenda::new();
        let (soon, late) = (Moment::from_millis(1), Moment::from_millis(2));
        for (at, what) in [(late, 'c'), (soon, 'a'), (soon, 'b')] {
            agenda.put(at, what);
        }
        assert_eq!(agenda.take(late), Some((soon, 'a')));
        assert_eq!(agenda.take(late), Some((soon, 'b')));
        assert_eq!(agenda.take(soon), None, "not yet");
        assert_eq!(agenda.take(late), Some((late, 'c')));
        assert_eq!(agenda.len(), 0);
    }
}
