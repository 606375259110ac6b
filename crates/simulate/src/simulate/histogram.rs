//! A histogram of durations in steps of less than one percent, so that its memory is bounded.

use std::collections::BTreeMap;
use std::time::Duration;

/// The number of steps between a duration and its double.
const STEPS: u64 = 128;

/// A histogram of durations.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// The number of durations in each step. A step is identified by its highest number of
    /// microseconds.
    counts: BTreeMap<u64, u64>,
    pub(super) count: u64,
    /// The longest duration, not rounded.
    pub max: Duration,
}

// === impl Histogram ===

impl Histogram {
    /// Adds a duration.
    pub fn add(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        *self.counts.entry(step(micros)).or_insert(0) += 1;
        self.count += 1;
        self.max = self.max.max(duration);
    }

    /// Returns the number of durations longer than this, with an error of less than one percent of
    /// it.
    pub fn over(&self, duration: Duration) -> u64 {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.counts.iter().filter(|(highest, _)| **highest > step(micros)).map(|(_, count)| count).sum()
    }

    /// Adds the durations of another.
    pub(super) fn merge(&mut self, other: &Self) {
        for (step, count) in &other.counts {
            *self.counts.entry(*step).or_insert(0) += count;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// Returns a quantile with an error of less than one percent; 990 is the 99th percentile. Zero
    /// if the histogram is empty.
    pub fn quantile(&self, permille: u64) -> Duration {
        let rank = (self.count * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        let reached = self.counts.iter().find(|(_, count)| {
            seen += *count;
            seen >= rank
        });
        reached.map_or(self.max, |(highest, _)| Duration::from_micros(*highest).min(self.max))
    }
}

/// Returns the highest number in the same step as `number`.
///
/// Up to `2 * STEPS` each number is a step. Beyond that, each doubling has `STEPS` steps.
fn step(number: u64) -> u64 {
    let doublings = (number / STEPS).checked_ilog2().unwrap_or(0);
    number | ((1 << doublings) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_less_than_a_percent_wide_and_in_order() {
        for number in (0..1000).chain((0..40).map(|power| 3_u64 << power)) {
            let highest = step(number);
            assert!(highest >= number && highest - number <= number / 100, "{number} is in the step to {highest}");
        }
        let steps: Vec<u64> = (0..5000).map(step).collect();
        assert!(steps.is_sorted());
        assert_eq!(step(u64::MAX), u64::MAX);
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_list() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(500), Duration::ZERO);
        for millis in 1..=1000 {
            histogram.add(Duration::from_millis(millis));
        }
        for (permille, millis) in [(500, 500), (990, 990), (1000, 1000), (1, 1)] {
            let found = histogram.quantile(permille).as_secs_f64();
            let exact = f64::from(millis) / 1000.0;
            assert!((found / exact - 1.0).abs() < 0.01, "{permille}: {found} and not {exact}");
        }
        assert_eq!((histogram.max, histogram.count), (Duration::from_secs(1), 1000));
    }
}
