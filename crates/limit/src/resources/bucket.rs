//! Token buckets: governor's arithmetic over our own state and time.
//!
//! The crate governor alone cannot tell whether there is a token without taking it, cannot give
//! tokens back, and starts full again after a change of rate. So its one number (the "theoretical
//! arrival time", TAT: when the bucket would be full again) is kept here, where it can be read,
//! moved back and carried over. Promises P1 and P11: a token is spent once, a refund is never worth
//! more than it cost, and a new rate keeps the level. Between two changes a rate is constant, so a
//! bucket yields exactly its level plus rate times time.

mod estimate;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{NotKeyed, StateStore};
use governor::{Quota, RateLimiter};

use super::{Adaptive, Answers, Refunds, Valve};
use crate::moment::Moment;
use crate::{BucketPolicy, KeyState};

/// The level of a new bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The bucket starts with its whole burst.
    Full,
    /// The bucket had this many tokens at this moment.
    Level(u32, Moment),
}

/// A token bucket: tokens at a rate, with a burst.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// The configured limits.
    pub(crate) limits: BucketPolicy,
    /// The limits in force: a lower rate and a smaller burst while the upstream throttles.
    pub(crate) policy: BucketPolicy,
    adaptive: Option<Adaptive>,
    /// For a retry bucket, lets more through while retries succeed.
    valve: Option<Valve>,
    /// The moment a token was last taken, recorded only while the rate is slowed.
    last_take: Moment,
    /// True if a call has found no token since `last_take`.
    short: bool,
    /// Nanoseconds per token.
    period: u64,
    /// When the bucket is full again, as governor keeps it.
    tat: Nanoseconds,
    /// The present time as governor reads it; set before every check.
    time: Nanoseconds,
    governor: Governor,
    refunds: Refunds,
}

/// A time shared with governor, which reads it.
#[derive(Clone, Debug, Default)]
struct Nanoseconds(Arc<AtomicU64>);

type Governor = RateLimiter<NotKeyed, Nanoseconds, Nanoseconds, NoOpMiddleware<Nanos>>;

// === impl Bucket ===

impl Bucket {
    pub(crate) fn new(policy: BucketPolicy, start: Start) -> Self {
        let period = period(&policy);
        // Zero: it has always been full.
        let tat = Nanoseconds::default();
        let time = Nanoseconds::default();
        let governor = governor(&policy, period, &tat, &time);
        let bucket = Self {
            limits: policy,
            policy,
            adaptive: policy.adapt.map(|adapt| Adaptive::new(adapt.floor, policy.rate)),
            valve: policy.opens.then(Valve::default),
            last_take: Moment::ZERO,
            short: false,
            period,
            tat,
            time,
            governor,
            refunds: Refunds::default(),
        };
        if let Start::Level(tokens, at) = start {
            let missing = u64::from(policy.burst.get().saturating_sub(tokens));
            bucket.tat.set(clamp(at).saturating_add(missing.saturating_mul(period)));
        }
        bucket
    }

    /// Returns when one call may have its tokens, not before `now`.
    #[inline]
    pub(crate) fn ready_at(&self, now: Moment) -> Moment {
        now.max(Moment::from_nanos(self.tat.get().saturating_sub(self.tolerance())))
    }

    /// Records that a call waits for a token. The time of such a wait counts in full towards a
    /// higher rate, all other time by half.
    pub(crate) fn note_short(&mut self, now: Moment) {
        self.short |= self.adaptive.is_some() && self.ready_at(now) > now;
    }

