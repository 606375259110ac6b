//! `tidegate recommend`: the smallest bucket without too long waits for the recorded calls.
//!
//! One pass over a log finds the smallest burst for each of many rates (`backlogs`). In one second,
//! at most the rate and the burst together are sent. The recommended point (the knee) is the lowest
//! rate at which this number is within a tenth of its minimum. A [`replay`](super::replay) under
//! that bucket then shows what the limiter would have done.

mod backlogs;
pub mod report;
mod shape;

use std::num::NonZeroU32;
use std::time::Duration;

use self::shape::Shape;
use super::Limits;
use super::replay::{Candidate, LogReader, LogSelection, ReadCounts, RecordedLog, ReplayError};
use super::tally::Peak;
use crate::limit::policy::{Adapt, BucketPolicy};
use crate::moment::Moment;
use crate::status::text::duration;

pub use self::backlogs::CurvePoint;
pub(super) use self::backlogs::{Backlogs, knee, usual_rates};

/// The requirements for a recommended bucket.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// The longest wait allowed for a call.
    pub wait: Duration,
    /// The percentage of calls to expect in addition to the recorded ones.
    pub headroom: u32,
}

/// A recommended bucket, and the data behind it.
#[derive(Clone, Debug)]
pub struct Recommendation {
    /// The selection of calls from the log.
    pub selection: LogSelection,
    /// The recommended bucket, a point of the curve.
    pub knee: CurvePoint,
    /// The curve: the smallest burst for each rate above the average.
    curve: Vec<CurvePoint>,
    goal: Goal,
    traffic: Traffic,
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

/// Recommends a bucket for the selected calls. They are read as by a gate with these limits.
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
    let mut backlogs = Backlogs::new(usual_rates(), goal.headroom, largest);
    let mut shape = Shape::default();
    let mut traffic = Traffic::default();
    reader.files(recorded, &mut |record| {
        let cost = gate.tokens(record);
        if cost == 0 {
            return traffic.exempt += 1;
        }
        traffic.count(record.at, cost);
        backlogs.arrive(record.at, cost);
        shape.count(record);
    })?;
    let LogReader { selection, counts: read, .. } = reader;
    let much = format!("{} calls that take tokens, in {}", traffic.calls, duration(read.length.as_secs_f64()));
    let too_little = RecommendError::TooLittle(much);
    if read.length < LEAST_TIME || traffic.calls < LEAST_CALLS {
        return Err(too_little);
    }
    if let Some(limit) = shape.limit() {
        return Err(RecommendError::Shaped(limit));
    }
    // Tokens in 100 seconds.
    let mean = traffic.tokens.saturating_mul(100 + u64::from(goal.headroom)) / read.length.as_secs();
    let curve = backlogs.curve_above(mean, goal.wait);
    let knee = knee(&curve).ok_or(too_little)?;
    Ok(Recommendation { selection, knee, curve, goal, traffic, read })
}

/// The counts of the calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    /// The calls that take tokens.
    calls: u64,
    tokens: u64,
    /// The number of calls without a cost.
    exempt: u64,
    /// The calls with a cost.
    peak: Peak,
}

// === impl Traffic ===

impl Traffic {
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the number of calls in the last second.
    pub(super) fn in_last_second(&self) -> usize {
        self.second.len()
    }

    /// Returns the most calls in one second.
    pub(super) fn peak(&self) -> usize {
        self.peak.most()
    }

    pub(super) fn count(&mut self, at: Moment, cost: u16) {
        self.calls += 1;
        self.tokens += u64::from(cost);
        self.peak.count(at);
    }
}

// === impl Limits ===

impl Limits {
    /// Returns these limits with another bucket for the whole gate.
    #[must_use]
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

/// The least length of a log to recommend from.
const LEAST_TIME: Duration = Duration::from_secs(3600);
const LEAST_CALLS: u64 = 100;
