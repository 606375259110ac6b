//! The earliest time of a token for a call with other calls ahead of it.
//!
//! While the calls ahead are sent, a slowed rate may rise again, and its burst with it. The
//! estimate assumes the highest rate possible by then, so no token comes sooner.

use super::{Adaptive, Bucket, clamp, period};
use crate::BucketPolicy;
use crate::moment::Moment;

// === impl Bucket ===

impl Bucket {
    /// Returns the earliest moment of a call's tokens, not before `from`, if the calls ahead of it
    /// take `tokens`. Changes nothing.
    pub(crate) fn ready_after(&self, tokens: usize, from: Moment, now: Moment) -> Moment {
        let taken = (tokens as u64).saturating_mul(self.period);
        let full_again = self.tat.get().max(clamp(from)).saturating_add(taken);
        let at = from.max(Moment::from_nanos(full_again.saturating_sub(self.tolerance())));
        match self.adaptive.filter(Adaptive::is_slowed) {
            Some(adaptive) if at > from => from.max(self.ready_at_best(adaptive, tokens, from, at, now)),
            _ => at,
        }
    }

    /// Returns the earliest moment of a call's tokens for a rate that may rise meanwhile. `at` is
    /// the moment at the present rate.
    #[cold]
    fn ready_at_best(&self, adaptive: Adaptive, tokens: usize, from: Moment, at: Moment, now: Moment) -> Moment {
        // The next take also counts some of the time since the last.
        let best = self.slowed(adaptive.at_best(self.counted(true, now).saturating_add(at - now)));
        let fastest = period(&best);
        // What is missing now comes from now on; a bucket that is full at `from` holds no more.
        let debt = self.tat.get().saturating_sub(clamp(now));
        let wait = u128::from(missing(debt, tokens, self.period, &self.policy));
        let wait = (wait * u128::from(fastest)).div_ceil(u128::from(self.period.max(1)));
        let since_now = clamp(now).saturating_add(u64::try_from(wait).unwrap_or(u64::MAX));
        let since_full = clamp(from).saturating_add(missing(0, tokens, fastest, &best));
        Moment::from_nanos(since_now.max(since_full))
    }

    /// Returns the limits in force after one more call now. Changes nothing.
    pub(crate) fn next_policy(&self, now: Moment) -> BucketPolicy {
        let Some(mut adaptive) = self.adaptive.filter(Adaptive::is_slowed) else { return self.policy };
        if adaptive.grow(self.counted(self.short, now)) { self.slowed(adaptive) } else { self.policy }
    }

    /// Returns the limits an adapted rate puts in force.
    pub(super) fn slowed(&self, adaptive: Adaptive) -> BucketPolicy {
        let burst = adaptive.burst(self.limits.burst).max(self.limits.largest_cost.into());
        BucketPolicy { rate: adaptive.rate, burst, ..self.limits }
    }
}