    /// Lets the rate rise after a token was taken: its call waited for nothing else if `awaited`.
    /// `answers` are all answers, if all are to calls of this bucket. Returns true on a change.
    #[inline]
    pub(crate) fn learn(&mut self, awaited: bool, now: Moment, number: u64, answers: Option<Answers>) -> bool {
        if !self.adaptive.as_ref().is_some_and(Adaptive::is_slowed) {
            return false;
        }
        let short = std::mem::take(&mut self.short) || awaited;
        let counted = self.counted(short, now);
        self.last_take = now;
        let changes = self.adaptive.as_mut().is_some_and(|adaptive| {
            let falls = answers.is_some_and(|answers| adaptive.measure(answers));
            adaptive.grow(counted) || falls
        });
        if changes {
            self.follow(now, number);
        }
        changes
    }

    /// Returns how much of the time since the last token counts towards a higher rate.
    pub(super) fn counted(&self, short: bool, now: Moment) -> Duration {
        let short_for = if short { Duration::from_nanos(self.period) } else { Duration::ZERO };
        Adaptive::counted(now - self.last_take, short_for)
    }

    /// Slows down and drops all tokens, because the upstream throttled a call. `left` is the number
    /// of this call in the order of sending; `number` is that of the latest call.
    pub(crate) fn throttled(&mut self, left: u64, now: Moment, number: u64) {
        if self.adaptive.as_mut().is_some_and(|adaptive| adaptive.throttled(left, number)) {
            self.last_take = now;
            self.short = false;
            self.follow(now, number);
            // Else calls would leave at the old rate until the tokens are spent.
            self.set_level(self.level(now).min(0.0), now);
        }
    }

    /// Returns true if retries succeed, so that more are let through.
    pub(crate) fn is_open(&self) -> bool {
        self.valve.as_ref().is_some_and(Valve::is_open)
    }

    /// Returns the moment of the next token, if this key must leave the bucket's last token to
    /// another key; otherwise `None`. The next token is for any key. A full bucket keeps no token
    /// back, because no next token comes.
    pub(crate) fn last_token_kept_until(&self, key: &KeyState, now: Moment) -> Option<Moment> {
        let is_full = self.tat.get() <= clamp(now);
        let gives_way = self.valve.as_ref().is_some_and(|valve| valve.gives_way(key));
        let is_kept = gives_way && !is_full && self.ready_at(now) <= now;
        is_kept.then(|| self.ready_after(1, now, now)).filter(|next| *next > now)
    }

    /// Records the refusal of a key's retry for lack of a token, to keep the next one for the key.
    pub(crate) fn pass_over(&mut self, key: KeyState, now: Moment) {
        if self.valve.as_mut().is_some_and(|valve| valve.pass_over(key, now)) {
            self.tat.set(self.tat.get().saturating_sub(self.period));
        }
    }

    /// Records the success of a retry, and adds the tokens for it.
    pub(crate) fn succeeded(&mut self) {
        if let Some(valve) = &mut self.valve {
            let given = u64::from(valve.succeeded());
            self.tat.set(self.tat.get().saturating_sub(given.saturating_mul(self.period)));
        }
    }

    /// Records the failure of a retry, and may remove tokens for it.
    pub(crate) fn failed(&mut self, now: Moment) {
        let tokens = self.whole_tokens(now);
        if let Some(valve) = &mut self.valve {
            let lost = tokens - valve.failed(tokens, self.policy.burst.get()).min(tokens);
            // The part of a token that has come since the last whole one stays.
            let tat = self.tat.get().max(clamp(now));
            self.tat.set(tat.saturating_add(u64::from(lost).saturating_mul(self.period)));
        }
    }

    /// Applies the present adaptive rate to the limits in force.
    fn follow(&mut self, now: Moment, number: u64) {
        self.reshape(self.adaptive.map_or(self.limits, |adaptive| self.slowed(adaptive)), now, number);
    }

