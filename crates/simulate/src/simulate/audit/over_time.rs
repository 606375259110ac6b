//! The most calls in one second over the time of a log, in bounded memory.

/// The most calls in one second of each step. If there are too many steps, they become longer.
#[derive(Clone, Debug, Default)]
pub struct PeakSeries {
    /// How often the length of a step was doubled, from one second.
    doublings: u32,
    peaks: Vec<u32>,
}

// === impl PeakSeries ===

impl PeakSeries {
    /// Returns the length of a step in seconds.
    pub(super) fn step(&self) -> u64 {
        1 << self.doublings
    }

    /// Returns the most calls in one second of each step.
    pub(super) fn peaks(&self) -> Vec<u64> {
        self.peaks.iter().copied().map(u64::from).collect()
    }

    /// Counts this many calls in this second of the log.
    pub(super) fn count(&mut self, second: u64, calls: u64) {
        while second / self.step() >= MOST {
            self.widen();
        }
        let index = usize::try_from(second / self.step()).unwrap_or(0);
        self.peaks.resize(self.peaks.len().max(index + 1), 0);
        self.peaks[index] = self.peaks[index].max(u32::try_from(calls).unwrap_or(u32::MAX));
    }

    /// Makes the steps those of a series for the whole log.
    pub(super) fn align(&mut self, whole: &Self) {
        while self.doublings < whole.doublings {
            self.widen();
        }
        self.peaks.resize(whole.peaks.len(), 0);
    }

    fn widen(&mut self) {
        self.doublings += 1;
        self.peaks = self.peaks.chunks(2).filter_map(|pair| pair.iter().copied().max()).collect();
    }
}

/// The most steps.
const MOST: u64 = 240;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_stays_when_steps_become_longer() {
        let mut whole = PeakSeries::default();
        let mut early = PeakSeries::default();
        for second in 0..1000 {
            whole.count(second, if second == 300 { 70 } else { 1 });
        }
        early.count(3, 5);
        early.align(&whole);
        assert_eq!((whole.step(), whole.peaks.len()), (8, 125));
        assert_eq!((whole.peaks[300 / 8], whole.peaks.iter().sum::<u32>()), (70, 124 + 70));
        assert_eq!((early.step(), early.peaks.len(), early.peaks[0], early.peaks[1]), (8, 125, 5, 0));
    }
}
