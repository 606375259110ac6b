//! What a gate does while a store does not answer: it continues at its part of the rate.

use std::num::NonZeroU32;
use std::time::Duration;

use super::StoreFailure;
use crate::moment::Moment;
use crate::resources::{Bucket, Start};
use crate::{BucketPolicy, Outage};

/// An outage of a store.
#[derive(Debug)]
pub(super) struct StoreOutage {
    /// The bucket for the gate's part of the rate; `None` if calls wait until the store is back.
    pub(super) bucket: Option<Bucket>,
    /// The moment of the next request.
    pub(super) retry_at: Moment,
    backoff: Duration,
}

// === impl StoreOutage ===

impl StoreOutage {
    /// Begins an outage with an empty bucket, so that it brings no burst.
    pub(super) fn new(part: Option<BucketPolicy>, now: Moment) -> Self {
        let bucket = part.map(|part| Bucket::new(part, Start::Level(0, now)));
        Self { bucket, retry_at: now, backoff: Duration::ZERO }
    }

    /// Returns the gate's calls per second while the store is away; zero if its calls wait.
    pub(super) fn rate(&self) -> f64 {
        self.bucket.as_ref().map_or(0.0, |bucket| bucket.policy.rate)
    }

    /// Records a failed request; `spread` is a random number from 0 to 1 for the next attempt's
    /// delay.
    pub(super) fn failed(&mut self, why: StoreFailure, spread: f64, now: Moment) {
        self.backoff = (self.backoff * 2).clamp(FIRST, LONGEST);
        let least = if why == StoreFailure::Wrong { WRONG } else { Duration::ZERO };
        self.retry_at = now + self.backoff.mul_f64(0.5 + spread / 2.0).max(least);
    }
}

/// Returns the limits of one of `members` gates while the store is away; `None` if their calls
/// wait.
pub(super) fn part(limits: &BucketPolicy, outage: Outage, members: NonZeroU32) -> Option<BucketPolicy> {
    let parts = match outage {
        Outage::Share => members,
        Outage::Full => NonZeroU32::MIN,
        Outage::Stop => return None,
    };
    let burst = NonZeroU32::new(limits.burst.get() / parts).unwrap_or(NonZeroU32::MIN);
    Some(BucketPolicy::new(limits.rate / f64::from(parts.get()), burst))
}

/// The time from the first failed request to the second.
const FIRST: Duration = Duration::from_millis(50);
/// The longest time between two requests in an outage.
const LONGEST: Duration = Duration::from_secs(2);
/// The least time between two requests if a person has to change something.
const WRONG: Duration = Duration::from_secs(5);