    /// Takes the tokens of a call, as if at the moment `at`: `cost`, or the largest cost of a call
    /// if that is less. `number` must rise with each call. Returns the number of tokens taken; zero
    /// if there were not enough.
    #[inline]
    pub(crate) fn take(&mut self, at: Moment, number: u64, cost: u16) -> u16 {
        let at = clamp(at);
        let missing = self.tat.get().saturating_sub(at);
        self.time.set(at);
        if self.governor.check().is_err() {
            return 0;
        }
        self.note(missing, number);
        let cost = cost.min(self.policy.largest_cost.get());
        if cost > 1 {
            // They are there, because no call leaves before the largest cost is there.
            self.tat.set(self.tat.get().saturating_add(self.period.saturating_mul(u64::from(cost - 1))));
        }
        cost
    }

    /// Takes the next token even if it comes only later, and returns its time (client-go's
    /// `Reserve`).
    pub(crate) fn reserve(&mut self, now: Moment, number: u64) -> Moment {
        let at = clamp(now);
        let ready = self.ready_at(now);
        self.note(self.tat.get().saturating_sub(at), number);
        self.tat.set(self.tat.get().max(at).saturating_add(self.period).min(HORIZON));
        ready
    }

    /// Records how far from full the bucket was at call `number`, in nanoseconds, for refunds.
    #[inline]
    fn note(&mut self, missing: u64, number: u64) {
        if missing < self.period {
            self.refunds.found_full(number);
        } else {
            self.refunds.found(missing / self.period, number);
        }
    }

    /// Gives back one token taken under `number`, unless the bucket would have overflowed since.
    pub(crate) fn give_back(&mut self, number: u64) {
        if self.refunds.give_back(number) {
            self.tat.set(self.tat.get().saturating_sub(self.period));
        }
    }

    /// Returns the number of tokens; below zero if some are reserved.
    pub(crate) fn level(&self, now: Moment) -> f64 {
        let missing = self.tat.get().saturating_sub(clamp(now)) as f64 / self.period as f64;
        f64::from(self.policy.burst.get()) - missing
    }

    /// Sets the number of tokens.
    pub(crate) fn set_level(&mut self, level: f64, now: Moment) {
        let missing = (f64::from(self.policy.burst.get()) - level).max(0.0);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "`as` saturates: a level far below zero is as far as time goes"
        )]
        let nanos = (missing * self.period as f64).ceil() as u64;
        self.tat.set(clamp(now).saturating_add(nanos));
    }

    /// Returns the number of whole tokens; zero if more are reserved than are there.
    pub(crate) fn whole_tokens(&self, now: Moment) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "`as` saturates: below zero is none")]
        let whole = self.level(now) as u32;
        whole
    }

    /// Returns how many calls the present tokens are enough for, if each has the largest cost.
    pub(crate) fn whole_calls(&self, now: Moment) -> u32 {
        let cost = u32::from(self.policy.largest_cost.get());
        // A level within rounding of a whole token is decided by `ready_at`, as everywhere else.
        (self.whole_tokens(now) / cost).max(u32::from(self.ready_at(now) <= now))
    }

    /// Returns the fewest tokens this bucket takes from a call that costs at least `least`.
    pub(crate) fn least_taken(&self, least: u16) -> usize {
        usize::from(least.min(self.policy.largest_cost.get()))
    }

    /// Returns true if dropping the bucket loses nothing: it is full, and its rate is the full one
    /// or has been unused for long.
    pub(crate) fn is_idle(&self, now: Moment) -> bool {
        let slowed = self.policy.rate < self.limits.rate && now - self.last_take < REMEMBERED;
        self.tat.get() <= clamp(now) && !slowed
    }

    /// Applies new limits at the same level (at most the new burst). `number` is that of the latest
    /// call.
    pub(crate) fn resize(&mut self, policy: BucketPolicy, now: Moment, number: u64) {
        if policy == self.limits {
            return;
        }
        self.limits = policy;
        self.valve = policy.opens.then(|| self.valve.unwrap_or_default());
        self.adaptive = policy.adapt.map(|adapt| {
            let mut adaptive = self.adaptive.unwrap_or_else(|| Adaptive::new(adapt.floor, policy.rate));
            adaptive.reconfigure(adapt.floor, policy.rate);
            adaptive
        });
        self.follow(now, number);
    }

    /// Changes the limits in force, at the same level.
    fn reshape(&mut self, policy: BucketPolicy, now: Moment, number: u64) {
        let now = u128::from(clamp(now));
        let new_period = period(&policy);
        let debt = u128::from(self.tat.get()).saturating_sub(now);
        // In new nanoseconds: what was missing to the old burst, and what the burst has grown or
        // shrunk by.
        let missing = (debt * u128::from(new_period)).div_ceil(u128::from(self.period.max(1)));
        let old_burst = u128::from(self.policy.burst.get());
        let new_burst = u128::from(policy.burst.get());
        let grown = new_burst.saturating_sub(old_burst) * u128::from(new_period);
        let shrunk = old_burst.saturating_sub(new_burst) * u128::from(new_period);
        let missing = (missing + grown).saturating_sub(shrunk);
        let tokens = (debt / u128::from(self.period.max(1))).min(missing / u128::from(new_period));
        self.refunds.found(u64::try_from(tokens).unwrap_or(u64::MAX), number.saturating_add(1));
        self.policy = policy;
        self.period = new_period;
        self.governor = governor(&policy, new_period, &self.tat, &self.time);
        self.tat.set(u64::try_from(now + missing).unwrap_or(HORIZON));
    }

    /// Returns how far ahead of a full bucket tokens may be taken: the time to fill an empty
    /// bucket, less the largest cost of a call. With a cost of one token it is governor's tau.
    #[inline]
    fn tolerance(&self) -> u64 {
        let largest = u32::from(self.policy.largest_cost.get());
        self.period.saturating_mul(u64::from(self.policy.burst.get().saturating_sub(largest)))
    }
}

