//! Refunds: decides whether a token can still be given back.
//!
//! If the token had not been taken, it would still be in the bucket, unless the bucket was full at
//! some moment since: then it would have overflowed, and giving it back would allow one call too
//! many (P1). So every take records how many whole tokens were missing in the bucket. A token can
//! be given back as long as no later take found less than one missing. When it is given back, one
//! is subtracted from what each later take found.

/// For each number of missing tokens, the last call with so many missing.
#[derive(Debug, Default)]
pub(crate) struct Refunds {
    /// The number of the last call to find the bucket full, or less than one token short.
    full: u64,
    /// The numbers of the last calls to find 1, 2, 3, ... whole tokens missing.
    short: Vec<u64>,
}

// === impl Refunds ===

impl Refunds {
    /// Records that call `number` found less than one token missing.
    #[inline]
    pub(crate) fn found_full(&mut self, number: u64) {
        self.full = number;
    }

    /// Records how many whole tokens call `number` found missing.
    #[inline]
    pub(crate) fn found(&mut self, missing: u64, number: u64) {
        let Some(place) = usize::try_from(missing).unwrap_or(DEPTH).min(DEPTH).checked_sub(1) else {
            return self.found_full(number);
        };
        match self.short.get_mut(place) {
            Some(last) => *last = number,
            None => self.deepen(place, number),
        }
    }

    #[cold]
    fn deepen(&mut self, place: usize, number: u64) {
        self.short.resize(place, 0);
        self.short.push(number);
    }

    /// Gives back the token taken under `number`. Returns false if the bucket would have overflowed
    /// since without that take.
    pub(crate) fn give_back(&mut self, number: u64) -> bool {
        if number < self.full {
            return false;
        }
        let mut below = &mut self.full;
        for last in &mut self.short {
            if *last > number {
                *below = std::mem::take(last).max(*below);
            }
            below = last;
        }
        true
    }
}

/// The most missing tokens to distinguish. A call with more missing counts as with this many, so
/// that at worst too little is given back.
const DEPTH: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::Moment;
    use crate::policy::BucketPolicy;
    use crate::resources::bucket::{Bucket, Start};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::num::NonZeroU32;
    use std::time::Duration;

    /// Makes a bucket with one second per token.
    fn bucket(burst: u32) -> Bucket {
        Bucket::new(BucketPolicy::new(1.0, NonZeroU32::new(burst).unwrap()), Start::Full)
    }

    /// Returns the level at `now` if there had only been these takes.
    fn level_after(takes: &[(u64, Moment)], burst: u32, now: Moment) -> f64 {
        let mut replayed = bucket(burst);
        for (number, at) in takes {
            assert!((replayed.take(*at, *number, 1) > 0), "more has been let through than there was");
        }
        replayed.level(now).min(f64::from(burst))
    }

    #[test]
    fn what_two_takes_held_back_together_does_not_come_back_past_full() {
        let mut bucket = bucket(3);
        let at = Moment::from_millis;
        assert!((bucket.take(at(0), 1, 1) > 0) && (bucket.take(at(0), 2, 1) > 0) && (bucket.take(at(500), 3, 1) > 0));
        bucket.give_back(1);
        bucket.give_back(2);
        // Without the two it was full until the third came, half a second ago.
        assert!(bucket.level(at(500)) <= 2.0 + 1e-9, "{}", bucket.level(at(500)));
    }

    #[test]
    fn a_whole_burst_comes_back_in_whatever_order() {
        for order in [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [3, 1, 5, 2, 4]] {
            let mut bucket = bucket(5);
            assert!((1..=5).all(|number| bucket.take(Moment::ZERO, number, 1) > 0));
            order.into_iter().for_each(|number| bucket.give_back(number));
            assert!((bucket.level(Moment::ZERO) - 5.0).abs() < 1e-9, "{order:?}: {}", bucket.level(Moment::ZERO));
        }
    }

    #[test]
    fn what_lies_deeper_than_is_watched_gives_back_too_little_at_worst() {
        let mut refunds = Refunds::default();
        (1..=300).for_each(|number| refunds.found(number - 1, number));
        let came_back = (1..=300).filter(|number| refunds.give_back(*number)).count();
        assert!((DEPTH..=300).contains(&came_back), "{came_back}");
    }

    proptest! {
        /// P1 and P6: after a refund it is as if the call had never arrived, and no bucket has more
        /// than it would have had then.
        #[test]
        fn p1_p6_what_is_given_back_was_never_taken(
            burst in 1_u32..8,
            steps in vec((0_u64..2_500, proptest::option::weighted(0.4, any::<prop::sample::Index>())), 1..120),
        ) {
            let mut bucket = bucket(burst);
            let (mut takes, mut now, mut withheld) = (Vec::new(), Moment::ZERO, 0.0);
            for (number, (gap, back)) in (1..).zip(steps) {
                match back {
                    Some(which) if !takes.is_empty() => {
                        let (number, _) = takes.remove(which.index(takes.len()));
                        let before = bucket.level(now);
                        bucket.give_back(number);
                        let refused = bucket.level(now) <= before && before < f64::from(burst);
                        withheld += f64::from(u8::from(refused));
                    }
                    _ => {
                        now += Duration::from_millis(gap);
                        if bucket.take(now, number, 1) > 0 {
                            takes.push((number, now));
                        }
                    }
                }
                let (level, should) = (bucket.level(now).min(f64::from(burst)), level_after(&takes, burst, now));
                prop_assert!(level <= should + 1e-6, "{level} of {should} at {now:?}, {takes:?}");
                prop_assert!(level + withheld + 1e-6 >= should, "{level} of {should} and {withheld} at {now:?}");
            }
        }
    }
}
