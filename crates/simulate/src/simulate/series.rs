//! Counts over time in bounded memory. If there are too many steps, pairs of them are merged.

use std::time::Duration;

use crate::moment::Moment;

/// The most steps of a series.
const MOST: usize = 2000;

/// A quantity counted in each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// The number of arrived calls.
    Arrived,
    /// The number of calls sent upstream.
    Sent,
    /// The number of retries of failed calls sent upstream.
    Retries,
    /// The number of calls with a failure response of the upstream.
    Failed,
    /// The number of calls refused by the gate.
    Refused,
    /// The sum of the waiting times of sent calls, in microseconds.
    Waited,
}

impl Column {
    /// The names of the columns, in order.
    pub(super) const NAMES: [&'static str; 6] = ["arrived", "sent", "retries", "failed", "refused", "waited_us"];
}

/// The values of the columns in one step.
pub(super) type Counts = [u64; Column::NAMES.len()];

/// The counts in each step of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    /// The length of a step.
    pub(super) step: Duration,
    counts: Vec<Counts>,
}

// === impl Series ===

impl Series {
    /// Creates a series with steps of this length. If there are too many steps, they become longer.
    pub(super) fn new(step: Duration) -> Self {
        Self { step: step.max(Duration::from_millis(1)), counts: Vec::new() }
    }

    pub(super) fn add(&mut self, column: Column, at: Moment, many: u64) {
        let index = |step: Duration| usize::try_from(at.since_start().as_nanos() / step.as_nanos());
        let index = loop {
            match index(self.step) {
                Ok(index) if index < MOST => break index,
                _ => self.halve(),
            }
        };
        if index >= self.counts.len() {
            self.counts.resize(index + 1, Counts::default());
        }
        self.counts[index][column as usize] += many;
    }

    /// Returns each step: its start and its counts.
    pub(super) fn steps(&self) -> impl Iterator<Item = (Duration, &Counts)> {
        (0_u32..).zip(&self.counts).map(|(index, counts)| (self.step * index, counts))
    }

    /// Merges pairs of steps until each is at least this long.
    fn at_least(&mut self, step: Duration) {
        while self.step < step {
            self.halve();
        }
    }

    /// Returns the sum of several series, with steps of at least `least`.
    pub(super) fn sum<'a>(all: impl Iterator<Item = &'a Self> + Clone, least: Duration) -> Self {
        let step = all.clone().map(|series| series.step).fold(least, Duration::max);
        let mut sum = Self::new(step);
        for mut series in all.cloned() {
            series.at_least(step);
            sum.step = series.step;
            sum.counts.resize(sum.counts.len().max(series.counts.len()), Counts::default());
            for (total, counts) in sum.counts.iter_mut().zip(&series.counts) {
                total.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
            }
        }
        sum
    }

    fn halve(&mut self) {
        self.step *= 2;
        let sum = |pair: &[Counts]| std::array::from_fn(|column| pair.iter().map(|counts| counts[column]).sum());
        self.counts = self.counts.chunks(2).map(sum).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_steps_are_joined() {
        let mut series = Series::new(Duration::from_millis(100));
        for second in 0..10_000 {
            series.add(Column::Sent, Moment::from_millis(second * 1000), 1);
        }
        assert!(series.steps().count() <= MOST);
        assert_eq!(series.steps().map(|(_, counts)| counts[Column::Sent as usize]).sum::<u64>(), 10_000);
        assert_eq!(series.step, Duration::from_millis(100 * 64));
    }
}
