//! The pace of a group's dials: many at a time while all is well, one at a time and ever more
//! slowly once a dial has failed.
//!
//! Pure. An outage must neither pin callers nor be met with a storm of dials; the first success
//! ends it.

use std::sync::Arc;
use std::time::Duration;

use super::error::DialError;
use crate::moment::Moment;

/// The dials of one group.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    /// Dials under way.
    pub(super) under_way: usize,
    /// Calls that wait for room, as last told. Never adjusted here: only changes are told.
    pub(super) wanted: usize,
    /// One more connection is to be there before it is needed.
    pub(super) ahead: bool,
    /// The last dial's failure, until one succeeds.
    failing: Option<Failing>,
}

/// A failure and the time of the next try.
#[derive(Debug)]
struct Failing {
    error: Arc<DialError>,
    since: Moment,
    delay: Duration,
    due: Moment,
}

impl Pacing {
    /// Returns the number of dials to start now, of which `at_once` may be under way together. They
    /// are for the calls that wait for room and `more` that wait here, less what is `free` already.
    /// They count as begun.
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

    /// Ends a dial that brought a connection. Returns the failure that this ends.
    pub(super) fn succeeded(&mut self) -> Option<Arc<DialError>> {
        self.under_way = self.under_way.saturating_sub(1);
        self.ahead = false;
        self.recovered()
    }

    /// Notes that a connection came up, by whichever dial. Returns the failure that this ends.
    pub(super) fn recovered(&mut self) -> Option<Arc<DialError>> {
        self.failing.take().map(|failing| failing.error)
    }

    /// Ends a dial begun at `begun` that failed. Returns true for the first failure of a streak,
    /// which is worth a line in the log.
    pub(super) fn failed(&mut self, error: Arc<DialError>, begun: Moment, now: Moment) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        self.ahead = false;
        let delay = match &self.failing {
            Some(failing) if begun < failing.since => return false, // of the same volley: says nothing new
            Some(failing) => (failing.delay * 2).min(SLOWEST),
            None => FIRST,
        };
        self.failing.replace(Failing { error, since: now, delay, due: now + delay }).is_none()
    }

    /// Returns the failure by which new calls fail at once, while the next dial is not due.
    pub(super) fn down(&self, now: Moment) -> Option<&Arc<DialError>> {
        self.failing.as_ref().filter(|failing| now < failing.due).map(|failing| &failing.error)
    }

    /// Returns the failure of the last dial, until one succeeds.
    pub(super) fn failing(&self) -> Option<&Arc<DialError>> {
        self.failing.as_ref().map(|failing| &failing.error)
    }

    /// Returns the time of a dial that is wanted but not due.
    pub(super) fn due(&self, more: usize) -> Option<Moment> {
        let waiting = self.under_way == 0 && (self.wanted + more > 0 || self.ahead);
        self.failing.as_ref().filter(|_| waiting).map(|failing| failing.due)
    }
}

/// The delay after the first failure: shorter than a controller's own retry, long enough to be no
/// storm.
const FIRST: Duration = Duration::from_millis(50);
/// The longest delay: an API server that is back is found within 2 s.
const SLOWEST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::error::DialFailure;

    fn refused() -> Arc<DialError> {
        Arc::new(DialError { at: "localhost:1".into(), what: DialFailure::Refused, unused_proxy: None })
    }

    #[test]
    fn after_a_failure_there_is_one_dial_at_a_time_ever_more_slowly() {
        let mut pacing = Pacing::default();
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
        let mut pacing = Pacing { wanted: 5, ..Pacing::default() };
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
