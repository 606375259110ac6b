//! A count of events in the last ten minutes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::moment::Moment;

/// A count of events in the last ten minutes, with an error of half a minute. It has the count of
/// each half minute, by the half minute's number.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent(BTreeMap<u64, u64>);

// === impl Recent ===

impl Recent {
    /// Counts one more event.
    pub(super) fn add(&mut self, now: Moment) {
        *self.0.entry(step(now)).or_default() += 1;
        if self.0.len() > STEPS {
            self.0.pop_first();
        }
    }

    /// Returns the count of the last ten minutes.
    pub(super) fn count(&self, now: Moment) -> u64 {
        let first = (step(now) + 1).saturating_sub(STEPS as u64);
        self.0.range(first..).map(|(_, count)| count).sum()
    }
}

fn step(now: Moment) -> u64 {
    now.since_start().as_secs() / STEP.as_secs()
}

const STEP: Duration = Duration::from_secs(30);
const STEPS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_ten_minutes_does_not_count() {
        let at = |second: u64| Moment::from_millis(second * 1000);
        let mut recent = Recent::default();
        (0..1200).for_each(|second| recent.add(at(second)));
        assert_eq!(recent.count(at(1199)), 600);
        assert_eq!(recent.count(at(1500)), 270);
        assert_eq!(recent.count(at(1_000_000)), 0);
        recent.add(at(1_000_000));
        assert_eq!(recent.count(at(1_000_001)), 1);
        recent.add(at(999_950));
        recent.add(at(5));
        assert_eq!(recent.count(at(1_000_001)), 2, "a call that is answered late counts when it came");
    }
}
