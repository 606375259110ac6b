//! Monotonic time as a value.
//!
//! The limiter never reads a clock. Every operation takes a [`Moment`], so that the proxy (real
//! time), `simulate` and the property tests (virtual time) run the same code. Nanoseconds in a `u64`
//! last 584 years; all arithmetic saturates.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A point in monotonic time, counted from the start of the process (or of the simulation).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The start of the process, or of the simulation.
    pub const ZERO: Self = Self(0);
    /// Later than everything: "never".
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the moment `nanos` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the moment `millis` milliseconds after the start.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns the nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since the start.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Returns the time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the seconds from `earlier` to `self`, to the nanosecond; zero if `earlier` is later.
    pub const fn seconds_since(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 * 1e-9
    }

    /// Returns `self` moved back by `by`, but not before the start.
    #[must_use]
    pub fn back(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(by)))
    }
}

// === impl Moment ===

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(nanos(after)))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}

impl Sub for Moment {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::MAX { f.write_str("never") } else { self.since_start().fmt(f) }
    }
}

/// Returns a duration in whole nanoseconds, saturating (584 years).
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Moment::MAX + Duration::from_secs(1), Moment::MAX);
        assert_eq!(Moment::ZERO - Moment::from_millis(1), Duration::ZERO);
        assert_eq!(Moment::from_millis(1).back(Duration::MAX), Moment::ZERO);
        assert_eq!(Moment::ZERO + Duration::MAX, Moment::MAX);
    }
}
