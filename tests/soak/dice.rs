//! Random numbers from a seed (SplitMix64): the same on every machine, although tasks may draw them
//! in another order.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Dice(AtomicU64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// A new generator, seeded by this one.
    pub(crate) fn child(&self) -> Self {
        Self::new(self.roll())
    }

    fn roll(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&self, end: u64) -> u64 {
        self.roll() % end
    }

    pub(crate) fn one_in(&self, of: u64) -> bool {
        self.below(of) == 0
    }
}
