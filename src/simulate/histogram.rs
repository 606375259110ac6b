//! Durations counted in steps of less than one percent, so that a million of them take no more
//! memory than a thousand.

use std::time::Duration;

/// The number of steps in each doubling.
const STEPS: u64 = 128;

/// A count of durations.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    /// The count in each step, up to the step of the longest duration.
    counts: Vec<u64>,
    count: u64,
    max: Duration,
}

// === impl Histogram ===

impl Histogram {
    pub(super) fn add(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let step = step(micros);
        if step >= self.counts.len() {
            self.counts.resize(step + 1, 0);
        }
        self.counts[step] += 1;
        self.count += 1;
        self.max = self.max.max(duration);
    }

    /// Returns the number of durations.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the longest duration, exactly.
    pub(super) fn max(&self) -> Duration {
        self.max
    }

    /// Returns the duration that `permille` of a thousand do not exceed, to less than one percent;
    /// zero if there are none.
    pub(super) fn quantile(&self, permille: u64) -> Duration {
        let rank = (self.count * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_micros(highest(step)).min(self.max);
            }
        }
        self.max
    }
}

/// Returns the step of a number: exact up to `2 * STEPS`, then `STEPS` to a doubling.
fn step(number: u64) -> usize {
    let doublings = (number / STEPS).checked_ilog2().unwrap_or(0);
    let step = u64::from(doublings) * STEPS + (number >> doublings);
    usize::try_from(step).unwrap_or(usize::MAX)
}

/// Returns the highest number of a step.
fn highest(step: usize) -> u64 {
    let step = u64::try_from(step).unwrap_or(u64::MAX);
    let doublings = (step / STEPS).saturating_sub(1);
    let first = step - doublings * STEPS;
    ((first + 1) << doublings) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_less_than_a_percent_wide_and_in_order() {
        let mut before = 0;
        for number in (0..1000).chain((0..40).map(|power| 3_u64 << power)) {
            let step = step(number);
            let highest = highest(step);
            assert!(highest >= number, "{number} is in step {step} to {highest}");
            assert!(highest - number <= number / 100, "{number} is in step {step} to {highest}");
        }
        for number in 0..5000 {
            assert!(step(number) >= before, "{number}");
            before = step(number);
        }
        assert!(step(u64::MAX) < 10_000);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_list() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(500), Duration::ZERO);
        for millis in 1..=1000 {
            histogram.add(Duration::from_millis(millis));
        }
        for (permille, millis) in [(500, 500), (990, 990), (1000, 1000), (1, 1)] {
            let (found, exact) = (histogram.quantile(permille).as_secs_f64(), f64::from(millis) / 1000.0);
            assert!((found / exact - 1.0).abs() < 0.01, "{permille}: {found} and not {exact}");
        }
        assert_eq!((histogram.max(), histogram.count()), (Duration::from_secs(1), 1000));
    }
}
