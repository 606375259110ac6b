//! The counts of calls in a simulation or a replay.

use std::collections::VecDeque;
use std::time::Duration;

use super::histogram::Histogram;
use super::series::{Column, Series};
use crate::limit::Reason;
use crate::moment::Moment;

/// The counts of one controller or one class.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// The name of the controller or class.
    pub name: String,
    /// The number of arrived calls.
    pub arrived: u64,
    /// The number of calls sent upstream.
    pub sent: u64,
    /// The number of retries sent upstream.
    pub retries: u64,
    /// The number of objects changed but not reconciled by the end.
    pub unreconciled: u64,
    /// The number of calls with a failure response of the upstream.
    pub failed: u64,
    pub(super) gave_up: u64,
    refusals: [u64; Reason::ALL.len()],
    /// The waiting times of the sent calls; zero for calls sent at once.
    pub waits: Histogram,
    /// The times from the change of an object to the end of its reconcile.
    pub reconciled: Histogram,
    /// The numbers of calls and of retries sent in the first second.
    pub(super) early: [u64; 2],
    pub(super) counts: Series,
}

/// The most calls in one second.
#[derive(Clone, Debug, Default)]
pub struct Peak {
    /// The times of the calls in the last second.
    second: VecDeque<Moment>,
    /// The most calls so far.
    pub most: usize,
}

/// The counts of one lease.
#[derive(Clone, Debug, Default)]
pub struct LeaseRow {
    /// The name of the lease.
    pub name: String,
    /// The number of successful renewals.
    pub renewals: u64,
    /// The longest time between renewals.
    pub longest: Duration,
    /// The number of times the deadline was missed.
    pub lost: u64,
    /// The time of each renewal, with the time since the renewal before it.
    pub(super) ages: Vec<(Duration, Duration)>,
}

// === impl Row ===

impl Row {
    /// Creates a row without calls. `step` is the length of a step of the counts over time, at first.
    pub fn new(name: &str, step: Duration) -> Self {
        Self { name: name.to_owned(), counts: Series::new(step), ..Self::default() }
    }

    pub(super) fn arrived(&mut self, at: Moment) {
        self.arrived += 1;
        self.counts.add(Column::Arrived, at, 1);
    }

    /// Counts a call sent upstream.
    pub fn sent(&mut self, at: Moment, waited: Duration, is_retry: bool) {
        let retries = u64::from(is_retry);
        self.sent += 1;
        self.retries += retries;
        self.waits.add(waited);
        self.counts.add(Column::Sent, at, 1);
        self.counts.add(Column::Retries, at, retries);
        self.counts.add(Column::Waited, at, u64::try_from(waited.as_micros()).unwrap_or(u64::MAX));
        if at.since_start() < Duration::from_secs(1) {
            self.early[0] += 1;
            self.early[1] += retries;
        }
    }

    /// Counts a failure response.
    pub fn failed(&mut self, at: Moment) {
        self.failed += 1;
        self.counts.add(Column::Failed, at, 1);
    }

    pub(super) fn refused(&mut self, at: Moment, reason: Reason) {
        self.refusals[reason as usize] += 1;
        self.counts.add(Column::Refused, at, 1);
    }

    /// Returns the number of sent calls in each step.
    pub fn counts_sent(&self) -> impl Iterator<Item = (Duration, u64)> {
        self.counts.steps().map(|(at, counts)| (at, counts[Column::Sent as usize]))
    }

    /// Returns the number of refused calls.
    pub fn refusals(&self) -> u64 {
        self.refusals.iter().sum()
    }

    /// Returns the number of refused calls for each reason.
    pub fn refusals_by_reason(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.refusals).filter(|(_, count)| *count > 0)
    }
}

// === impl Peak ===

impl Peak {
    /// Counts a call, in order of time. Returns the number of calls in the second before it.
    pub fn count(&mut self, at: Moment) -> usize {
        while self.second.front().is_some_and(|first| at.since(*first) >= Duration::from_secs(1)) {
            self.second.pop_front();
        }
        self.second.push_back(at);
        self.most = self.most.max(self.second.len());
        self.second.len()
    }

    /// Forgets the last second if it is over.
    pub(super) fn forget(&mut self, now: Moment) {
        if self.second.back().is_some_and(|last| now.since(*last) >= Duration::from_secs(1)) {
            self.second = VecDeque::new();
        }
    }
}

// === impl LeaseRow ===

impl LeaseRow {
    /// Records a renewal at `at`; `age` is the time since the one before it.
    pub(super) fn renewed(&mut self, at: Moment, age: Duration) {
        self.renewals += 1;
        self.longest = self.longest.max(age);
        if self.ages.len() < MOST_AGES {
            self.ages.push((at.since_start(), age));
        }
    }
}

/// The most renewals to record: more than a chart can show.
const MOST_AGES: usize = 2000;
