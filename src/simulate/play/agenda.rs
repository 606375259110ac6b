//! What is going to happen, in order of time and, at one moment, in the order in which it was put.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::moment::Moment;

/// Something that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Objects of a controller change.
    Change(usize),
    /// An object is due again.
    Requeue { controller: usize, object: u32 },
    /// A client has slept as Retry-After told it, and makes the call again.
    Again(u32),
    /// The upstream has answered a call.
    Answered(u32),
    /// A lease is to be renewed.
    Renew(usize),
    /// The holder of a lease will not wait any longer for the answer to its call.
    Impatient { lease: usize, attempt: u64 },
}

/// The agenda.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    due: BinaryHeap<Reverse<Due>>,
    puts: u64,
}

#[derive(Debug)]
struct Due {
    at: Moment,
    place: u64,
    event: Event,
}

// === impl Agenda ===

impl Agenda {
    pub(super) fn put(&mut self, at: Moment, event: Event) {
        self.puts += 1;
        self.due.push(Reverse(Due { at, place: self.puts, event }));
    }

    /// When the next thing happens.
    pub(super) fn next(&self) -> Option<Moment> {
        self.due.peek().map(|Reverse(due)| due.at)
    }

    /// The next thing, if it happens by `end`.
    pub(super) fn take(&mut self, end: Moment) -> Option<(Moment, Event)> {
        self.next().filter(|at| *at <= end)?;
        self.due.pop().map(|Reverse(due)| (due.at, due.event))
    }
}

// === impl Due ===

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.place) == (other.at, other.place)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.place).cmp(&(other.at, other.place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_in_order_and_those_of_one_moment_as_they_were_put() {
        let mut agenda = Agenda::default();
        let (soon, late) = (Moment::from_millis(1), Moment::from_millis(2));
        agenda.put(late, Event::Renew(0));
        agenda.put(soon, Event::Renew(1));
        agenda.put(soon, Event::Renew(2));
        assert_eq!(agenda.take(late), Some((soon, Event::Renew(1))));
        assert_eq!(agenda.take(late), Some((soon, Event::Renew(2))));
        assert_eq!(agenda.take(soon), None, "not yet");
        assert_eq!(agenda.take(late), Some((late, Event::Renew(0))));
    }
}
