//! Replays recorded calls under hypothetical limits: how long each would have waited, and which
//! would have been refused.
//!
//! Arrivals are taken as they were, and the upstream answers each call as it did, after the same
//! time. How clients would have behaved otherwise is unknown: a call that a candidate refuses does
//! not come back, and a call that it admits earlier is not followed by the next any sooner. A call
//! that was refused when it was recorded has no answer; if a candidate admits it, it gets the last
//! answer of its key, in the usual time of its class.

mod candidate;
mod log_entry;
mod reader;
pub mod report;

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use self::candidate::{Candidate, is_failure};
use self::log_entry::Ending;
use self::reader::{Reader, Record};
use super::Limits;
use super::tally::{LeaseRow, Row};
use crate::moment::Moment;

pub use self::reader::ReadCounts;

/// A log of calls.
#[derive(derive_more::Debug)]
pub struct Recorded<'a> {
    /// Its name in messages.
    pub name: String,
    /// Its lines.
    #[debug(skip)]
    pub input: Box<dyn io::BufRead + 'a>,
}

/// The reason why calls could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A file could not be read to its end.
    #[error("{name} cannot be read on")]
    Input {
        /// The file.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// There is nothing to replay.
    #[error("no call of gate {gate:?} is in the log{others}")]
    Nothing {
        /// The gate.
        gate: String,
        /// The gates that the log has instead.
        others: String,
    },
}

/// Calls as they were, or as they would have been.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The name of the limits; "recorded" for the calls as they were.
    pub limits: String,
    /// The counts of each class, ordered by name.
    pub rows: Vec<Row>,
    /// The counts of all leases together.
    pub leases: LeaseRow,
    /// The number of leases.
    pub holders: usize,
    /// The time from the first call to the last.
    pub length: Duration,
}

impl Replayed {
    fn new(limits: &str, mut rows: Vec<Row>, leases: Leases, length: Duration) -> Self {
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        let limits = limits.to_owned();
        let holders = leases.renewed.len();
        Self { limits, rows, leases: LeaseRow { name: "leases".to_owned(), ..leases.row }, holders, length }
    }
}

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct Replays {
    /// The calls as they were, then under each of the limits.
    pub replayed: Vec<Replayed>,
    /// Counts of the lines that were read.
    pub read: ReadCounts,
}

/// Replays the calls of the gate `gate` under each of the limits. `progress` gets the number of
/// bytes read, now and then.
///
/// # Errors
/// A file cannot be read to its end, or has no call of that gate.
pub fn replay(
    recorded: Vec<Recorded<'_>>,
    gate: &str,
    limits: &[Limits],
    progress: &mut dyn FnMut(u64),
) -> Result<Replays, ReplayError> {
    let mut reader = Reader::new(gate);
    let mut past = Past::default();
    let mut candidates: Vec<Candidate<'_>> = limits.iter().map(Candidate::new).collect();
    let mut each = |record: &Record| {
        past.count(record);
        candidates.iter_mut().for_each(|candidate| candidate.arrive(record));
    };
    for Recorded { name, mut input } in recorded {
        let read = reader.file(&name, &mut *input, progress, &mut each);
        read.map_err(|source| ReplayError::Input { name, source })?;
    }
    reader.pass_on(0, &mut each);
    if past.rows.is_empty() {
        return Err(nothing(gate, &reader.counts));
    }
    let length = past.last.since_start();
    let mut replayed = vec![Replayed::new("recorded", past.rows.into_values().collect(), past.leases, length)];
    replayed.extend(candidates.into_iter().map(|candidate| candidate.end(length)));
    Ok(Replays { replayed, read: reader.counts })
}

fn nothing(gate: &str, counts: &ReadCounts) -> ReplayError {
    let names: Vec<&str> = counts.other_gates.keys().map(String::as_str).collect();
    let others = match (&names[..], counts.unreadable) {
        ([], 0) => String::new(),
        ([], unreadable) => format!("; {unreadable} lines cannot be read, the first at {}", counts.examples.join("; ")),
        (names, _) => {
            format!(", only of {}; choose one with --gate, and a configuration that has it", names.join(", "))
        }
    };
    ReplayError::Nothing { gate: gate.to_owned(), others }
}

/// The calls as they were.
#[derive(Default)]
struct Past {
    rows: HashMap<String, Row>,
    leases: Leases,
    last: Moment,
}

// === impl Past ===

impl Past {
    fn count(&mut self, record: &Record) {
        self.last = self.last.max(record.at);
        let class = &record.asked.class;
        let row = self.rows.entry(class.clone()).or_insert_with(|| Row::new(class, STEP));
        row.arrived(record.at);
        if let (Some(waited), Some(after)) = (record.waited, record.left_after) {
            row.left(record.at + after, waited, false);
        }
        match record.ending {
            Ending::Refused(reason) => row.was_refused(record.at, reason),
            Ending::GaveUp { .. } => row.gave_up += 1,
            Ending::Answered { after, status, .. } => {
                let at = record.at + record.left_after.unwrap_or_default() + after;
                if is_failure(status) {
                    row.failed(at);
                }
                self.leases.answered(record, status, at);
            }
            Ending::Lost | Ending::Aside => {}
        }
    }
}

/// Renewals of leases, by lease.
#[derive(Debug, Default)]
struct Leases {
    renewed: HashMap<u64, Moment>,
    row: LeaseRow,
}

// === impl Leases ===

impl Leases {
    /// Records the answer to a call that may have renewed a lease.
    fn answered(&mut self, record: &Record, status: u16, at: Moment) {
        let asked = &record.asked;
        let is_renewal = asked.resource == "leases" && asked.group == "coordination.k8s.io" && !asked.verb.is_read();
        if !is_renewal || status >= 400 {
            return;
        }
        // Exempt calls have no key in the log; then all leases of a namespace are taken for one.
        let lease = record.hashes.key.map_or_else(|| u64::try_from(asked.number).unwrap_or(0), |key| key.object);
        if self.renewed.len() >= MOST_LEASES && !self.renewed.contains_key(&lease) {
            return;
        }
        if let Some(before) = self.renewed.insert(lease, at) {
            let age = at - before;
            self.row.renewed(at, age);
            self.row.lost += u64::from(age > crate::config::scenario::Lease::DEADLINE);
        }
    }
}

/// The initial step of the series; it grows if the log is long.
const STEP: Duration = Duration::from_millis(100);
/// The most leases that are told apart. A process holds a few.
const MOST_LEASES: usize = 10_000;
