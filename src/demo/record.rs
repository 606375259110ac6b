//! The record of a run: every call that reached the API, every object that converged, every lease
//! renewal.

use std::time::Duration;

use crate::moment::Moment;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A call of a worker, or an informer's list.
    Call,
    /// A call for a lease.
    Lease,
    /// An informer opened its watch.
    Watch,
}

/// A call that reached the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The moment, since the start of the run.
    pub at: Moment,
    /// The kind of the call.
    pub what: What,
    /// The API's answer.
    pub status: u16,
}

/// An object whose controller caught up with its wanted state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Converged {
    /// The moment, since the start of the run.
    pub at: Moment,
    /// The time since the change.
    pub took: Duration,
    /// True if its kind is behind the webhook that goes down.
    pub guarded: bool,
}

/// One attempt to renew a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The moment it began, since the start of the run.
    pub at: Moment,
    /// True if it failed, or took so long that the next one was due.
    pub late: bool,
}

/// The backlog of the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The moment, since the start of the run.
    pub at: Moment,
    /// Objects that have waited for longer than a second.
    pub overdue: usize,
}

/// Everything that was seen in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The calls in order of arrival, except for those under way.
    pub arrived: Vec<Arrived>,
    /// The converged objects, in order.
    pub converged: Vec<Converged>,
    /// The renewals, in order of their ends.
    pub renewals: Vec<Renewal>,
    /// The backlog, ten times a second.
    pub backlog: Vec<Backlog>,
    /// The most by which the run's own clock was late, because the machine was busy with other
    /// things.
    pub stalled: Duration,
}

// === impl Seen ===

impl Seen {
    /// Counts the calls in `[from, to)`, and those among them that the API answered with an error
    /// of its own.
    #[must_use]
    pub fn calls(&self, from: Moment, to: Moment) -> (usize, usize) {
        // The newest come first, out of order by the calls under way, so stop only well before
        // `from`.
        let enough = from.back(Duration::from_secs(1));
        let recent = self.arrived.iter().rev().take_while(|call| call.at >= enough);
        recent.filter(|call| call.at >= from && call.at < to).fold((0, 0), |(calls, errors), call| {
            (calls + 1, errors + usize::from(call.status >= 500 || call.status == 429))
        })
    }

    /// Returns the most calls of the kinds `what` in any window of `length`.
    #[must_use]
    pub fn most_calls(&self, length: Duration, what: &[What]) -> usize {
        let mut times: Vec<Moment> =
            self.arrived.iter().filter(|call| what.contains(&call.what)).map(|call| call.at).collect();
        times.sort_unstable();
        let mut first = 0;
        let mut most = 0;
        for (last, at) in times.iter().enumerate() {
            while *at - times[first] >= length {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        most
    }

    /// Returns a quantile of the time from change to convergence, of the objects that converged in
    /// `[from, to)` and are `wanted`.
    #[must_use]
    pub fn convergence(&self, q: f64, from: Moment, to: Moment, wanted: fn(&Converged) -> bool) -> Option<Duration> {
        let inside = self.converged.iter().filter(|it| it.at >= from && it.at < to && wanted(it));
        let mut times: Vec<Duration> = inside.map(|it| it.took).collect();
        times.sort_unstable();
        times.get(rank(q, times.len())?).copied()
    }

    /// Returns the number of late renewals.
    #[must_use]
    pub fn late_renewals(&self) -> usize {
        self.renewals.iter().filter(|renewal| renewal.late).count()
    }

    /// Returns the first moment from `from` on after which no object was overdue until the end.
    #[must_use]
    pub fn reconciled_after(&self, from: Moment) -> Option<Moment> {
        let last = self.backlog.iter().rposition(|sample| sample.at >= from && sample.overdue > 0);
        let next = last.map_or_else(|| self.backlog.iter().position(|sample| sample.at >= from), |last| Some(last + 1));
        self.backlog.get(next?).map(|sample| sample.at)
    }
}

/// Returns the index of quantile `q` among `count` sorted values.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a few thousand values and a fraction"
)]
fn rank(q: f64, count: usize) -> Option<usize> {
    let last = count.checked_sub(1)?;
    Some(((count as f64 * q).ceil() as usize).clamp(1, count).saturating_sub(1).min(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(millis: &[u64]) -> Seen {
        let call = |at: &u64| Arrived { at: Moment::from_millis(*at), what: What::Call, status: 200 };
        Seen { arrived: millis.iter().map(call).collect(), ..Seen::default() }
    }

    #[test]
    fn the_busiest_window_is_found_wherever_it_starts() {
        let seen = arrivals(&[0, 900, 950, 1000, 1899, 1900, 5000]);
        assert_eq!(seen.most_calls(Duration::from_secs(1), &[What::Call]), 4);
        assert_eq!(seen.most_calls(Duration::from_secs(1), &[What::Lease]), 0);
        assert_eq!(seen.calls(Moment::from_millis(900), Moment::from_millis(1000)), (2, 0));
    }

    #[test]
    fn settled_means_to_the_end() {
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
        let quantile = |q| seen.convergence(q, Moment::ZERO, Moment::MAX, |_| true).map(|it| it.as_millis());
        assert_eq!([quantile(0.5), quantile(0.99), quantile(1.0)], [Some(50), Some(99), Some(100)]);
        assert_eq!(Seen::default().convergence(0.5, Moment::ZERO, Moment::MAX, |_| true), None);
    }
}
