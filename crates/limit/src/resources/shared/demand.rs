//! The demand of a member, as an average that forgets, and the allowance of its asks.

use std::time::Duration;

use crate::moment::Moment;

/// The calls per second that a member sends, averaged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    rate: f64,
    at: Moment,
    /// What one call adds to the rate: one, divided by the seconds that the average covers.
    each: f64,
}

/// The allowance of asks: a few at once, then so many per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    left: f64,
    at: Moment,
}

// === impl Demand ===

impl Demand {
    /// No demand so far. It is averaged over two leases, a second at least.
    pub(super) fn new(lease: Duration) -> Self {
        Self { rate: 0.0, at: Moment::ZERO, each: 1.0 / (2.0 * lease.as_secs_f64()).max(1.0) }
    }

    /// Records a call.
    pub(super) fn note(&mut self, now: Moment) {
        self.rate = self.rate(now) + self.each;
        self.at = self.at.max(now);
    }

    /// Returns the calls per second.
    pub(super) fn rate(&self, now: Moment) -> f64 {
        self.rate * faded(now.seconds_since(self.at) * self.each)
    }

    /// True if a call was sent of late.
    pub(super) fn is_alive(&self, now: Moment) -> bool {
        self.rate(now) > 0.1 * self.each
    }
}

// === impl Allowance ===

impl Allowance {
    pub(super) fn new() -> Self {
        Self { left: MOST, at: Moment::ZERO }
    }

    /// Returns the moment at which one ask is allowed and `reserve` more remain.
    pub(super) fn ready_at(&self, reserve: f64, now: Moment) -> Moment {
        let missing = 1.0 + reserve - self.left(now);
        if missing <= 1e-9 { now } else { now + Duration::from_secs_f64(missing / PER_SECOND) }
    }

    /// Records an ask.
    pub(super) fn take(&mut self, now: Moment) {
        self.left = self.left(now) - 1.0;
        self.at = now;
    }

    fn left(&self, now: Moment) -> f64 {
        (now.seconds_since(self.at).mul_add(PER_SECOND, self.left)).min(MOST)
    }
}

/// Returns what is left of one after so many times the time of an average: e to the power of
/// `-times`. Between calls that follow each other closely the beginning of the series is enough:
/// it differs by less than 1e-12, and costs less.
fn faded(times: f64) -> f64 {
    if times < 1e-2 {
        1.0 - times * (1.0 - times * (1.0 / 2.0 - times * (1.0 / 6.0 - times / 24.0)))
    } else {
        (-times).exp()
    }
}

/// The asks that may follow each other at once.
const MOST: f64 = 8.0;
/// The asks per second.
const PER_SECOND: f64 = 20.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_way_is_as_exact_as_the_long_one() {
        for step in 0..=2_000 {
            let times = f64::from(step) * 1e-5;
            assert!((faded(times) - (-times).exp()).abs() < 1e-12, "{times}");
        }
    }
}
