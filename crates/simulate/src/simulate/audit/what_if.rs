//! What a gate would have done to a log's callers: a second pass, through the limiter.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::Audit;
use super::callers::CallerNames;
use crate::simulate::Limits;
use crate::simulate::histogram::Histogram;
use crate::simulate::recommend::CurvePoint;
use crate::simulate::replay::{Candidate, LogReader, LogSelection, Record, RecordedLog, ReplayError, ReplayResult};
use crate::simulate::tally::Peak;
use crate::status::text::number;

/// What a gate with some limits would have done to a caller.
#[derive(Clone, Debug)]
pub struct WhatIf {
    /// The caller.
    pub caller: String,
    /// The limits: a bucket, or the name of a configuration.
    pub limits: String,
    /// All calls.
    pub calls: u64,
    /// The most calls in one second that came and take a token.
    pub peak: usize,
    /// The most of them that would have been sent in one second.
    pub peak_sent: usize,
    /// The calls that would have waited.
    pub waited: u64,
    /// The 99th percentile of the waits of all sent calls.
    pub wait_p99: Duration,
    /// The longest wait.
    pub wait_longest: Duration,
    /// The calls that would have been refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

/// A gate before one caller.
struct Trial<'a> {
    caller: &'a str,
    candidate: Candidate<'a>,
    arrived: Peak,
}

/// Replays the selected calls under `own` limits. Without these, replays the calls of each of the
/// loudest callers under the bucket found for it, if that lowers its peak.
///
/// # Errors
/// The log has none of the selected calls.
pub fn what_if(
    logs: Vec<RecordedLog<'_>>,
    selection: &LogSelection,
    found: &Audit,
    own: Option<&Limits>,
) -> Result<Vec<WhatIf>, ReplayError> {
    let callers = found.callers.iter().take(LOUDEST);
    let buckets = callers.filter_map(|caller| Some((&*caller.name, caller.bucket?, caller.peak)));
    let useful = buckets.filter(|(_, bucket, peak)| bucket.most() < *peak as u64);
    let found: Vec<(&str, Limits)> = useful.map(|(name, bucket, _)| (name, with(bucket))).collect();
    let all = selection.caller.as_deref().unwrap_or("all callers");
    let limits = own.map_or(found, |own| vec![(all, own.clone())]);
    let new = |(caller, limits)| Trial { caller, candidate: Candidate::new(limits), arrived: Peak::default() };
    let mut trials: Vec<Trial<'_>> = limits.iter().map(|(caller, limits)| new((*caller, limits))).collect();
    if trials.is_empty() {
        return Ok(Vec::new());
    }
    let by_name: HashMap<&str, usize> = trials.iter().enumerate().map(|(index, trial)| (trial.caller, index)).collect();
    let mut names = CallerNames::default();
    let mut reader = LogReader::new(selection);
    reader.files(logs, &mut |record| {
        let trial = if own.is_some() { Some(0) } else { by_name.get(names.name_of(&record.request)).copied() };
        trial.into_iter().for_each(|trial| trials[trial].arrive(record));
    })?;
    Ok(trials.into_iter().map(|trial| trial.end(reader.counts.length)).collect())
}

/// Returns the limits of a new gate with this bucket.
fn with(bucket: CurvePoint) -> Limits {
    let name = format!("bucket = {{ rate = {}, burst = {} }}", number(bucket.in_a_second()), bucket.burst);
    Limits { name, ..crate::simulate::usual().with_bucket(bucket) }
}

// === impl Trial ===

impl Trial<'_> {
    fn arrive(&mut self, record: &Record) {
        if self.candidate.tokens(record) > 0 {
            self.arrived.count(record.at);
        }
        self.candidate.arrive(record);
    }

    fn end(self, length: Duration) -> WhatIf {
        let ReplayResult { limits, rows, peak, .. } = self.candidate.end(length);
        let mut waits = Histogram::default();
        rows.iter().for_each(|row| waits.merge(&row.waits));
        let mut refused = BTreeMap::new();
        for (reason, count) in rows.iter().flat_map(|row| row.refusals_by_reason()) {
            *refused.entry(reason.word()).or_insert(0) += count;
        }
        WhatIf {
            caller: self.caller.to_owned(),
            limits,
            calls: rows.iter().map(|row| row.arrived).sum(),
            peak: self.arrived.most,
            peak_sent: peak,
            waited: waits.over(Duration::ZERO),
            wait_p99: waits.quantile(990),
            wait_longest: waits.max,
            refused,
        }
    }
}

/// The callers to replay.
const LOUDEST: usize = 3;
