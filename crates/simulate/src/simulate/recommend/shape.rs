//! Signs that a limit had shaped the calls of a log: its peaks are then not the clients' own.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::chart::thousands;
use crate::limit::Reason;
use crate::moment::Moment;
use crate::simulate::replay::{CallEnd, Record};

/// The counts of calls with such a sign.
#[derive(Debug, Default)]
pub(super) struct Shape {
    calls: u64,
    /// By the limit.
    shaped: BTreeMap<String, u64>,
    last: Moment,
    /// The gap between evenly spaced calls, and their number.
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

    /// Returns the limit met by most calls, if they are too many.
    pub(super) fn limit(&self) -> Option<String> {
        let (limit, count) = self.shaped.iter().max_by_key(|(_, count)| **count)?;
        let is_too_much = count.saturating_mul(ONE_IN) > self.calls;
        is_too_much.then(|| format!("{} of {} calls met {limit}", thousands(*count), thousands(self.calls)))
    }
}

/// Names a reason, unless it follows a failure.
fn of_gate(reason: Reason) -> Option<String> {
    let fails = matches!(reason, Reason::Backoff | Reason::OneAtATime | Reason::RetryBucket | Reason::Trial);
    (!fails).then(|| format!("the gate's own limit (`{reason}`)"))
}

/// The share of calls that a limit may have shaped: the same that may wait too long.
const ONE_IN: u64 = 1000;
/// More equal gaps in a row than chance explains.
const LONG_RUN: u64 = 100;
/// The gaps of limits inside clients: 4 to 500 calls a second.
const GAPS: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(250);
