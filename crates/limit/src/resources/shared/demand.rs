//! How many calls per second a gate sends, as a decaying average.

use std::time::Duration;

use crate::moment::Moment;

/// The calls per second a gate sends through a shared bucket, averaged.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallRate {
    rate: f64,
    at: Moment,
    /// How much one call raises the rate: one, divided by the seconds of the average.
    each: f64,
}

// === impl CallRate ===

impl CallRate {
    /// Returns a rate of zero. It is averaged over twice the validity of granted tokens, and at
    /// least over a second.
    pub(super) fn new(lease: Duration) -> Self {
        Self { rate: 0.0, at: Moment::ZERO, each: 1.0 / (2.0 * lease.as_secs_f64()).max(1.0) }
    }

    /// Records a call.
    pub(super) fn note(&mut self, now: Moment) {
        self.rate = self.per_second(now) + self.each;
        self.at = self.at.max(now);
    }

    /// Returns the calls per second.
    pub(super) fn per_second(&self, now: Moment) -> f64 {
        self.rate * (-now.seconds_since(self.at) * self.each).exp()
    }

    /// Returns true if a call was sent lately.
    pub(super) fn is_alive(&self, now: Moment) -> bool {
        self.per_second(now) > 0.1 * self.each
    }
}
