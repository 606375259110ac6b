//! The record of a run: calls at the API, objects reconciled, and lease renewals.

use std::time::Duration;

use crate::moment::Moment;

/// A call the API received.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApiCall {
    pub(super) at: Moment,
    /// True if the API answered with an error.
    pub(super) is_error: bool,
}

/// The completed reconcile of a changed object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Convergence {
    pub(super) at: Moment,
    /// The time from the change to the end of the reconcile.
    pub(super) took: Duration,
    /// True if the object is of a kind whose writes pass the failing webhook.
    pub(super) guarded: bool,
}

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
    /// The calls at the API in order of arrival, except for those still under way.
    pub(super) arrived: Vec<ApiCall>,
    /// The completed reconciles, in order.
    pub(super) converged: Vec<Convergence>,
    /// The attempts to renew a lease; true stands for one that failed, or took so long that the
    /// next was due.
    pub(super) renewals: Vec<bool>,
    /// The numbers of waiting objects, counted ten times a second.
    pub(super) backlog: Vec<Backlog>,
    /// The longest delay of the demo's own timer. A long one means that the machine was too busy
    /// for exact results.
    pub(super) stalled: Duration,
}

// === impl RunRecord ===

impl RunRecord {
    /// Returns the largest number of calls in any window of this length.
    pub(super) fn most_calls(&self, length: Duration) -> usize {
        let mut times: Vec<Moment> = self.arrived.iter().map(|call| call.at).collect();
        times.sort_unstable();
        let in_window = |(first, at): (usize, &Moment)| times.partition_point(|time| *time - *at < length) - first;
        times.iter().enumerate().map(in_window).max().unwrap_or(0)
    }

    /// Returns a quantile (in thousandths) of the times from change to reconcile, of those
    /// reconciles that `wanted` selects.
    pub(super) fn convergence(&self, permille: usize, wanted: impl Fn(&Convergence) -> bool) -> Option<Duration> {
        let mut times: Vec<Duration> = self.converged.iter().filter(|it| wanted(it)).map(|it| it.took).collect();
        times.sort_unstable();
        times.get((times.len() * permille).div_ceil(1000).saturating_sub(1)).copied()
    }

    /// Returns the number of late renewals, and of all renewals.
    pub(super) fn renewals(&self) -> (usize, usize) {
        (self.renewals.iter().filter(|late| **late).count(), self.renewals.len())
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

    fn arrivals(millis: &[u64]) -> RunRecord {
        let call = |at: &u64| ApiCall { at: Moment::from_millis(*at), is_error: false };
        RunRecord { arrived: millis.iter().map(call).collect(), ..RunRecord::default() }
    }

    #[test]
    fn the_busiest_window_is_found_wherever_it_starts() {
        let record = arrivals(&[0, 900, 950, 1000, 1899, 1900, 5000]);
        assert_eq!(record.most_calls(Duration::from_secs(1)), 4);
    }

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

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let took = |millis| Convergence { at: Moment::ZERO, took: Duration::from_millis(millis), guarded: false };
        let record = RunRecord { converged: (1..=100).map(took).collect(), ..RunRecord::default() };
        let quantile = |permille| record.convergence(permille, |_| true).map(|it| it.as_millis());
        assert_eq!([quantile(500), quantile(990), quantile(1000)], [Some(50), Some(99), Some(100)]);
        assert_eq!(RunRecord::default().convergence(500, |_| true), None);
    }
}
