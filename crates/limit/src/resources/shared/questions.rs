//! The times at which a gate asks its stores: so many a second, whatever the number of its members.
//!
//! All members that are due ask together. The gates of one section, one for each origin, take the
//! moments at which they ask from one allowance: what they ask within two milliseconds counts as
//! one question, as it travels together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::demand::Allowance;
use crate::moment::Moment;

/// The questions of one gate, or of the gates of one section. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Questions(Arc<Mutex<OpenQuestion>>);

/// The question that was opened last.
#[derive(Debug)]
struct OpenQuestion {
    allowance: Allowance,
    at: Moment,
    number: u64,
}

// === impl Questions ===

impl Questions {
    /// Returns the moment at which a gate may ask that was in question `last`, so that `reserve`
    /// more remain.
    pub(super) fn ready_at(&self, last: u64, reserve: f64, now: Moment) -> Moment {
        let opened = self.lock();
        if opened.takes_in(last, now) { now } else { opened.allowance.ready_at(reserve, now) }
    }

    /// Takes part in the question that is open, or opens one. Returns its number.
    pub(super) fn take(&self, last: u64, now: Moment) -> u64 {
        let mut opened = self.lock();
        if !opened.takes_in(last, now) {
            opened.allowance.take(now);
            opened.at = now;
            opened.number += 1;
        }
        opened.number
    }

    fn lock(&self) -> MutexGuard<'_, OpenQuestion> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Questions {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(OpenQuestion { allowance: Allowance::new(), at: Moment::ZERO, number: 0 })))
    }
}

// === impl OpenQuestion ===

impl OpenQuestion {
    /// True if a gate that was in question `last` can take part in this one.
    fn takes_in(&self, last: u64, now: Moment) -> bool {
        self.number > last && now - self.at <= TOGETHER
    }
}

/// The time for which a question takes in what other gates of its section ask.
const TOGETHER: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gates_of_one_section_ask_together_is_one_question() {
        let (questions, at) = (Questions::default(), Moment::from_millis);
        for _ in 0..128 {
            assert_eq!(questions.take(0, at(1_000)), 1);
        }
        // Who had a part in it opens the next, and who comes late.
        assert_eq!(questions.take(1, at(1_001)), 2);
        assert_eq!(questions.take(0, at(1_010)), 3);
        let mut last = 3;
        while questions.ready_at(last, 0.0, at(1_010)) <= at(1_010) {
            last = questions.take(last, at(1_010));
        }
        assert_eq!(last, 8, "eight may follow each other at once, then twenty a second");
        let next = questions.ready_at(last, 0.0, at(1_010));
        assert!(next > at(1_040) && next <= at(1_060), "{next:?}");
        assert_eq!(questions.ready_at(0, 0.0, at(1_011)), at(1_011), "another gate goes along");
    }
}
