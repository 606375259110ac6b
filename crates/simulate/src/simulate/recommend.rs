//! `tidegate recommend`: the smallest bucket without too long waits for the recorded calls.
//!
//! One pass over a log finds the smallest burst for each of many rates (`backlogs`). In one second,
//! at most the rate and the burst together are sent. The recommended point (the knee) is the lowest
//! rate that refills its burst soon, and at which this number is within a tenth of its minimum. A
//! replay under that bucket then shows what the limiter would have done. Each portion of the calls
//! can have a bucket of its own.

mod backlogs;
mod portion;
pub mod report;
mod shape;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use self::portion::Portion;
use super::Limits;
use super::replay::{Candidate, LogReader, LogSelection, ReadCounts, Record, RecordedLog, ReplayError, ReplayResult};
use super::tally::Peak;
use crate::limit::policy::{Adapt, BucketPolicy};
use crate::limit::words;
use crate::moment::Moment;

pub use self::backlogs::CurvePoint;
pub(super) use self::backlogs::{Backlogs, knee, usual_rates};
pub use self::portion::PortionBucket;

/// The requirements for recommended buckets.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// The longest wait allowed for a call.
    pub wait: Duration,
    /// The percentage of calls to expect in addition to the recorded ones.
    pub headroom: u32,
    /// The portions with buckets of their own; `None` for one bucket for all calls.
    pub per: Option<Per>,
}

words! {
    /// A way to divide calls into portions.
    pub enum Per {
        /// By program, without its version.
        Caller = "caller",
        /// By the namespace of the object.
        Namespace = "namespace",
        /// By class, as the gate reads the call.
        Class = "class",
    }
}

/// Recommended buckets, and the data behind them.
#[derive(Debug)]
pub struct Recommendation {
    /// The selection of calls from the log.
    pub selection: LogSelection,
    /// The buckets, those for the most calls first.
    pub buckets: Vec<PortionBucket>,
    /// The portions without a bucket, each with the reason.
    without: Vec<String>,
    goal: Goal,
    /// The number of calls without a cost.
    exempt: u64,
    /// The number of calls of more portions than are counted.
    left_out: u64,
    /// The counts of the lines read.
    pub read: ReadCounts,
}

/// Why no bucket can be recommended.
#[derive(Debug, thiserror::Error)]
pub enum RecommendError {
    /// The log has none of the selected calls.
    #[error(transparent)]
    Log(#[from] ReplayError),
    /// The log is too short.
    #[error(
        "the log is too short to recommend limits from: {0}; expected at least {LEAST_CALLS}, and an hour with what causes the most \
         calls (a restart, a resync, a deployment)"
    )]
    TooLittle(String),
    /// A limit was already in force when the log was recorded, and shaped its calls.
    #[error(
        "a limit was in force during this log, so its peaks are not those of the clients: {0}; \
         record again without it (shadow = true at a gate, QPS = -1 in client-go)"
    )]
    Shaped(String),
}

/// Recommends buckets for the selected calls. They are read as by a gate with these limits.
///
/// # Errors
/// The log has none of the selected calls, is too short, or was shaped by a limit.
pub fn recommend(
    recorded: Vec<RecordedLog<'_>>,
    selection: &LogSelection,
    limits: &Limits,
    goal: Goal,
) -> Result<Recommendation, RecommendError> {
    let mut reader = LogReader::new(selection);
    let mut gate = Candidate::new(limits);
    let largest = limits.gate.policy.bucket.map_or(1, |bucket| bucket.largest_cost.get());
    let new = || Portion::new(goal.headroom, largest);
    let mut portions: BTreeMap<String, Portion> = BTreeMap::new();
    let mut exempt = 0;
    let mut left_out = 0;
    reader.files(recorded, &mut |record| {
        let cost = gate.tokens(record);
        if cost == 0 {
            return exempt += 1;
        }
        let name = goal.portion(record, &mut gate);
        let has_room = portions.len() < MOST_PORTIONS;
        match portions.get_mut(name) {
            Some(portion) => portion.count(record, cost),
            None if has_room => {
                portions.entry(name.to_owned()).or_insert_with(new).count(record, cost);
            }
            None => left_out += 1,
        }
    })?;
    if portions.is_empty() {
        portions.insert(String::new(), new());
    }
    let LogReader { selection, counts: read, .. } = reader;
    let mut buckets = Vec::new();
    let mut errors = Vec::new();
    for (name, portion) in portions {
        match portion.bucket(&name, read.length, goal) {
            Ok(bucket) => buckets.push(bucket),
            Err(error) => errors.push((name, error)),
        }
    }
    if buckets.is_empty()
        && let Some((_, error)) = errors.pop()
    {
        return Err(error);
    }
    buckets.sort_by_key(|bucket| std::cmp::Reverse(bucket.traffic.calls));
    let without = errors.into_iter().map(|(name, error)| format!("{name:?}: {error}")).collect();
    Ok(Recommendation { selection, buckets, without, goal, exempt, left_out, read })
}

