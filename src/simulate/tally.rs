//! The counts of a simulation or a replay.

use std::time::Duration;

use super::{histogram::Histogram, series::Series};
use crate::{limit::Reason, moment::Moment};

/// The columns of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Calls that arrived.
    Arrived,
    /// Calls that left for the upstream.
    Sent,
    /// Of these, those that repeat what had failed.
    Retries,
    /// Failures that the upstream answered.
    Failed,
    /// Calls that the gate refused.
    Refused,
    /// Microseconds that the calls which left had waited.
    Waited,
}

impl What {
    /// Each column with its name.
    pub(super) const COLUMNS: [(Self, &'static str); 6] = [
        (Self::Arrived, "arrived"),
        (Self::Sent, "sent"),
        (Self::Retries, "retries"),
        (Self::Failed, "failed"),
        (Self::Refused, "refused"),
        (Self::Waited, "waited_us"),
    ];
}

/// Every column over time.
pub(super) type Counts = Series<{ What::COLUMNS.len() }>;

/// The counts of one controller, or one class.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    pub(super) arrived: u64,
    pub(super) sent: u64,
    pub(super) retries: u64,
    pub(super) failed: u64,
    pub(super) refused: [u64; Reason::ALL.len()],
    pub(super) gave_up: u64,
    /// The waits of the calls that left; no wait counts as zero.
    pub(super) waits: Histogram,
    /// The times from an object's change to its reconcile.
    pub(super) reconciled: Histogram,
    /// The objects that had changed and were not reconciled at the end.
    pub(super) unreconciled: u64,
    /// Calls and retries that left before a second had passed.
    pub(super) early: [u64; 2],
    pub(super) counts: Counts,
}

/// The counts of one lease.
#[derive(Clone, Debug)]
pub struct LeaseRow {
    /// Its name.
    pub name: String,
    /// Renewals that succeeded.
    pub(super) renewals: u64,
    /// The longest time without a renewal.
    pub(super) longest: Duration,
    /// The number of times that the deadline passed.
    pub(super) lost: u64,
    /// The moments of successful renewals, each with the age of the lease at that moment.
    pub(super) ages: Vec<(Duration, Duration)>,
}

// === impl Row ===

impl Row {
    pub(super) fn new(name: &str, step: Duration) -> Self {
        Self {
            name: name.to_owned(),
            arrived: 0,
            sent: 0,
            retries: 0,
            failed: 0,
            refused: [0; Reason::ALL.len()],
            gave_up: 0,
            waits: Histogram::default(),
            reconciled: Histogram::default(),
            unreconciled: 0,
            early: [0; 2],
            counts: Series::new(step),
        }
    }

    pub(super) fn arrived(&mut self, at: Moment) {
        self.arrived += 1;
        self.counts.add(What::Arrived as usize, at);
    }

    pub(super) fn left(&mut self, at: Moment, waited: Duration, is_retry: bool) {
        self.sent += 1;
        self.waits.add(waited);
        self.counts.add(What::Sent as usize, at);
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        self.counts.add_many(What::Waited as usize, at, micros);
        if at.since_start() < Duration::from_secs(1) {
            self.early[0] += 1;
            self.early[1] += u64::from(is_retry);
        }
        if is_retry {
            self.retries += 1;
            self.counts.add(What::Retries as usize, at);
        }
    }

    pub(super) fn failed(&mut self, at: Moment) {
        self.failed += 1;
        self.counts.add(What::Failed as usize, at);
    }

    pub(super) fn was_refused(&mut self, at: Moment, reason: Reason) {
        let place = Reason::ALL.iter().position(|other| *other == reason);
        if let Some(count) = place.and_then(|place| self.refused.get_mut(place)) {
            *count += 1;
        }
        self.counts.add(What::Refused as usize, at);
    }

    /// Returns the number of refused calls, for all reasons together.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Returns the number of refused calls for each reason that occurred.
    pub fn refusals_by_reason(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.refused).filter(|(_, count)| *count > 0)
    }

    /// Returns the number of calls that arrived.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.arrived
    }

    /// Returns the number of calls that left for the upstream.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.sent
    }

    /// Returns the number of calls that left and repeat what had failed.
    #[must_use]
    pub fn retried(&self) -> u64 {
        self.retries
    }

    /// Returns the wait that `permille` of a thousand calls that left did not exceed.
    #[must_use]
    pub fn wait(&self, permille: u64) -> Duration {
        self.waits.quantile(permille)
    }

    /// Returns the longest wait of a call that left.
    #[must_use]
    pub fn longest_wait(&self) -> Duration {
        self.waits.max()
    }

    /// Returns the time from change to reconcile, with `permille` as in [`Row::wait`].
    #[must_use]
    pub fn convergence(&self, permille: u64) -> Duration {
        self.reconciled.quantile(permille)
    }

    /// Returns the number of objects that were not reconciled at the end.
    #[must_use]
    pub fn unreconciled(&self) -> u64 {
        self.unreconciled
    }
}

// === impl LeaseRow ===

impl LeaseRow {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), renewals: 0, longest: Duration::ZERO, lost: 0, ages: Vec::new() }
    }

    /// Records a renewal after `age`.
    pub(super) fn renewed(&mut self, at: Moment, age: Duration) {
        self.renewals += 1;
        self.longest = self.longest.max(age);
        if self.ages.len() < MOST_AGES {
            self.ages.push((at.since_start(), age));
        }
    }

    /// Returns the longest time without a renewal.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Returns the number of renewals that succeeded.
    #[must_use]
    pub fn renewals(&self) -> u64 {
        self.renewals
    }

    /// Returns the number of times that the deadline passed without a renewal.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

/// More ages than a picture shows.
const MOST_AGES: usize = 2000;
