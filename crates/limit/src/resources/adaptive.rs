//! Adaptive rates: they fall when the upstream throttles, and rise again.
//!
//! They follow TCP's CUBIC and the AWS SDKs' adaptive retry mode: down by a fraction when the
//! upstream throttles, once for all calls that were under way together; then fast and ever more
//! slowly up to the last good rate; then slowly and ever faster past it. Two things differ. The
//! good rate is lower than the one that was throttled, or the recovery would end where it began.
//! And time without waiting calls counts half, because a gate that is not short of tokens learns
//! less about what the upstream bears.
//!
//! As in TCP Vegas, slow answers show a queue in the upstream before it throttles. The rate
//! rises only once that queue is worked off, and gives way a little when it grows again. So calls
//! wait in the gate, where a lease passes them. Before the first throttling nothing is measured: a
//! rate that the upstream bears is kept, however slow its answers are.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::moment::Moment;

/// The rate of a bucket, adapting to throttling. All rates are in tokens per second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Adaptive {
    floor: f64,
    full: f64,
    pub(crate) rate: f64,
    /// The rate just after the last decrease.
    low: f64,
    /// The rate the upstream is believed to bear.
    good: f64,
    /// The time since the last decrease. Time without a lack of tokens counts by half.
    recovered_for: Duration,
    /// The number of calls sent before the last decrease. A throttled answer to one of these calls
    /// does not decrease the rate again.
    left: u64,
    /// The answers at the beginning of the present measurement.
    first: Option<Answers>,
    /// The shortest time to an answer since the upstream has worked off its queue, in seconds; `None`
    /// before.
    shortest: Option<f64>,
}

/// The number of all answers until a moment, and of the calls still in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    pub(crate) at: Moment,
    pub(crate) count: u64,
    pub(crate) in_flight: u32,
}

// === impl Adaptive ===

impl Adaptive {
    pub(crate) fn new(floor: f64, full: f64) -> Self {
        Self { floor: floor.min(full), full, rate: full, low: full, good: full, ..Self::default() }
    }

    pub(crate) fn is_slowed(&self) -> bool {
        self.rate < self.full
    }

    /// Returns the burst at the present rate. It shrinks with the rate, so that an empty bucket
    /// fills in the same time.
    pub(crate) fn burst(&self, burst: NonZeroU32) -> NonZeroU32 {
        let slowed = (f64::from(burst.get()) * self.rate / self.full).round();
        #[expect(clippy::cast_possible_truncation, reason = "between 0 and the burst")]
        let slowed = slowed as u32;
        NonZeroU32::new(slowed.min(burst.get())).unwrap_or(NonZeroU32::MIN)
    }

    /// Decreases the rate because the upstream throttled a call. `left` is the number of this call
    /// in the order of sending, and `leaves` is that of the latest call. Returns true if the rate
    /// changes.
    pub(crate) fn throttled(&mut self, left: u64, leaves: u64) -> bool {
        if left <= self.left {
            return false;
        }
        let before = self.rate;
        self.left = leaves;
        self.low = (before * DECREASE).max(self.floor);
        self.good = (before * GOOD).max(self.low);
        self.rate = self.low;
        self.recovered_for = Duration::ZERO;
        self.first = None;
        self.shortest = None;
        self.rate < before
    }

    /// Compares the answers with those of a second ago. Returns true if this lowers the rate.
    ///
    /// After a decrease, fewer and fewer calls are in flight while the upstream works off its queue
    /// as fast as it can. So the good rate is at least that of the answers: each further call had
    /// been rejected, and the rate had fallen far below what the upstream bears. Once answers take
    /// twice as long, a queue grows again, and the upstream bears no more than it answers. The rate
    /// gives way only a little, as other calls than before may also take longer.
    pub(crate) fn measure(&mut self, now: Answers) -> bool {
        let first = *self.first.get_or_insert(now);
        let time = (now.at - first.at).as_secs_f64();
        if time < MEASURING {
            return false;
        }
        let answered = now.count.saturating_sub(first.count) as f64 / time;
        self.first = Some(now);
        let in_flight = f64::from(now.in_flight);
        // A gate without calls in flight has left the upstream no queue, and shows nothing of its speed.
        let is_idle = first.in_flight == 0 || now.in_flight == 0;
        let took = if is_idle { f64::INFINITY } else { in_flight / answered };
        let Some(shortest) = self.shortest else {
            self.good = self.good.max(answered * GOOD).min(self.full);
            self.shortest = (is_idle || now.in_flight >= first.in_flight).then_some(took);
            return false;
        };
        self.shortest = Some(shortest.min(took));
        let before = self.rate;
        if !is_idle && in_flight > 2.0 * shortest * answered + CHANCE {
            self.good = (answered * KEPT).max(before * GOOD).max(self.low).min(before);
            self.rate = self.good;
            self.recovered_for = Duration::from_secs_f64(self.back());
            self.shortest = None;
        }
        self.rate < before
    }

