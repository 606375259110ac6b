//! The counts of a portion of a log's calls: all of them, or those of one caller, namespace or class.

use std::time::Duration;

use super::backlogs::{Backlogs, CurvePoint, knee, usual_rates};
use super::shape::Shape;
use super::{Goal, LEAST_CALLS, LEAST_TIME, RecommendError, Traffic};
use crate::simulate::replay::Record;
use crate::status::text::duration;

/// The recommended bucket for a portion of the calls, and the data behind it.
#[derive(Clone, Debug)]
pub struct PortionBucket {
    /// The program, the namespace or the class; empty for all calls.
    pub name: String,
    /// The recommended bucket, a point of the curve.
    pub knee: CurvePoint,
    /// The curve: the smallest burst for each rate above the average.
    pub(super) curve: Vec<CurvePoint>,
    pub(super) traffic: Traffic,
}

/// The counts of a portion.
#[derive(Debug)]
pub(super) struct Portion {
    traffic: Traffic,
    backlogs: Backlogs,
    shape: Shape,
}

// === impl Portion ===

impl Portion {
    pub(super) fn new(headroom: u32, largest: u16) -> Self {
        let backlogs = Backlogs::new(usual_rates(), headroom, largest);
        Self { traffic: Traffic::default(), backlogs, shape: Shape::default() }
    }

    /// Counts a call that takes tokens.
    pub(super) fn count(&mut self, record: &Record, cost: u16) {
        self.traffic.count(record.at, cost);
        self.backlogs.arrive(record.at, cost);
        self.shape.count(record);
    }

    /// Returns the bucket for these calls of a log of this length.
    pub(super) fn bucket(self, name: &str, length: Duration, goal: Goal) -> Result<PortionBucket, RecommendError> {
        let Self { traffic, backlogs, shape } = self;
        let much = format!("{} calls that take tokens, in {}", traffic.calls, duration(length.as_secs_f64()));
        let too_little = RecommendError::TooLittle(much);
        if length < LEAST_TIME || traffic.calls < LEAST_CALLS {
            return Err(too_little);
        }
        if let Some(limit) = shape.limit() {
            return Err(RecommendError::Shaped(limit));
        }
        // Tokens in 100 seconds.
        let mean = traffic.tokens.saturating_mul(100 + u64::from(goal.headroom)) / length.as_secs();
        let curve = backlogs.curve_above(mean, goal.wait);
        let knee = knee(&curve).ok_or(too_little)?;
        Ok(PortionBucket { name: name.to_owned(), knee, curve, traffic })
    }
}