// === impl Nanoseconds ===

impl Nanoseconds {
    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Stores the time, bounded for safe arithmetic.
    fn set(&self, nanos: u64) {
        self.0.store(nanos.min(HORIZON), Relaxed);
    }
}

impl StateStore for Nanoseconds {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _key: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        // The limiter is borrowed, so nothing else can have changed it in between.
        let (answer, tat) = decide(Some(self.get().into()))?;
        self.set(tat.as_u64());
        Ok(answer)
    }
}

impl Clock for Nanoseconds {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        self.get().into()
    }
}

/// How long after its last call a bucket per flow or credential keeps its adapted rate.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The longest time in calculations: 73 years. Sums of two such times still fit, and a longer wait
/// is the same as "never".
const HORIZON: u64 = 1 << 61;

/// Returns a moment as nanoseconds, bounded for safe arithmetic.
fn clamp(at: Moment) -> u64 {
    at.as_nanos().min(HORIZON)
}

/// Returns the nanoseconds per token, rounded up so that the rate is never exceeded, and bounded so
/// that no calculation with a whole burst overflows.
fn period(policy: &BucketPolicy) -> u64 {
    let longest = HORIZON / u64::from(policy.burst.get());
    let nanos = (1e9 / policy.rate).ceil();
    #[expect(clippy::cast_possible_truncation, reason = "`as` saturates, as is wanted")]
    let nanos = nanos as u64;
    nanos.clamp(1, longest)
}

