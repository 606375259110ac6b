//! The upstream's response times, over the last minute or two.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::status;

/// The number of responses by response time: in the current minute, and in the minute before.
#[derive(Debug)]
pub(crate) struct Latency([[AtomicU32; STEPS]; 2]);

// === impl Latency ===

impl Latency {
    /// Counts a response.
    pub(crate) fn took(&self, took: Duration) {
        if let Some(count) = self.0[0].get(step(took)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Begins a new minute.
    pub(super) fn turn(&self) {
        let [now, before] = &self.0;
        now.iter().zip(before).for_each(|(now, before)| before.store(now.swap(0, Relaxed), Relaxed));
    }

    /// Returns the median and the 99th percentile of the response times.
    pub(super) fn tell(&self) -> Option<status::Latency> {
        let [now, before] = &self.0;
        let count =
            |(now, before): (&AtomicU32, &AtomicU32)| u64::from(now.load(Relaxed)) + u64::from(before.load(Relaxed));
        let counts: Vec<u64> = now.iter().zip(before).map(count).collect();
        let calls = counts.iter().sum();
        let median = quantile(&counts, 50)?;
        let p99 = quantile(&counts, 99)?;
        Some(status::Latency { calls, median_seconds: median, p99_seconds: p99 })
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU32::new(0))))
    }
}

/// Returns a percentile in seconds; `counts` are the numbers of responses in each step of time.
pub(super) fn quantile(counts: &[u64], percent: u64) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    let mut rest = (all * percent).div_ceil(100);
    let last = counts.iter().position(|count| {
        rest = rest.saturating_sub(*count);
        rest == 0
    });
    last.filter(|_| all > 0).map(end)
}

/// Returns the histogram step of a response time. Four steps double the time.
pub(super) fn step(took: Duration) -> usize {
    let octaves = (took.as_secs_f64() / FIRST).max(1.0).log2();
    whole(octaves * 4.0).min(STEPS - 1)
}

/// Returns the upper end of a step, in seconds.
fn end(step: usize) -> f64 {
    FIRST * (f64::from(u32::try_from(step + 1).unwrap_or(u32::MAX)) / 4.0).exp2()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and at most a few dozen")]
fn whole(number: f64) -> usize {
    number as usize
}

/// The end of the first step, in seconds.
const FIRST: f64 = 0.0005;
/// The number of steps; the last one ends at half an hour.
pub(super) const STEPS: usize = 88;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_fifth_of_what_calls_took() {
        let latency = Latency::default();
        assert_eq!(latency.tell(), None);
        (0..98).for_each(|_| latency.took(Duration::from_millis(20)));
        (0..2).for_each(|_| latency.took(Duration::from_secs(3)));
        let near = |found: f64, wanted: f64| (wanted..wanted * 1.2).contains(&found);
        let told = latency.tell().expect("calls");
        assert!(told.calls == 100 && near(told.median_seconds, 0.02) && near(told.p99_seconds, 3.0), "{told:?}");
        latency.took(Duration::from_secs(1 << 40));
        latency.took(Duration::ZERO);
        assert!(latency.tell().is_some_and(|told| told.calls == 102));
    }

    #[test]
    fn what_is_two_minutes_old_counts_no_longer() {
        let latency = Latency::default();
        latency.took(Duration::from_millis(1));
        latency.turn();
        assert!(latency.tell().is_some());
        latency.turn();
        assert_eq!(latency.tell(), None);
    }
}
