//! The record of a run: every call that reached the API, every object that converged, every lease
//! renewal.

use std::time::Duration;

use crate::moment::Moment;

/// A call that reached the API.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) at: Moment,
    /// True if the API answered with an error of its own.
    pub(super) is_error: bool,
}

/// An object whose controller caught up with its wanted state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Converged {
    pub(super) at: Moment,
    /// The time since the change.
    pub(super) took: Duration,
    /// True if its kind is behind the webhook that goes down.
    pub(super) guarded: bool,
}

/// The backlog of the controllers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backlog {
    pub(super) at: Moment,
    /// Objects that have waited for longer than a second.
    pub(super) overdue: usize,
}

/// Everything that was seen in one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The calls in order of arrival, except for those under way.
    pub(super) arrived: Vec<Arrived>,
    /// The converged objects, in order.
    pub(super) converged: Vec<Converged>,
    /// The attempts to renew a lease: true if one failed, or took so long that the next was due.
    pub(super) renewals: Vec<bool>,
    /// The backlog, ten times a second.
    pub(super) backlog: Vec<Backlog>,
    /// The most by which the run's own clock was late, because the machine was busy with other
    /// things.
    pub(super) stalled: Duration,
}

// === impl Seen ===

impl Seen {
    /// Counts the calls in `[from, to)`, and those among them that the API answered with an error
    /// of its own.
    pub(super) fn calls(&self, from: Moment, to: Moment) -> (usize, usize) {
        // The newest come first, out of order by the calls under way, so stop only well before
        // `from`.
        let enough = from.back(Duration::from_secs(1));
        let recent = self.arrived.iter().rev().take_while(|call| call.at >= enough);
        recent
            .filter(|call| call.at >= from && call.at < to)
            .fold((0, 0), |(calls, errors), call| (calls + 1, errors + usize::from(call.is_error)))
    }

    /// Returns the most calls in any window of `length`.
    pub(super) fn most_calls(&self, length: Duration) -> usize {
        let mut times: Vec<Moment> = self.arrived.iter().map(|call| call.at).collect();
        times.sort_unstable();
        let in_window = |(first, at): (usize, &Moment)| times.partition_point(|time| *time - *at < length) - first;
        times.iter().enumerate().map(in_window).max().unwrap_or(0)
    }

    /// Returns the time from change to convergence that `permille` of a thousand of the `wanted`
    /// objects do not exceed.
    pub(super) fn convergence(&self, permille: usize, wanted: impl Fn(&Converged) -> bool) -> Option<Duration> {
        let mut times: Vec<Duration> = self.converged.iter().filter(|it| wanted(it)).map(|it| it.took).collect();
        times.sort_unstable();
        times.get((times.len() * permille).div_ceil(1000).saturating_sub(1)).copied()
    }

    /// Returns the number of late renewals, and of all.
    pub(super) fn renewals(&self) -> (usize, usize) {
        (self.renewals.iter().filter(|late| **late).count(), self.renewals.len())
    }

    /// Returns the first moment from `from` on after which no object was overdue until the end.
    pub(super) fn reconciled_after(&self, from: Moment) -> Option<Moment> {
        let samples = &self.backlog[self.backlog.partition_point(|sample| sample.at < from)..];
        let last_overdue = samples.iter().rposition(|sample| sample.overdue > 0);
        samples.get(last_overdue.map_or(0, |last| last + 1)).map(|sample| sample.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(millis: &[u64]) -> Seen {
        let call = |at: &u64| Arrived { at: Moment::from_millis(*at), is_error: false };
        Seen { arrived: millis.iter().map(call).collect(), ..Seen::default() }
    }

    #[test]
    fn the_busiest_window_is_found_wherever_it_starts() {
        let seen = arrivals(&[0, 900, 950, 1000, 1899, 1900, 5000]);
        assert_eq!(seen.most_calls(Duration::from_secs(1)), 4);
        assert_eq!(seen.calls(Moment::from_millis(900), Moment::from_millis(1000)), (2, 0));
    }

    #[test]
    fn reconciled_means_to_the_end() {
        let sample = |at, overdue| Backlog { at: Moment::from_millis(at), overdue };
        let mut seen =
            Seen { backlog: vec![sample(0, 0), sample(100, 5), sample(200, 0), sample(300, 1)], ..Seen::default() };
        assert_eq!(seen.reconciled_after(Moment::ZERO), None);
        seen.backlog.push(sample(400, 0));
        assert_eq!(seen.reconciled_after(Moment::ZERO), Some(Moment::from_millis(400)));
        assert_eq!(seen.reconciled_after(Moment::from_millis(350)), Some(Moment::from_millis(400)));
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let took = |millis| Converged { at: Moment::ZERO, took: Duration::from_millis(millis), guarded: false };
        let seen = Seen { converged: (1..=100).map(took).collect(), ..Seen::default() };
        let quantile = |permille| seen.convergence(permille, |_| true).map(|it| it.as_millis());
        assert_eq!([quantile(500), quantile(990), quantile(1000)], [Some(50), Some(99), Some(100)]);
        assert_eq!(Seen::default().convergence(500, |_| true), None);
    }
}
