//! The record of a run: calls at the API, objects reconciled, and lease renewals.

use std::time::Duration;

use crate::moment::Moment;
use crate::simulate::{Histogram, Peak, Row};

/// The number of objects waiting for the controllers at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backlog {
    pub(super) at: Moment,
    /// The number of objects that have waited for more than a second.
    pub(super) overdue: usize,
}

/// The measurements of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunRecord {
    /// The calls at the API.
    pub(super) calls: Row,
    pub(super) peak: Peak,
    /// The times from change to reconcile of healthy objects, while the webhook was down.
    pub(super) healthy: Histogram,
    /// The attempts to renew a lease.
    pub(super) renewals: u64,
    /// The attempts that failed, or took so long that the next was due.
    pub(super) late: u64,
    /// The numbers of waiting objects, counted ten times a second.
    pub(super) backlog: Vec<Backlog>,
    /// The longest delay of the demo's own timer. A long one means that the machine was too busy
    /// for exact results.
    pub(super) stalled: Duration,
}

// === impl RunRecord ===

impl RunRecord {
    pub(super) fn new() -> Self {
        Self { calls: Row::new("calls", Duration::from_millis(50)), ..Self::default() }
    }

    /// Records a call that the API received.
    pub(super) fn called(&mut self, at: Moment) {
        self.calls.sent(at, Duration::ZERO, false);
        self.peak.count(at);
    }

    /// Counts an attempt to renew a lease.
    pub(super) fn renewed(&mut self, is_late: bool) {
        self.renewals += 1;
        self.late += u64::from(is_late);
    }

    /// Returns the first moment after `from` since which no object was overdue; `None` if objects
    /// are overdue at the end.
    pub(super) fn reconciled_after(&self, from: Moment) -> Option<Moment> {
        let samples = &self.backlog[self.backlog.partition_point(|sample| sample.at < from)..];
        let last_overdue = samples.iter().rposition(|sample| sample.overdue > 0);
        samples.get(last_overdue.map_or(0, |last| last + 1)).map(|sample| sample.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconciled_means_to_the_end() {
        let sample = |at, overdue| Backlog { at: Moment::from_millis(at), overdue };
        let mut record = RunRecord {
            backlog: vec![sample(0, 0), sample(100, 5), sample(200, 0), sample(300, 1)],
            ..RunRecord::default()
        };
        assert_eq!(record.reconciled_after(Moment::ZERO), None);
        record.backlog.push(sample(400, 0));
        assert_eq!(record.reconciled_after(Moment::ZERO), Some(Moment::from_millis(400)));
        assert_eq!(record.reconciled_after(Moment::from_millis(350)), Some(Moment::from_millis(400)));
    }
}
