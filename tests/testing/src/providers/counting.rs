//! The ways in which providers count: token buckets and windows.

use std::collections::VecDeque;
use std::time::Duration;

/// The way in which a bucket is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// "A set number of tokens is added back to it every second."
    EachSecond,
    Continuous,
}

/// A token bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    burst: f64,
    rate: f64,
    refill: Refill,
    /// The time of the first refill: each bucket has its own.
    phase: f64,
    level: f64,
    refilled: f64,
    pub taken: u32,
}

// === impl Bucket ===

impl Bucket {
    pub fn new(burst: f64, rate: f64, refill: Refill, seed: usize) -> Self {
        let phase = f64::from(u32::try_from(seed * 37 % 100).expect("less than 100")) / 100.0;
        Self { burst, rate, refill, phase, level: burst, refilled: 0.0, taken: 0 }
    }

    fn added(&self, at: f64) -> f64 {
        match self.refill {
            Refill::Continuous => at,
            Refill::EachSecond => (at - self.phase + 1.0).floor(),
        }
    }

    pub fn level(&mut self, at: Duration) -> f64 {
        let at = self.added(at.as_secs_f64());
        self.level = (self.level + (at - self.refilled) * self.rate).min(self.burst);
        self.refilled = at;
        // Sums of fractions.
        self.level + 1e-9
    }

    pub fn take(&mut self) {
        self.level -= 1.0;
        self.taken += 1;
    }

    /// The part that was taken of all that there was.
    pub fn used(&self, last: Duration) -> f64 {
        f64::from(self.taken) / (self.burst + self.rate * last.as_secs_f64())
    }

    pub fn capacity(&self) -> f64 {
        self.burst
    }

    /// The calls that flowed into it.
    pub fn flow(&self, last: Duration) -> f64 {
        self.rate * last.as_secs_f64()
    }
}

/// The calls of another tool, at even distances.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    every: Duration,
    next: Duration,
}

/// Calls in any window of a length.
#[derive(Clone, Debug, Default)]
pub struct Window {
    calls: VecDeque<(Duration, u32)>,
}

// === impl Tool ===

impl Tool {
    pub fn new(calls: f64, seconds: f64) -> Self {
        let every = Duration::from_secs_f64(seconds / calls);
        Self { every, next: every / 2 }
    }

    /// Returns the moment of its next call, if that is not later.
    pub fn due(&mut self, now: Duration) -> Option<Duration> {
        let at = self.next;
        (at <= now).then(|| {
            self.next += self.every;
            at
        })
    }
}

// === impl Window ===

impl Window {
    /// The points of the window that ends now.
    pub fn sum(&mut self, length: Duration, now: Duration) -> u32 {
        while self.calls.front().is_some_and(|(at, _)| *at + length <= now) {
            self.calls.pop_front();
        }
        self.calls.iter().map(|(_, points)| points).sum()
    }

    pub fn add(&mut self, now: Duration, points: u32) {
        self.calls.push_back((now, points));
    }

    /// Returns the moment of the oldest call that it knows.
    pub fn oldest(&self) -> Option<Duration> {
        self.calls.front().map(|(at, _)| *at)
    }
}
