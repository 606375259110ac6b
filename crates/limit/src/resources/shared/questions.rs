//! The questions of a gate to its stores: so many a second, whatever the number of its members.
//!
//! All members that are due ask together. The gates of one section, one for each origin, have one
//! allowance. What they ask within two milliseconds counts as one question, because it travels
//! together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::moment::Moment;

/// The questions of one gate, or of the gates of one section. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Questions(Arc<Mutex<OpenQuestion>>);

/// The latest question, and the allowance of further ones: a few at once, then so many per second.
#[derive(Debug)]
struct OpenQuestion {
    number: u64,
    at: Moment,
    /// The further questions at once, then.
    left: f64,
}

// === impl Questions ===

impl Questions {
    /// Returns when a gate may ask after its question `last`, so that `reserve` more remain.
    pub(crate) fn ready_at(&self, last: u64, reserve: f64, now: Moment) -> Moment {
        let open = self.lock();
        let missing = 1.0 + reserve - open.left(now);
        let is_allowed = missing <= 1e-9 || open.takes_in(last, now);
        if is_allowed { now } else { now + Duration::from_secs_f64(missing / PER_SECOND) }
    }

    /// Takes part in the open question, or opens one. Returns its number.
    pub(crate) fn take(&self, last: u64, now: Moment) -> u64 {
        let mut open = self.lock();
        if !open.takes_in(last, now) {
            *open = OpenQuestion { number: open.number + 1, at: now, left: open.left(now) - 1.0 };
        }
        open.number
    }

    fn lock(&self) -> MutexGuard<'_, OpenQuestion> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl OpenQuestion ===

impl OpenQuestion {
    /// True if a gate can take part in this question after its question `last`.
    fn takes_in(&self, last: u64, now: Moment) -> bool {
        self.number > last && now - self.at <= TOGETHER
    }

    fn left(&self, now: Moment) -> f64 {
        (now.seconds_since(self.at).mul_add(PER_SECOND, self.left)).min(MOST)
    }
}

impl Default for OpenQuestion {
    fn default() -> Self {
        Self { number: 0, at: Moment::ZERO, left: MOST }
    }
}

/// The questions in reserve for waiting calls.
pub(crate) const RESERVED: f64 = 5.0;
/// The time until a question is closed to other gates of its section.
const TOGETHER: Duration = Duration::from_millis(2);
/// The most questions at once.
const MOST: f64 = 8.0;
/// The questions per second.
const PER_SECOND: f64 = 20.0;

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
