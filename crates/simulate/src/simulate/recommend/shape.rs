//! Signs of a limit in force while a log was recorded: its peaks are then not the clients' own.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::chart::thousands;
use crate::limit::Reason;
use crate::moment::Moment;
use crate::simulate::replay::{CallEnd, Record};

/// The number of calls with signs of a limit.
#[derive(Debug, Default)]
pub(super) struct Shape {
    calls: u64,
    /// The number of such calls for each limit.
    shaped: BTreeMap<String, u64>,
    last: Moment,
    /// The time between calls in the current run of evenly spaced calls.
    gap: Duration,
    run: u64,
}

// === impl Shape ===

impl Shape {
    /// Counts a call that takes tokens.
    pub(super) fn count(&mut self, record: &Record) {
        self.calls += 1;
        let gap = record.at.since(self.last);
        let is_even = gap.abs_diff(self.gap) <= self.gap / 10 && GAPS.contains(&gap);
        self.run = if is_even { self.run + 1 } else { 0 };
        self.gap = if is_even { self.gap } else { gap };
        self.last = record.at;
        let limit = match record.ending {
            CallEnd::Refused(reason) => of_gate(reason),
            CallEnd::Answered { status: 429, .. } => Some("a 429 of the API".to_owned()),
            _ if self.run > LONG_RUN => Some("an even pace, as of a limit in the client".to_owned()),
            _ => record.waited_for.and_then(of_gate),
        };
        limit.into_iter().for_each(|limit| *self.shaped.entry(limit).or_insert(0) += 1);
    }

    /// Returns a description of the limit met by most calls, if these are too many to recommend a
    /// bucket.
    pub(super) fn limit(&self) -> Option<String> {
        let (limit, count) = self.shaped.iter().max_by_key(|(_, count)| **count)?;
        let is_too_much = count.saturating_mul(ONE_IN) > self.calls;
        is_too_much.then(|| format!("{} of {} calls met {limit}", thousands(*count), thousands(self.calls)))
    }
}

/// Describes a reason for waiting; `None` if it is a consequence of failures.
fn of_gate(reason: Reason) -> Option<String> {
    let fails = matches!(reason, Reason::Backoff | Reason::OneAtATime | Reason::RetryBucket | Reason::Trial);
    (!fails).then(|| format!("the gate's own limit (`{reason}`)"))
}

/// At most one in this many calls may show signs of a limit. The same share of calls may wait too
/// long.
const ONE_IN: u64 = 1000;
/// The longest run of evenly spaced calls explained by chance.
const LONG_RUN: u64 = 100;
/// The times between calls under a limit inside a client: 4 to 500 calls a second.
const GAPS: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(250);
