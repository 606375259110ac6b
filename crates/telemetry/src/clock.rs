//! The clock of the process: no other code reads the time or sleeps.
//!
//! It uses tokio's time, so that a test can pause everything at once. Two clocks in one process
//! would give wrong waits.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, Sleep};

use crate::moment::Moment;

/// Returns the time of day. It is used for display, and in place of a missing `Date` header.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one clock")]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// A clock giving [`Moment`]s since its start. Cheap to copy.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
}

/// Returns a timer that its caller polls, for connections. Decisions about calls need a [`Clock`]
/// instead.
#[expect(clippy::disallowed_methods, reason = "this is the one place that sleeps")]
pub fn timer(duration: Duration) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(duration))
}

impl Clock {
    /// Starts a clock now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn start() -> Self {
        Self { began: Instant::now() }
    }

    /// Returns the present moment.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn now(&self) -> Moment {
        Moment::ZERO + Instant::now().duration_since(self.began)
    }

    /// Returns a moment as time of day, in milliseconds since 1970, for display only.
    pub fn wall(&self, moment: Moment) -> u64 {
        let wall = wall_clock().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = self.now();
        let at = if moment > now { wall.saturating_add(moment - now) } else { wall.saturating_sub(now - moment) };
        u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
    }

    /// Sleeps until `moment`, or up to a millisecond longer (tokio's timer).
    pub async fn sleep_until(&self, moment: Moment) {
        match self.began.checked_add(moment.since_start()) {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Sleeps until the next multiple of `interval` since the clock's start. Tasks with the same
    /// interval wake up together, so an idle process wakes up rarely.
    pub async fn tick(&self, interval: Duration) {
        let now = self.now().since_start();
        let interval = interval.max(Duration::from_millis(1));
        let into = now.as_nanos() % interval.as_nanos();
        let left = interval.saturating_sub(Duration::from_nanos(u64::try_from(into).unwrap_or(u64::MAX)));
        self.sleep(left).await;
    }

    /// Sleeps for `duration`.
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_that_began_at_different_moments_comes_due_together() {
        let clock = Clock::start();
        let due = |began: u64| async move {
            clock.sleep(Duration::from_millis(began)).await;
            let mut due = Vec::new();
            for _ in 0..3 {
                clock.tick(Duration::from_secs(2)).await;
                due.push(clock.now());
            }
            due
        };
        let (first, second, at_once) = tokio::join!(due(300), due(1_999), due(0));
        assert_eq!(first, second);
        assert_eq!(first, at_once);
        assert_eq!(first, [2, 4, 6].map(|seconds| Moment::ZERO + Duration::from_secs(seconds)));
    }
}
