//! Replays recorded calls under hypothetical limits, to predict waiting times and refusals.
//!
//! Calls arrive when they did, and the upstream responds as it did, after the same time. Clients
//! cannot react: a refused call is not repeated, and if a call is sent earlier, the next one still
//! arrives when it did. A call that was refused in the recording has no response. If the
//! hypothetical limits admit it, it gets the last response of its key, after the usual time of its
//! class.

mod candidate;
mod log_entry;
mod pieces;
mod reader;
pub mod report;

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::io;
use std::time::Duration;

pub(super) use self::candidate::Candidate;
use self::candidate::is_failure;
pub(super) use self::log_entry::CallEnd;
pub(super) use self::reader::{LogReader, Record, RecordedRequest};
pub use self::reader::{LogSelection, ReadCounts, first_call};
use super::Limits;
use super::tally::{LeaseRow, Row};
use crate::moment::Moment;

/// A recorded log: a gate's call log, or an audit log.
#[derive(derive_more::Debug)]
pub struct RecordedLog<'a> {
    /// The name to use in messages.
    pub name: String,
    /// The lines of the log.
    #[debug(skip)]
    pub input: Box<dyn io::BufRead + 'a>,
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log has none of the selected calls.
    #[error("the log has no call{of}{others}")]
    Nothing {
        /// The gate and the caller, as part of the message.
        of: String,
        /// A hint for the message, such as the names of other gates in the log.
        others: String,
    },
}

// === impl ReplayError ===

impl ReplayError {
    fn nothing(selection: &LogSelection, counts: &ReadCounts) -> Self {
        let gate = Some(&selection.gate).filter(|gate| !gate.is_empty()).map(|gate| format!(" of gate {gate:?}"));
        let caller = selection.caller.as_ref().map(|caller| format!(" of caller {caller:?}"));
        let names: Vec<&str> = counts.other_gates.keys().map(String::as_str).collect();
        let others = match (counts, &names[..]) {
            (ReadCounts { other_callers: 1.., .. }, _) => {
                format!(", only {} of other callers; expected a user or a program", counts.other_callers)
            }
            (ReadCounts { lines: 0, .. }, _) => format!(
                ": it is empty; expected {LOGS}. In an audit policy, a rule of level None keeps calls out: set Metadata"
            ),
            (ReadCounts { other_stages: 1.., .. }, []) => format!(
                "; {} events are of another stage than ResponseComplete; take that one out of the audit policy's omitStages",
                counts.other_stages
            ),
            (ReadCounts { unreadable: 1.., .. }, []) => {
                let examples = counts.examples.join("; ");
                format!("; {} lines cannot be read, the first at {examples}; expected {LOGS}", counts.unreadable)
            }
            (ReadCounts { other_logs: 1.., .. }, []) => {
                format!(", only {} lines of other logs; expected {LOGS}", counts.other_logs)
            }
            (_, []) => format!("; expected {LOGS}, with calls that got a response"),
            (_, names) => {
                format!(", only of {}; choose one with --gate, and a configuration that has it", names.join(", "))
            }
        };
        Self::Nothing { of: [gate, caller].into_iter().flatten().collect(), others }
    }
}

/// The counts of the calls, either as recorded or as replayed under some limits.
#[derive(Clone, Debug)]
pub struct ReplayResult {
    /// The name of the limits, or "recorded".
    pub limits: String,
    /// The counts of each class, ordered by name.
    pub rows: Vec<Row>,
    /// The counts of all leases together.
    pub leases: LeaseRow,
    /// The number of leases.
    pub holders: usize,
    /// The time from the first call to the last one.
    pub length: Duration,
    /// The most calls in one second that were sent and took a token; zero as recorded.
    pub(super) peak: usize,
}

// === impl ReplayResult ===

impl ReplayResult {
    fn new(limits: &str, mut rows: Vec<Row>, leases: Leases, length: Duration) -> Self {
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        let limits = limits.to_owned();
        let holders = leases.renewed.len();
        let leases = LeaseRow { name: "leases".to_owned(), ..leases.row };
        Self { limits, rows, leases, holders, length, peak: 0 }
    }
}

/// The results of a replay.
#[derive(Clone, Debug)]
pub struct Replays {
    /// The counts as recorded, followed by those under each of the limits.
    pub replayed: Vec<ReplayResult>,
    /// The counts of the lines read, and of those not used.
    pub read: ReadCounts,
}

/// Replays the selected calls under each of the limits.
///
/// # Errors
/// The log has none of the selected calls.
pub fn replay(logs: Vec<RecordedLog<'_>>, calls: &LogSelection, limits: &[Limits]) -> Result<Replays, ReplayError> {
    let mut reader = LogReader::new(calls);
    let mut past = RecordedCalls::default();
    let mut candidates: Vec<Candidate<'_>> = limits.iter().map(Candidate::new).collect();
    reader.files(logs, &mut |record| {
        past.count(record);
        candidates.iter_mut().for_each(|candidate| candidate.arrive(record));
    })?;
    let length = past.last.since_start();
    let mut replayed = vec![ReplayResult::new("recorded", past.rows.into_values().collect(), past.leases, length)];
    replayed.extend(candidates.into_iter().map(|candidate| candidate.end(length)));
    Ok(Replays { replayed, read: reader.counts })
}

/// The counts of the calls as recorded.
#[derive(Default)]
struct RecordedCalls {
    rows: HashMap<String, Row>,
    leases: Leases,
    last: Moment,
}

// === impl RecordedCalls ===

impl RecordedCalls {
    fn count(&mut self, record: &Record) {
        self.last = self.last.max(record.at);
        let class = &record.request.class;
        let row = self.rows.entry(class.clone()).or_insert_with(|| Row::new(class, STEP));
        row.arrived(record.at);
        if let (Some(waited), Some(after)) = (record.waited, record.sent_after) {
            row.sent(record.at + after, waited, false);
        }
        match record.ending {
            CallEnd::Refused(reason) => row.refused(record.at, reason),
            CallEnd::GaveUp { .. } => row.gave_up += 1,
            CallEnd::Answered { after, status, .. } => {
                let at = record.at + record.sent_after.unwrap_or_default() + after;
                if is_failure(status) {
                    row.failed(at);
                }
                self.leases.answered(record, status, at);
            }
            CallEnd::Lost | CallEnd::NotReplayed => {}
        }
    }
}

/// The renewals of each lease in a log.
#[derive(Debug, Default)]
struct Leases {
    renewed: HashMap<u64, Moment>,
    row: LeaseRow,
}

// === impl Leases ===

impl Leases {
    /// Counts a response, if it is to the renewal of a lease.
    fn answered(&mut self, record: &Record, status: u16, at: Moment) {
        let request = &record.request;
        let is_renewal =
            request.resource == "leases" && request.group == "coordination.k8s.io" && !request.verb.is_read();
        if !is_renewal || status >= 400 {
            return;
        }
        // Exempt calls have no key in the log: all leases of a namespace count as one.
        let lease = record.hashes.key.map_or_else(|| self.renewed.hasher().hash_one(request), |key| key.object);
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

/// The initial length of a step in the counts over time. It grows if the log is long.
const STEP: Duration = Duration::from_millis(100);
/// The most leases counted separately. A process usually has a few.
const MOST_LEASES: usize = 10_000;
/// A description of the readable kinds of logs.
const LOGS: &str =
    "the call log of a gate (log.calls), an audit log of kube-apiserver (audit.k8s.io/v1), or CloudTrail";
