//! Computes the smallest burst for many rates, in one pass over the calls.
//!
//! The backlog at a rate grows by the tokens of each call, and shrinks at that rate. In a bucket
//! with this rate and a burst, a call waits for `(backlog - burst) / rate`. So the smallest burst
//! under which no call waits longer than `wait` is the highest backlog less `rate * wait`. All
//! numbers are whole numbers, so that the result is exact.

use std::time::Duration;

use crate::moment::Moment;

/// The backlogs at several rates.
#[derive(Debug, Default)]
pub(in crate::simulate) struct Backlogs {
    /// The units of one token, headroom included.
    token: u64,
    /// The most tokens of one call. Every call waits until the bucket has this many.
    largest: u64,
    last: Moment,
    rates: Vec<RateBacklog>,
}

/// The backlog at one rate.
#[derive(Clone, Copy, Debug)]
struct RateBacklog {
    /// The rate, in tokens per 100 seconds. It is also the units drained per nanosecond.
    rate: u32,
    level: u64,
    highest: u64,
}

/// The smallest bucket of some rate without too long waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurvePoint {
    /// The rate, in tokens per 100 seconds.
    pub rate: u32,
    /// The smallest burst with which no call waits too long at this rate.
    pub burst: u64,
}

// === impl Backlogs ===

impl Backlogs {
    /// Starts with empty backlogs. Each call counts `headroom` percent more, and takes `largest`
    /// tokens at most.
    pub(in crate::simulate) fn new(rates: impl Iterator<Item = u32>, headroom: u32, largest: u16) -> Self {
        let rates = rates.map(|rate| RateBacklog { rate, level: 0, highest: 0 }).collect();
        let token = TOKEN / 100 * (100 + u64::from(headroom));
        Self { token, largest: u64::from(largest), last: Moment::ZERO, rates }
    }

    /// Adds a call of `cost` tokens, in the order of arrival.
    pub(in crate::simulate) fn arrive(&mut self, at: Moment, cost: u16) {
        let passed = at.as_nanos().saturating_sub(self.last.as_nanos());
        self.last = at;
        let needed = self.largest * self.token;
        let taken = u64::from(cost) * self.token;
        for one in &mut self.rates {
            one.level = one.level.saturating_sub(passed.saturating_mul(one.rate.into()));
            one.highest = one.highest.max(one.level.saturating_add(needed));
            one.level = one.level.saturating_add(taken);
        }
    }

    /// Returns the smallest burst under which no call waits longer than `wait`, for each rate above
    /// the mean: below it the backlog grows for as long as calls come. The mean is in tokens in 100
    /// seconds.
    pub(in crate::simulate) fn curve_above(&self, mean: u64, wait: Duration) -> Vec<CurvePoint> {
        self.curve(wait).into_iter().filter(|point| u64::from(point.rate) > mean).collect()
    }

    fn curve(&self, wait: Duration) -> Vec<CurvePoint> {
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let burst =
            |one: &RateBacklog| one.highest.saturating_sub(wait.saturating_mul(one.rate.into())).div_ceil(TOKEN);
        let point = |one: &RateBacklog| CurvePoint { rate: one.rate, burst: burst(one).max(self.largest) };
        self.rates.iter().map(point).collect()
    }
}

// === impl CurvePoint ===

impl CurvePoint {
    /// Returns the rate in tokens per second.
    pub fn in_a_second(self) -> f64 {
        f64::from(self.rate) / 100.0
    }

    /// Returns the most calls possible in one second.
    pub(in crate::simulate) fn most(self) -> u64 {
        self.burst.saturating_add(u64::from(self.rate.div_ceil(100)))
    }
}

/// Returns the lowest rate that refills its burst within [`REFILL`] seconds, and at which the most
/// calls in one second are within a tenth of the least of all such rates.
///
/// Under a lower rate, a herd larger than any recorded one would wait for minutes.
pub(in crate::simulate) fn knee(curve: &[CurvePoint]) -> Option<CurvePoint> {
    let refilled = || curve.iter().filter(|point| point.burst * 100 <= u64::from(point.rate) * REFILL);
    let least = refilled().map(|point| point.most()).min()?;
    refilled().find(|point| point.most() * 10 <= least * 11).copied()
}

