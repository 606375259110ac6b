//! The fixed part of every limit that a gate has where gates share a rate without a store.

use std::num::NonZeroU32;

use super::cursor::Cursor;
use super::limits;
use crate::limit::policy::{Adapt, BucketPolicy};

/// One of several equal parts of a rate. `fraction` is the part's size.
#[derive(Clone, Copy, Debug)]
pub(super) struct FixedPart {
    members: NonZeroU32,
    fraction: f64,
}

impl FixedPart {
    /// Checks the keys of the table `at`.
    pub(super) fn new(members: NonZeroU32, margin: f64, at: &Cursor<'_>) -> Option<Self> {
        let fits = (0.0..1.0).contains(&margin);
        if !fits {
            at.at("margin").problem(format!("is {margin:?}, expected a fraction from 0 to below 1, such as 0.05"));
        }
        fits.then(|| Self { members, fraction: (1.0 - margin) / f64::from(members.get()) })
    }

    /// Returns this part of a bucket, which has at least one token.
    pub(super) fn of(self, bucket: BucketPolicy, at: &Cursor<'_>) -> BucketPolicy {
        let Self { members, fraction } = self;
        let rate = bucket.rate * fraction;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a u32, rounded down")]
        let whole = NonZeroU32::new((f64::from(bucket.burst.get()) * fraction) as u32);
        let burst = whole.unwrap_or(NonZeroU32::MIN);
        if limits::takes_centuries(rate, burst) {
            let message = format!(
                "is {}, which leaves each of {members} gates too little to ever send; expected fewer members",
                bucket.rate
            );
            at.at("rate").problem(message);
            return bucket;
        }
        if whole.is_none() {
            let least = (1.0 / fraction).ceil();
            at.at("burst").warn(format!(
                "is {}, which leaves each of {members} gates a burst of 1, so that all together may send {members} at once; expected a \
                 burst of {least} or more, or fewer members",
                bucket.burst
            ));
        }
        let adapt = bucket.adapt.map(|Adapt { floor }| Adapt { floor: floor * fraction });
        BucketPolicy { rate, burst, adapt, ..bucket }
    }
}
