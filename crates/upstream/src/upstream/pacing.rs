//! The pace of connection attempts: several at a time normally; after a failure, one at a time with
//! growing delays.
//!
//! An outage must neither keep callers waiting nor cause a storm of attempts; the first success
//! ends it. This does no I/O.

use std::sync::Arc;
use std::time::Duration;

use super::error::DialError;
use crate::moment::Moment;

/// The connection attempts of one group, and when the next may start.
#[derive(Debug, Default)]
pub(super) struct DialPace {
    /// The number of current attempts.
    pub(super) under_way: usize,
    /// The number of calls waiting for a connection, as last set from outside.
    pub(super) wanted: usize,
    /// Set if one more connection should be made before any call needs it.
    pub(super) ahead: bool,
    /// The failure of the last attempt; `None` once an attempt succeeds.
    failing: Option<DialOutage>,
}

/// A failed attempt, and the time of the next one.
#[derive(Debug)]
struct DialOutage {
    error: Arc<DialError>,
    since: Moment,
    delay: Duration,
    due: Moment,
}

impl DialPace {
    /// Returns how many attempts to start now, and counts them as started.
    ///
    /// They are for the calls that wait in the limiter and the `more` that wait in the pool, less
    /// the `free` streams. At most `at_once` attempts may run at a time.
    pub(super) fn begin(&mut self, at_once: usize, more: usize, free: usize, now: Moment) -> usize {
        let need = (self.wanted + more).saturating_sub(free).max(usize::from(self.ahead));
        let allowed = match &self.failing {
            Some(failing) if now < failing.due => 0,
            Some(_) => 1,
            None => at_once,
        };
        let start = need.min(allowed).saturating_sub(self.under_way);
        self.under_way += start;
        start
    }

    /// Records a successful attempt. Returns the failure ended by it, if any.
    pub(super) fn succeeded(&mut self) -> Option<Arc<DialError>> {
        self.under_way = self.under_way.saturating_sub(1);
        self.ahead = false;
        self.recovered()
    }

    /// Records another new connection, not from these attempts. Returns the failure ended by it, if
    /// any.
    pub(super) fn recovered(&mut self) -> Option<Arc<DialError>> {
        self.failing.take().map(|failing| failing.error)
    }

    /// Records a failed attempt, started at `begun`. Returns true if it is the first failure in a
    /// row, which should be logged.
    pub(super) fn failed(&mut self, error: Arc<DialError>, begun: Moment, now: Moment) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        self.ahead = false;
        let delay = match &self.failing {
            Some(failing) if begun < failing.since => return false, // of the same volley: says nothing new
            Some(failing) => (failing.delay * 2).min(SLOWEST),
            None => FIRST,
        };
        self.failing.replace(DialOutage { error, since: now, delay, due: now + delay }).is_none()
    }

    /// Returns the failure to report at once to new calls, until the next attempt is due.
    pub(super) fn down(&self, now: Moment) -> Option<&Arc<DialError>> {
        self.failing.as_ref().filter(|failing| now < failing.due).map(|failing| &failing.error)
    }

    /// Returns the failure of the last attempt; `None` once an attempt succeeds.
    pub(super) fn failing(&self) -> Option<&Arc<DialError>> {
        self.failing.as_ref().map(|failing| &failing.error)
    }

    /// Returns when the next attempt is due, if a connection is needed but an attempt must wait.
    pub(super) fn due(&self, more: usize) -> Option<Moment> {
        let waiting = self.under_way == 0 && (self.wanted + more > 0 || self.ahead);
        self.failing.as_ref().filter(|_| waiting).map(|failing| failing.due)
    }
}

/// The delay after the first failure. It is shorter than a controller's own retry, and long enough
/// to prevent a storm of attempts.
const FIRST: Duration = Duration::from_millis(50);
/// The longest delay, so that a recovered API server is found within 2 s.
const SLOWEST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::error::DialFailure;

    fn refused() -> Arc<DialError> {
        Arc::new(DialError { at: "localhost:1".into(), what: DialFailure::Refused })
    }

    #[test]
    fn after_a_failure_there_is_one_dial_at_a_time_ever_more_slowly() {
        let mut pacing = DialPace::default();
        let mut now = Moment::ZERO;
        pacing.wanted = 40;
        assert_eq!(pacing.begin(16, 0, 0, now), 16);
        assert!(pacing.failed(refused(), now, now + Duration::from_millis(1)));
        for _ in 0..15 {
            assert!(
                !pacing.failed(refused(), Moment::ZERO, now + Duration::from_millis(2)),
                "one volley is one failure"
            );
        }
        now += Duration::from_millis(1);
        let mut delays = Vec::new();
        for _ in 0..8 {
            pacing.wanted = 40;
            assert!(pacing.down(now).is_some());
            assert_eq!(pacing.begin(16, 0, 0, now), 0);
            let due = pacing.due(0).expect("a dial is wanted");
            delays.push((due - now).as_millis());
            now = due;
            assert!(pacing.down(now).is_none(), "a call may wait for the dial that is due");
            assert_eq!(pacing.begin(16, 0, 0, now), 1);
            assert_eq!(pacing.begin(16, 0, 0, now), 0);
            assert!(!pacing.failed(refused(), now, now));
        }
        assert_eq!(delays, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
    }

    #[test]
    fn a_success_ends_it() {
        let mut pacing = DialPace { wanted: 5, ..DialPace::default() };
        assert_eq!(pacing.begin(1, 0, 0, Moment::ZERO), 1);
        pacing.failed(refused(), Moment::ZERO, Moment::ZERO);
        assert!(pacing.recovered().is_some());
        assert!(pacing.down(Moment::ZERO).is_none());
        pacing.wanted = 5;
        assert_eq!(pacing.begin(16, 0, 0, Moment::ZERO), 5);
        pacing.succeeded();
        assert_eq!(pacing.begin(16, 0, 1, Moment::ZERO), 0, "four are under way for the four that wait");
    }
}
