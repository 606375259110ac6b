//! Numbers over time with bounded memory: if there are too many steps, each two become one.

use std::time::Duration;

use crate::moment::Moment;

/// The most steps.
const MOST: usize = 2000;

/// Counts for each step of time.
#[derive(Clone, Debug)]
pub(super) struct Series<const N: usize> {
    step: Duration,
    counts: Vec<[u64; N]>,
}

// === impl Series ===

impl<const N: usize> Series<N> {
    /// Creates a series with steps of `step`, for as long as they fit.
    pub(super) fn new(step: Duration) -> Self {
        Self { step: step.max(Duration::from_millis(1)), counts: Vec::new() }
    }

    /// Adds one to `what` at `at`.
    pub(super) fn add(&mut self, what: usize, at: Moment) {
        self.add_many(what, at, 1);
    }

    pub(super) fn add_many(&mut self, what: usize, at: Moment, many: u64) {
        let mut index = self.index(at);
        while index >= MOST {
            self.halve();
            index = self.index(at);
        }
        if index >= self.counts.len() {
            self.counts.resize(index + 1, [0; N]);
        }
        self.counts[index][what] += many;
    }

    /// Returns the length of a step.
    pub(super) fn step(&self) -> Duration {
        self.step
    }

    /// Returns every step with its start.
    pub(super) fn steps(&self) -> impl Iterator<Item = (Duration, &[u64; N])> {
        (0_u32..).zip(&self.counts).map(|(index, counts)| (self.step * index, counts))
    }

    /// Merges steps until they are at least as long as `step`, so that two series can stand beside
    /// each other.
    pub(super) fn at_least(&mut self, step: Duration) {
        while self.step < step {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.step *= 2;
        let pairs = self.counts.chunks(2).map(|pair| {
            let mut sum = pair[0];
            if let Some(second) = pair.get(1) {
                sum.iter_mut().zip(second).for_each(|(one, other)| *one += other);
            }
            sum
        });
        self.counts = pairs.collect();
    }

    fn index(&self, at: Moment) -> usize {
        usize::try_from(at.since_start().as_nanos() / self.step.as_nanos()).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_steps_are_joined() {
        let mut series = Series::<1>::new(Duration::from_millis(100));
        for second in 0..10_000 {
            series.add(0, Moment::from_millis(second * 1000));
        }
        assert!(series.steps().count() <= MOST);
        assert_eq!(series.steps().map(|(_, [count])| count).sum::<u64>(), 10_000);
        assert_eq!(series.step(), Duration::from_millis(100 * 64));
    }
}