    /// Returns how much of the time since the last call counts towards a higher rate: `short_for`,
    /// the time with a lack of tokens, in full, and the rest by half.
    pub(crate) fn counted(since_last: Duration, short_for: Duration) -> Duration {
        let short_for = short_for.min(since_last);
        short_for + (since_last - short_for) / 2
    }

    /// Lets the rate rise after some counted time. Returns true if it changes enough to matter.
    pub(crate) fn grow(&mut self, counted: Duration) -> bool {
        if self.first.is_some() && self.shortest.is_none() && counted < UNMEASURED {
            return false;
        }
        self.recovered_for = self.recovered_for.saturating_add(counted);
        let rate = self.after(self.recovered_for);
        let changes = rate >= self.rate * WORTH_IT || rate >= self.full && self.rate < self.full;
        if changes {
            self.rate = rate;
        }
        changes
    }

    /// Returns the rate as it will be after `time` at best: if no call is throttled and calls
    /// always wait for tokens.
    pub(crate) fn at_best(self, time: Duration) -> Self {
        let recovered_for = self.recovered_for.saturating_add(time);
        Self { rate: self.after(recovered_for).max(self.rate), recovered_for, ..self }
    }

    /// Applies new bounds: the rate stays where it is, within them.
    pub(crate) fn reconfigure(&mut self, floor: f64, full: f64) {
        let was_slowed = self.is_slowed();
        let floor = floor.min(full);
        self.floor = floor;
        self.full = full;
        self.rate = if was_slowed { self.rate.clamp(floor, full) } else { full };
        self.low = self.low.clamp(floor, full);
        self.good = self.good.clamp(self.low, full);
    }

    /// Returns the rate after this much counted time since the decrease.
    fn after(&self, recovered_for: Duration) -> f64 {
        let time = recovered_for.as_secs_f64();
        let back = self.back();
        let rate = if time < back {
            self.good - (self.good - self.low) * (1.0 - time / back).powi(3)
        } else {
            let beyond = (PROBING_CALLS / self.good).max(PROBING);
            self.good + (self.full - self.good) * ((time - back) / beyond).min(1.0).powi(3)
        };
        rate.clamp(self.floor, self.full)
    }

    /// Returns the seconds from the last decrease until the good rate.
    fn back(&self) -> f64 {
        (RECOVERY_CALLS / self.good).max(RECOVERY)
    }
}

