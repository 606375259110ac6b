//! The limit on requests of a gate to its stores: so many a second, however many buckets it shares.
//!
//! All buckets that are due send one request together. The gates of one egress section, one for
//! each host, have one allowance. What they send within two milliseconds counts as one request (a
//! question), because it travels together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::moment::Moment;

/// The allowance of requests to stores, of one gate or of all gates of an egress section. Cheap to
/// clone.
#[derive(Clone, Debug, Default)]
pub struct Questions(Arc<Mutex<OpenQuestion>>);

/// The latest request to the stores, and how many more may follow: a few at once, then so many per
/// second.
#[derive(Debug)]
struct OpenQuestion {
    number: u64,
    at: Moment,
    /// How many more requests could be sent at once, at the time of the last request.
    left: f64,
}

// === impl Questions ===

impl Questions {
    /// Returns when a gate may send a request after its request `last`, so that `reserve` more
    /// requests remain.
    pub(crate) fn ready_at(&self, last: u64, reserve: f64, now: Moment) -> Moment {
        let open = self.lock();
        let missing = 1.0 + reserve - open.left(now);
        let is_allowed = missing <= 1e-9 || open.takes_in(last, now);
        if is_allowed { now } else { now + Duration::from_secs_f64(missing / PER_SECOND) }
    }

    /// Joins the request of other gates that is being collected, or begins one. Returns its number.
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
    /// Returns true if a gate can join the request being collected, after its own request `last`.
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

/// The requests kept in reserve for waiting calls.
pub(crate) const RESERVED: f64 = 5.0;
/// How long other gates can join a request.
const TOGETHER: Duration = Duration::from_millis(2);
/// The most requests at once.
const MOST: f64 = 8.0;
/// The requests allowed per second.
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
