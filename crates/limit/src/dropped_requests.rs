//! The retry time of calls refused because too many wait already.
//!
//! How long the queues will take is not known, so this copies kube-apiserver's tracker of dropped
//! requests: 1 to 32 s, longer while more are dropped (docs/internals/semantics.md, "Its 429s and
//! 5xx").

use std::collections::VecDeque;
use std::time::Duration;

use crate::moment::Moment;

/// Counts of the requests refused (dropped) because too many waited, for each of the last seconds.
#[derive(Debug)]
pub(crate) struct DroppedRequests {
    retry_after: u64,
    doubled_at: u64,
    second: u64,
    dropped: u64,
    /// Earlier seconds and the requests dropped in them, oldest first: as far back as [`LONGEST`].
    history: VecDeque<(u64, u64)>,
}

// === impl DroppedRequests ===

impl DroppedRequests {
    pub(super) fn new() -> Self {
        Self { retry_after: 1, doubled_at: 0, second: 0, dropped: 0, history: VecDeque::new() }
    }

    /// Counts a request refused at `now`. Returns the moment for its retry.
    pub(super) fn drop_one(&mut self, now: Moment) -> Moment {
        let second = now.since_start().as_secs();
        if second > self.second {
            self.history.push_back((self.second, self.dropped));
            while self.history.front().is_some_and(|(at, _)| second - at > LONGEST) {
                self.history.pop_front();
            }
            self.second = second;
            self.dropped = 0;
            self.adjust();
        }
        self.dropped = self.dropped.saturating_add(1);
        now + Duration::from_secs(self.retry_after)
    }

    /// Adjusts the retry time on the first drop of a new second: doubles it while many requests are
    /// dropped, and takes a second off when hardly any are.
    fn adjust(&mut self) {
        let window = self.history.iter().filter(|(at, _)| self.second - at <= self.retry_after);
        let dropped = window.fold(0_u64, |sum, (_, n)| sum.saturating_add(*n));
        if self.second.saturating_sub(self.doubled_at) < self.retry_after {
            return;
        }
        if dropped >= 3 * self.retry_after {
            self.retry_after = (2 * self.retry_after).min(LONGEST);
            self.doubled_at = self.second;
        } else if dropped < self.retry_after && self.retry_after > 1 {
            self.retry_after -= 1;
        }
    }
}

/// The longest retry time, in seconds.
const LONGEST: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_come_back_follows_kube_apiservers_tracker() {
        // TestDroppedRequestsTracker: second, drops in it, seconds to wait afterwards.
        let vector = [
            (0, 5, 1),
            (1, 11, 2),
            (2, 1, 2),
            (3, 11, 4),
            (4, 1, 4),
            (7, 1, 8),
            (11, 1, 8),
            (15, 1, 7),
            (17, 1, 6),
            (21, 14, 5),
            (22, 1, 10),
        ];
        let mut dropped_requests = DroppedRequests::new();
        for (second, count, expected) in vector {
            let now = Moment::from_millis(second * 1000);
            for _ in 0..count {
                assert_eq!(dropped_requests.drop_one(now) - now, Duration::from_secs(expected), "at second {second}");
            }
        }
    }

    #[test]
    fn the_longest_answer_is_32_seconds() {
        let mut dropped_requests = DroppedRequests::new();
        for second in 0..1000 {
            let now = Moment::from_millis(second * 1000);
            for _ in 0..200 {
                assert!(dropped_requests.drop_one(now) - now <= Duration::from_secs(32));
            }
        }
        assert!(dropped_requests.history.len() <= 33);
    }
}