/// Replays the calls of each portion under its bucket.
///
/// # Errors
/// The log has none of the selected calls.
pub fn replayed(
    recorded: Vec<RecordedLog<'_>>,
    limits: &Limits,
    found: &Recommendation,
) -> Result<Vec<ReplayResult>, ReplayError> {
    let mut reader = LogReader::new(&found.selection);
    let mut gate = Candidate::new(limits);
    let limited: Vec<Limits> = found.buckets.iter().map(|bucket| limits.with_bucket(bucket.knee)).collect();
    let names = found.buckets.iter().map(|bucket| &*bucket.name);
    let mut gates: BTreeMap<&str, Candidate<'_>> = names.zip(limited.iter().map(Candidate::new)).collect();
    reader.files(recorded, &mut |record| {
        if let Some(gate) = gates.get_mut(found.goal.portion(record, &mut gate)) {
            gate.arrive(record);
        }
    })?;
    Ok(gates.into_values().map(|gate| gate.end(found.read.length)).collect())
}

// === impl Goal ===

impl Goal {
    /// Returns the name of a call's portion.
    fn portion<'r, 'a: 'r>(&self, record: &'r Record, gate: &mut Candidate<'a>) -> &'r str {
        let request = &record.request;
        match self.per {
            None => "",
            Some(Per::Namespace) => &request.namespace,
            Some(Per::Class) => gate.class_name(record),
            Some(Per::Caller) => {
                let agent = &request.user_agent;
                agent.split_once('/').map_or(agent, |(program, _)| program)
            }
        }
    }
}

/// The counts of the calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    /// The calls that take tokens.
    calls: u64,
    pub(super) tokens: u64,
    pub(super) peak: Peak,
}

// === impl Traffic ===

impl Traffic {
    /// Forgets the last second if it is over.
    pub(super) fn forget(&mut self, now: Moment) {
        self.peak.forget(now);
    }

    /// Counts a call. Returns the number of calls in the second before it.
    pub(super) fn count(&mut self, at: Moment, cost: u16) -> usize {
        self.calls += 1;
        self.tokens += u64::from(cost);
        self.peak.count(at)
    }
}

// === impl Limits ===

impl Limits {
    /// Returns these limits with another bucket for the whole gate.
    pub fn with_bucket(&self, point: CurvePoint) -> Self {
        let mut limits = self.clone();
        let policy = &mut limits.gate.policy;
        let burst = u32::try_from(point.burst).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
        let new = BucketPolicy::new(point.in_a_second(), burst);
        let BucketPolicy { rate, adapt, largest_cost, counts_costs, .. } = policy.bucket.unwrap_or(new);
        let adapt = adapt.map(|adapt| Adapt { floor: adapt.floor.min(new.rate) });
        policy.bucket = Some(BucketPolicy { adapt, largest_cost, counts_costs, ..new });
        // `rate = "auto"` is a part of the bucket's rate.
        let opening = policy.retry_bucket.iter_mut().filter(|retries| retries.opens);
        opening.for_each(|retries| retries.rate *= new.rate / rate);
        limits
    }
}

/// The most portions with counts of their own.
const MOST_PORTIONS: usize = 10_000;
/// The least length of a log to recommend from.
const LEAST_TIME: Duration = Duration::from_secs(3600);
const LEAST_CALLS: u64 = 100;