/// The fraction of its rate a bucket keeps when the upstream throttles (the same in CUBIC and the
/// AWS SDKs).
const DECREASE: f64 = 0.7;
/// The fraction of a throttled rate to recover quickly; the rest is left to other clients. With
/// this fraction, less than 1% of an API with 20 seats stays unused, and three gates calling it get
/// equal parts.
const GOOD: f64 = 0.92;
/// The fraction of the rate of its answers to send to an upstream with a growing queue. It works
/// the queue off at its full speed, and 3% of that are unused afterwards, until the rate has grown.
const KEPT: f64 = 0.97;
/// The calls in flight that are no queue, because so many more come by chance.
const CHANCE: f64 = 10.0;
/// The counted time without a call after which the rate grows in any case.
const UNMEASURED: Duration = Duration::from_secs(1);
/// The seconds for which answers are counted.
const MEASURING: f64 = 1.0;
/// The smallest change of a rate worth the arithmetic, as a factor.
const WORTH_IT: f64 = 1.01;
/// The seconds until the good rate is reached again. A low rate takes the time of `RECOVERY_CALLS`
/// calls instead, because it needs more time to learn anything.
const RECOVERY: f64 = 2.0;
const RECOVERY_CALLS: f64 = 20.0;
/// The seconds for the rate to grow from the good rate to the full one. At a low rate it takes the
/// time of `PROBING_CALLS` calls instead.
const PROBING: f64 = 30.0;
const PROBING_CALLS: f64 = 200.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn grow(rate: &mut Adaptive, seconds: f64) {
        for _ in 0..1000 {
            rate.grow(Duration::from_secs_f64(seconds / 1000.0));
        }
    }

    fn assert_near(rate: &Adaptive, expected: f64) {
        assert!((rate.rate / expected - 1.0).abs() < 0.015, "{} is not {expected}", rate.rate);
    }

    #[test]
    fn it_gives_way_at_once_comes_back_fast_and_goes_on_slowly() {
        let mut rate = Adaptive::new(5.0, 50.0);
        assert!(rate.throttled(1, 10));
        assert_near(&rate, 35.0);
        grow(&mut rate, 1.0);
        assert_near(&rate, 46.0 - 11.0 / 8.0);
        grow(&mut rate, 1.0);
        assert_near(&rate, 46.0);
        grow(&mut rate, 15.0);
        assert_near(&rate, 46.0 + 4.0 / 8.0);
        grow(&mut rate, 15.1);
        assert!(!rate.is_slowed());
        assert_near(&rate, 50.0);
        grow(&mut rate, 1000.0);
        assert_near(&rate, 50.0);
    }

    #[test]
    fn calls_that_were_under_way_together_count_once_and_the_floor_holds() {
        let mut rate = Adaptive::new(5.0, 50.0);
        assert!(rate.throttled(3, 20));
        assert!(!rate.throttled(20, 25), "it had left before");
        assert!(rate.throttled(21, 30));
        assert_near(&rate, 50.0 * 0.7 * 0.7);
        for left in 4..100 {
            rate.throttled(left * 10, left * 10);
        }
        assert_near(&rate, 5.0);
        assert!(!rate.throttled(10_000, 10_000), "lower than the floor it does not get");
    }

    #[test]
    fn it_comes_back_to_what_the_upstream_answers() {
        let mut rate = Adaptive::new(5.0, 50.0);
        for left in 1..5 {
            rate.throttled(left, left);
        }
        assert_near(&rate, 50.0 * 0.7_f64.powi(4));
        for millis in (0..=2000).step_by(50) {
            // 20 a second, and at last three times as many.
            let count = if millis > 1000 { millis / 16 } else { millis / 50 };
            rate.measure(Answers { at: Moment::from_millis(millis), count, in_flight: 1 });
        }
        grow(&mut rate, 2.0);
        assert_near(&rate, 20.0 * 0.92);
    }

    /// Plays seconds with 40 answers each and these calls in flight at the ends.
    fn answer(rate: &mut Adaptive, from: u64, in_flight: &[u32]) {
        for (second, in_flight) in (from..).zip(in_flight) {
            let falls = rate.measure(Answers {
                at: Moment::from_millis(second * 1000),
                count: second * 40,
                in_flight: *in_flight,
            });
            let before = rate.rate;
            grow(rate, 1.0);
            assert!(!falls || rate.rate <= before, "it stays until the queue is gone");
        }
    }

    #[test]
    fn it_rises_once_the_upstream_has_worked_off_its_queue() {
        let mut rate = Adaptive::new(5.0, 50.0);
        rate.throttled(1, 1);
        answer(&mut rate, 0, &[90, 60, 30, 8]);
        assert_near(&rate, 35.0);
        answer(&mut rate, 4, &[8, 8]);
        assert_near(&rate, 46.0);
    }

    #[test]
    fn it_gives_way_to_a_queue_before_the_upstream_throttles() {
        let mut rate = Adaptive::new(5.0, 50.0);
        rate.throttled(1, 1);
        answer(&mut rate, 0, &[8, 8, 8, 26]);
        assert_near(&rate, 46.0);
        answer(&mut rate, 4, &[27]);
        assert_near(&rate, 46.0 * 0.92);
        answer(&mut rate, 5, &[20, 10]);
        assert_near(&rate, 46.0 * 0.92);
        answer(&mut rate, 7, &[10, 33]);
        assert_near(&rate, 40.0 * 0.97);
    }

    #[test]
    fn idle_times_are_no_measure_of_a_queue() {
        let mut rate = Adaptive::new(5.0, 50.0);
        rate.throttled(1, 1);
        for from in (0..60).step_by(5) {
            answer(&mut rate, from, &[0, 20, 20, 20, 20]);
        }
        assert!(!rate.is_slowed(), "{}", rate.rate);
    }

    #[test]
    fn slow_answers_never_lower_a_rate_below_the_last_decrease() {
        let mut rate = Adaptive::new(5.0, 100.0);
        rate.throttled(1, 1);
        answer(&mut rate, 0, &[8, 8, 80, 80, 300, 300, 1000, 1000, 4000, 4000, 10_000]);
        assert!((70.0..74.0).contains(&rate.rate), "{}", rate.rate);
    }

    #[test]
    fn a_bucket_that_gives_way_holds_less() {
        let mut rate = Adaptive::new(1.0, 50.0);
        let burst = NonZeroU32::new(100).unwrap();
        assert_eq!(rate.burst(burst).get(), 100);
        rate.throttled(1, 1);
        assert_eq!(rate.burst(burst).get(), 70);
        assert_eq!(rate.burst(NonZeroU32::MIN).get(), 1);
    }

    #[test]
    fn new_limits_keep_the_rate_within_them() {
        let mut rate = Adaptive::new(5.0, 50.0);
        rate.reconfigure(5.0, 80.0);
        assert_near(&rate, 80.0);
        rate.throttled(1, 1);
        rate.reconfigure(5.0, 200.0);
        assert_near(&rate, 56.0);
        rate.reconfigure(5.0, 20.0);
        assert_near(&rate, 20.0);
        rate.reconfigure(30.0, 20.0);
        assert_near(&rate, 20.0);
    }
}
