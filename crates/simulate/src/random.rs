//! A seeded random generator (SplitMix64), so that a demo or simulation can be repeated exactly.

/// A sequence of random numbers, always the same for a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

// === impl Random ===

impl Random {
    /// Creates the sequence for this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random whole number below `end`; zero if `end` is zero.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX);
        usize::try_from(self.next().checked_rem(end).unwrap_or(0)).unwrap_or(0)
    }

    /// Returns a random number from 0 up to, but not including, 1.
    pub fn fraction(&mut self) -> f64 {
        // 32 bits are exact in a float, and fine enough for times between calls.
        f64::from(u32::try_from(self.next() >> 32).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.below(100)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_eq!(Random::new(1).below(0), 0);
    }

    #[test]
    fn fractions_fill_the_unit_interval() {
        let mut random = Random::new(7);
        let drawn: Vec<f64> = (0..1000).map(|_| random.fraction()).collect();
        assert!(drawn.iter().all(|one| (0.0..1.0).contains(one)));
        let mean = drawn.iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
    }
}
