//! A queue of future events in order of time. Events at the same moment stay in the order of
//! insertion.

use std::collections::BTreeMap;

use crate::moment::Moment;

/// A queue of future events, in order of time.
#[derive(Debug)]
pub(crate) struct Agenda<T> {
    events: BTreeMap<(Moment, u64), T>,
    added: u64,
}

// === impl Agenda ===

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { events: BTreeMap::new(), added: 0 }
    }
}

impl<T> Agenda<T> {
    pub(crate) fn add(&mut self, at: Moment, event: T) {
        self.added += 1;
        self.events.insert((at, self.added), event);
    }

    /// Returns the moment of the next event.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes and returns the next event, if it is due by `end`.
    pub(crate) fn take(&mut self, end: Moment) -> Option<(Moment, T)> {
        let first = self.events.first_entry().filter(|first| first.key().0 <= end)?;
        let ((at, _), event) = first.remove_entry();
        Some((at, event))
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_happen_in_order_and_those_of_one_moment_as_they_were_added() {
        let mut agenda = Agenda::default();
        let soon = Moment::from_millis(1);
        let late = Moment::from_millis(2);
        for (at, event) in [(late, 'c'), (soon, 'a'), (soon, 'b')] {
            agenda.add(at, event);
        }
        assert_eq!(agenda.take(late), Some((soon, 'a')));
        assert_eq!(agenda.take(late), Some((soon, 'b')));
        assert_eq!(agenda.take(soon), None, "not yet");
        assert_eq!(agenda.take(late), Some((late, 'c')));
        assert_eq!(agenda.len(), 0);
    }
}
