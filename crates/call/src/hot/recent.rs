//! A count of the last ten minutes.

use std::time::Duration;

use crate::moment::Moment;

/// A count of the last ten minutes, to half a minute: that many may be missing.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    steps: [u32; STEPS],
    /// The number of the present step, since the start.
    step: u64,
}

// === impl Recent ===

impl Recent {
    pub(super) fn new(now: Moment) -> Self {
        Self { steps: [0; STEPS], step: step(now) }
    }

    /// Counts one more.
    pub(super) fn add(&mut self, now: Moment) {
        self.go_on(now);
        let place = place(self.step);
        if let Some(count) = self.steps.get_mut(place) {
            *count = count.saturating_add(1);
        }
    }

    /// Returns the count of the last ten minutes.
    pub(super) fn count(&mut self, now: Moment) -> u64 {
        self.go_on(now);
        self.steps.iter().map(|count| u64::from(*count)).sum()
    }

    fn go_on(&mut self, now: Moment) {
        let gone = step(now).saturating_sub(self.step).min(STEPS as u64);
        for _ in 0..gone {
            self.step += 1;
            let place = place(self.step);
            if let Some(count) = self.steps.get_mut(place) {
                *count = 0;
            }
        }
        self.step = self.step.max(step(now));
    }
}

fn step(now: Moment) -> u64 {
    now.since_start().as_secs() / STEP.as_secs()
}

#[expect(clippy::cast_possible_truncation, reason = "less than the number of steps")]
fn place(step: u64) -> usize {
    (step % STEPS as u64) as usize
}

const STEP: Duration = Duration::from_secs(30);
const STEPS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_ten_minutes_does_not_count() {
        let at = |second: u64| Moment::from_millis(second * 1000);
        let mut recent = Recent::new(at(0));
        (0..1200).for_each(|second| recent.add(at(second)));
        assert_eq!(recent.count(at(1199)), 600);
        assert_eq!(recent.count(at(1500)), 270);
        assert_eq!(recent.count(at(1_000_000)), 0);
        recent.add(at(1_000_000));
        assert_eq!(recent.count(at(1_000_001)), 1);
        recent.add(at(5));
        assert_eq!(recent.count(at(1_000_001)), 2, "time never goes back");
    }
}
