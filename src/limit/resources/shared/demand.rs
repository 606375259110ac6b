//! The demand of a member, as an average that forgets, and the allowance of its asks.

use std::time::Duration;

use crate::moment::Moment;

/// The calls per second that a member sends, averaged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    rate: f64,
    at: Moment,
    over: f64,
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
        Self { rate: 0.0, at: Moment::ZERO, over: (2.0 * lease.as_secs_f64()).max(1.0) }
    }

    /// Records a call.
    pub(super) fn note(&mut self, now: Moment) {
        self.rate = self.rate(now) + 1.0 / self.over;
        self.at = self.at.max(now);
    }

    /// Returns the calls per second.
    pub(super) fn rate(&self, now: Moment) -> f64 {
        self.rate * (-(now - self.at).as_secs_f64() / self.over).exp()
    }

    /// True if a call was sent of late.
    pub(super) fn is_alive(&self, now: Moment) -> bool {
        self.rate(now) * self.over > 0.1
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
        (self.left, self.at) = (self.left(now) - 1.0, now);
    }

    fn left(&self, now: Moment) -> f64 {
        ((now - self.at).as_secs_f64().mul_add(PER_SECOND, self.left)).min(MOST)
    }
}

/// The asks that may follow each other at once.
const MOST: f64 = 8.0;
/// The asks per second.
const PER_SECOND: f64 = 20.0;