#[expect(clippy::expect_used, reason = "`nanos` is clamped to at least 1 above")]
fn governor(policy: &BucketPolicy, period: u64, tat: &Nanoseconds, time: &Nanoseconds) -> Governor {
    // governor counts from the clock's reading at this moment; this code counts from the start of
    // the process.
    time.set(0);
    let quota = Quota::with_period(Duration::from_nanos(period)).expect("a period is at least 1 ns");
    RateLimiter::new(quota.allow_burst(policy.burst), tat.clone(), time.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::num::{NonZeroU16, NonZeroU32};

    fn policy(rate: f64, burst: u32) -> BucketPolicy {
        BucketPolicy::new(rate, NonZeroU32::new(burst).unwrap())
    }

    fn drain(bucket: &mut Bucket, at: Moment) -> u32 {
        let mut taken = 0;
        while bucket.ready_at(at) <= at && (bucket.take(at, 1, 1) > 0) {
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_burst_goes_at_once_and_the_next_after_exactly_one_period() {
        let mut bucket = Bucket::new(policy(10.0, 100), Start::Full);
        let now = Moment::from_millis(5_000);
        assert_eq!(drain(&mut bucket, now), 100);
        assert_eq!(bucket.ready_at(now), now + Duration::from_millis(100));
        assert_eq!(bucket.ready_at(now), now + Duration::from_millis(100), "asking changes nothing");
        assert!(bucket.take(now + Duration::from_nanos(99_999_999), 2, 1) == 0);
        assert!((bucket.take(now + Duration::from_millis(100), 3, 1) > 0));
        let later = now + Duration::from_secs(3600);
        assert_eq!(drain(&mut bucket, later), 100, "an hour of rest is one burst");
    }

    #[test]
    fn an_upstream_that_throttles_gets_no_burst() {
        let adapt = Some(crate::policy::Adapt { floor: 1.0 });
        let mut bucket = Bucket::new(BucketPolicy { adapt, ..policy(10.0, 100) }, Start::Full);
        bucket.throttled(1, Moment::ZERO, 1);
        assert_eq!(drain(&mut bucket, Moment::ZERO), 0);
        let later = Moment::from_millis(3_600_000);
        assert_eq!(drain(&mut bucket, later), 70);
        bucket.reserve(later, 2);
        bucket.throttled(3, later, 3);
        assert_eq!(bucket.level(later).round(), -1.0, "a reserved token is owed");
    }

    #[test]
    fn fractional_rates_have_their_own_period() {
        for (rate, nanos) in
            [(0.5, 2_000_000_000), (12.5, 80_000_000), (0.1, 10_000_000_000), (1e-4, 10_000_000_000_000)]
        {
            assert_eq!(period(&policy(rate, 1)), nanos, "{rate}/s");
        }
    }

    #[test]
    fn rates_beyond_reason_neither_panic_nor_overflow() {
        for rate in [1e-300, f64::MIN_POSITIVE, 1e9, 1e300, f64::INFINITY, f64::NAN] {
            for burst in [1, u32::MAX] {
                let mut bucket = Bucket::new(policy(rate, burst), Start::Full);
                for now in [Moment::ZERO, Moment::MAX] {
                    bucket.take(now, 1, 1);
                    bucket.reserve(now, 2);
                    bucket.give_back(1);
                    bucket.resize(policy(1.0, 7), now, 2);
                    let _ = (bucket.level(now), bucket.ready_after(usize::MAX, now, now));
                }
            }
        }
    }

    #[test]
    fn a_token_given_back_is_there_at_once() {
        let mut bucket = Bucket::new(policy(1.0, 2), Start::Full);
        assert!(
            (bucket.take(Moment::ZERO, 1, 1) > 0)
                && (bucket.take(Moment::ZERO, 2, 1) > 0)
                && bucket.take(Moment::ZERO, 3, 1) == 0
        );
        bucket.give_back(2);
        assert!((bucket.take(Moment::ZERO, 4, 1) > 0));
    }

    #[test]
    fn a_token_that_would_have_flowed_over_is_not_given_back() {
        let mut bucket = Bucket::new(policy(1.0, 1), Start::Full);
        assert!((bucket.take(Moment::ZERO, 1, 1) > 0));
        assert!(
            (bucket.take(Moment::from_millis(1000), 2, 1) > 0),
            "full again, so the first token's absence no longer shows"
        );
        bucket.give_back(1);
        assert!(
            bucket.take(Moment::from_millis(1500), 3, 1) == 0,
            "two calls in half a second would break 1/s burst 1"
        );
    }

    #[test]
    fn a_new_rate_keeps_the_level() {
        let now = Moment::from_millis(250);
        let used = |seventy: u32| {
            let mut bucket = Bucket::new(policy(10.0, 100), Start::Full);
            for _ in 0..seventy {
                assert!((bucket.take(Moment::ZERO, 1, 1) > 0));
            }
            bucket
        };
        let mut bucket = used(69);
        assert!((bucket.level(now) - 33.5).abs() < 1e-9);
        bucket.resize(policy(50.0, 40), now, 1);
        assert!((bucket.level(now) - 33.5).abs() < 1e-6);
        assert_eq!(drain(&mut bucket, now), 33);
        assert_eq!(bucket.ready_at(now), now + Duration::from_millis(10));

        let mut bucket = used(69);
        bucket.resize(policy(2.0, 10), now, 1);
        assert_eq!(drain(&mut bucket, now), 10, "at most the new burst");

        let mut bucket = used(69);
        bucket.resize(policy(10.0, 1000), now, 1);
        assert_eq!(drain(&mut bucket, now), 33, "a larger burst is room, not tokens");
    }

    #[test]
    fn five_reloads_at_one_instant_let_one_burst_through() {
        let mut bucket = Bucket::new(policy(10.0, 10), Start::Full);
        let mut through = 0;
        for n in 0..5 {
            bucket.resize(policy(10.0 + f64::from(n), 10), Moment::ZERO, 1);
            through += drain(&mut bucket, Moment::ZERO);
        }
        assert_eq!(through, 10);
    }

    #[test]
    fn what_the_old_burst_could_not_have_held_is_not_given_back_into_a_larger_one() {
        let mut bucket = Bucket::new(policy(50.0, 1), Start::Full);
        assert!((bucket.take(Moment::from_millis(100), 1, 1) > 0));
        bucket.resize(policy(0.3, 2), Moment::from_millis(119), 1);
        bucket.give_back(1);
        assert!(bucket.level(Moment::from_millis(119)) < 1.0);
    }

    #[test]
    fn an_empty_start_fills_from_its_beginning() {
        let mut bucket = Bucket::new(policy(1.0, 5), Start::Level(0, Moment::from_millis(1000)));
        assert_eq!(bucket.ready_at(Moment::from_millis(1000)), Moment::from_millis(2000));
        assert_eq!(drain(&mut bucket, Moment::from_millis(4000)), 3);
    }

    #[test]
    fn reservations_queue_up_as_client_go_does() {
        let mut bucket = Bucket::new(policy(10.0, 2), Start::Full);
        let delays: Vec<_> = (0..5).map(|n| bucket.reserve(Moment::ZERO, n).since_start().as_millis()).collect();
        assert_eq!(delays, [0, 0, 100, 200, 300]);
    }
    #[test]
    fn a_call_leaves_when_the_dearest_could_and_takes_what_it_costs() {
        let largest_cost = NonZeroU16::new(5).expect("five");
        let mut bucket = Bucket::new(BucketPolicy { largest_cost, ..policy(1.0, 7) }, Start::Full);
        let at = Moment::from_millis;
        assert_eq!(bucket.take(at(0), 1, 1), 1);
        assert_eq!(bucket.ready_at(at(0)), at(0), "six are left, and nobody takes more than five");
        assert_eq!(bucket.take(at(0), 2, 2), 2);
        assert_eq!(bucket.ready_at(at(0)), at(1000), "four are left: a call of one waits as a call of five does");
        assert_eq!(bucket.take(at(1000), 3, 9), 5, "no call takes more than the most");
        assert!(bucket.level(at(1000)).abs() < 1e-9);
        (0..5).for_each(|_| bucket.give_back(3));
        assert!((bucket.level(at(1000)) - 5.0).abs() < 1e-9);
        (0..2).for_each(|_| bucket.give_back(2));
        assert!((bucket.level(at(1000)) - 7.0).abs() < 1e-9, "{}", bucket.level(at(1000)));
    }
}