/// Returns round rates, ten to each power of ten: 0.1 to 80,000 a second.
pub(in crate::simulate) fn usual_rates() -> impl Iterator<Item = u32> {
    (0..6).flat_map(|power| [10, 12, 15, 20, 25, 30, 40, 50, 60, 80].map(|rate| rate * 10_u32.pow(power)))
}

/// The most seconds until an empty bucket is full again. This is the default of `queue.max_wait`, so
/// that of twice as many calls as the burst at once none is refused.
pub(super) const REFILL: u64 = 8;
/// The units of backlog for one token. This fits a rate in tokens per 100 s and a time in
/// nanoseconds.
const TOKEN: u64 = 100_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// A random trace: (nanoseconds, tokens) in order.
    fn trace(random: &mut Random, largest: u16) -> Vec<(u64, u16)> {
        let calls = 1 + random.below(40);
        let spread = [1_000, 1_000_000, 100_000_000, 3_000_000_000][random.below(4)];
        let mut at = 0;
        let mut call = || {
            // Most calls come in herds.
            at += if random.below(3) == 0 { u64::try_from(random.below(spread)).unwrap() } else { 0 };
            (at, 1 + u16::try_from(random.below(largest.into())).unwrap())
        };
        (0..calls).map(|_| call()).collect()
    }

    /// Returns the longest wait in a bucket, in nanoseconds times `rate`: each call leaves, in
    /// order, at the first moment at which the bucket has `largest` tokens.
    fn longest_wait(trace: &[(u64, u16)], rate: u32, burst: u64, token: i128, largest: i128) -> i128 {
        let full = i128::from(burst) * i128::from(TOKEN);
        let mut tokens = full;
        let mut now = 0;
        let mut longest = 0;
        for (at, cost) in trace {
            // Time is counted in units of the bucket, so that no division is needed.
            let arrived = i128::from(*at) * i128::from(rate);
            if arrived > now {
                tokens = full.min(tokens + arrived - now);
                now = arrived;
            }
            let missing = (largest * token - tokens).max(0);
            tokens += missing - i128::from(*cost) * token;
            now += missing;
            longest = longest.max(now - arrived);
        }
        longest
    }

    fn fits_brute_force(traces: usize) {
        let mut random = Random::new(38);
        for number in 0..traces {
            let largest = [1, 1, 1, 5][random.below(4)];
            let trace = trace(&mut random, largest);
            let headroom = [0, 0, 25, 33][random.below(4)];
            let wait = [0, 1, 1_000_000, 100_000_000, 5_000_000_000][random.below(5)];
            let mut backlogs = Backlogs::new(usual_rates(), headroom, largest);
            trace.iter().for_each(|(at, cost)| backlogs.arrive(Moment::from_nanos(*at), *cost));
            let token = i128::from(TOKEN) / 100 * (100 + i128::from(headroom));
            for CurvePoint { rate, burst } in backlogs.curve(Duration::from_nanos(wait)) {
                let fits = |burst: &u64| {
                    let longest = longest_wait(&trace, rate, *burst, token, largest.into());
                    longest <= i128::from(wait) * i128::from(rate)
                };
                let searched = (u64::from(largest)..).find(fits).expect("a burst of all calls fits");
                assert_eq!(burst, searched, "trace {number}, rate {rate}, wait {wait}, headroom {headroom}: {trace:?}");
            }
        }
    }

    /// `TIDEGATE_TRACES` sets another number of traces.
    #[test]
    fn bursts_are_those_of_a_brute_force_search() {
        let traces = std::env::var("TIDEGATE_TRACES").ok().and_then(|traces| traces.parse().ok());
        fits_brute_force(traces.unwrap_or(200));
    }
}