/// Returns the nanoseconds until a call has its tokens, in a bucket that is full in `debt`
/// nanoseconds and gives `tokens` to others first.
fn missing(debt: u64, tokens: usize, period: u64, policy: &BucketPolicy) -> u64 {
    let taken = (tokens as u64).saturating_mul(period);
    let kept = u64::from(policy.burst.get().saturating_sub(policy.largest_cost.get().into()));
    debt.saturating_add(taken).saturating_sub(period.saturating_mul(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::num::{NonZeroU16, NonZeroU32};
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use crate::policy::Adapt;
    use crate::resources::Start;

    /// Makes a full bucket, throttled so many times and without `taken` tokens.
    fn slowed((rate, burst, floor): (f64, u32, f64), throttled: usize, taken: usize) -> Bucket {
        let policy = BucketPolicy::new(rate, NonZeroU32::new(burst).unwrap());
        let mut bucket = Bucket::new(BucketPolicy { adapt: Some(Adapt { floor }), ..policy }, Start::Full);
        (1..=throttled as u64).for_each(|number| bucket.throttled(number, Moment::ZERO, number));
        bucket.set_level(f64::from(burst), Moment::ZERO);
        (0..taken).for_each(|_| _ = bucket.take(Moment::ZERO, 10, 1));
        bucket
    }

    /// Takes the next token as soon as it is there, as a call waiting for nothing else.
    fn take_awaited(bucket: &mut Bucket, now: Moment) -> Moment {
        let at = bucket.ready_at(now);
        assert!(bucket.take(at, 11, 1) > 0);
        bucket.learn(true, at, 11, None);
        at
    }

    #[test]
    fn a_rate_rises_while_a_call_pauses_too() {
        let mut bucket = slowed((0.3, 3, 0.03), 1, 2);
        let over = Moment::from_millis(5_024);
        let told = bucket.ready_after(1, over, Moment::from_millis(2_056));
        take_awaited(&mut bucket, over);
        let left = take_awaited(&mut bucket, over);
        assert!(told <= left, "told {told:?}, could have gone at {left:?}");
    }

    #[test]
    fn a_bucket_that_recovers_may_hold_more_by_the_end_of_a_pause() {
        let mut bucket = slowed((10.0, 100, 1.0), 4, 24);
        let burst = bucket.policy.burst.get() as usize;
        let over = Moment::from_millis(120_000);
        let told = bucket.ready_after(burst + 1, over, Moment::ZERO);
        let mut now = Moment::ZERO;
        while now < Moment::from_millis(60_000) {
            now = take_awaited(&mut bucket, now);
        }
        assert!(bucket.policy.burst.get() as usize > burst + 1);
        for _ in 0..=burst {
            assert_eq!(take_awaited(&mut bucket, over), over);
        }
        let left = take_awaited(&mut bucket, over);
        assert!(told <= left, "told {told:?}, could have gone at {left:?}");
    }

    #[test]
    fn it_is_as_exact_as_the_rate_is_steady() {
        let bucket = slowed((100.0, 10, 99.999_99), 1, 7);
        let [now, over, full] = [1, 20, 200].map(Moment::from_millis);
        for (tokens, from, millis) in
            [(2, now, 1), (3, now, 10), (12, now, 100), (8, over, 60), (14, over, 120), (12, full, 230)]
        {
            let (told, at) = (bucket.ready_after(tokens, from, now), Moment::from_millis(millis));
            assert!((told - at).max(at - told) < Duration::from_micros(1), "{told:?} is not {at:?}");
        }
    }

    proptest! {
        /// Whatever leaves in between: calls waiting for nothing else drive the rate up.
        #[test]
        fn no_token_comes_before_the_estimate(
            rate in select(vec![0.3, 1.0, 50.0, 3_333.0]),
            burst in 1_u32..200,
            cost in 1_u16..4,
            throttled in 1_usize..6,
            before in vec(0_u64..3_000, 0..20),
            rest in 0_u64..5_000,
            tokens in 0_usize..40,
            pause in 0_u64..100_000,
            busy in 0_u64..100_000,
        ) {
            let mut bucket = slowed((rate, burst.max(cost.into()), rate / 10.0), throttled, 3);
            bucket.resize(BucketPolicy { largest_cost: NonZeroU16::new(cost).unwrap(), ..bucket.limits }, Moment::ZERO, 10);
            let after = |at: Moment, thousandths: u64| at + Duration::from_secs_f64(thousandths as f64 / 1e3 / rate);
            let mut now = Moment::ZERO;
            for gap in before {
                now = after(take_awaited(&mut bucket, now), gap);
            }
            let now = after(now, rest);
            let over = after(now, pause);
            let told = bucket.ready_after(tokens, over, now);
            let mut last = now;
            while bucket.ready_at(last) < after(now, pause.min(busy)) {
                last = take_awaited(&mut bucket, last);
            }
            for _ in 0..tokens {
                take_awaited(&mut bucket, over);
            }
            let left = over.max(bucket.ready_at(over));
            prop_assert!(told <= left, "told {told:?}, could have gone at {left:?}");
        }
    }
}
