//! Counts the calls of each object to find those called too often, in bounded memory (a sketch of
//! heavy hitters).
//!
//! Each object has a bucket of tokens. A full bucket says nothing, so only buckets that are not
//! full are kept: an object called less often than its pace needs no memory a moment later. As long
//! as all buckets fit, every object is counted exactly. If they do not fit, the bucket nearest to
//! full is dropped, and its object starts again with a full bucket.
//!
//! This is the large-flow detection of Wu, Hsiao and Hu (*Efficient Large Flow Detection over
//! Arbitrary Windows*, IMC 2014) with the replacement of Metwally's Space-Saving (ICDT 2005), but a
//! new object does not inherit the count of the object it replaces. So every error is in favour of
//! the objects: none is found without having been called too often (except where two salted hashes
//! of at least 48 bits are equal). An object with more than its part of all calls, one in `PLACES`,
//! is found in the end, because its bucket is never the nearest to full among its neighbours.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::moment::Moment;

/// The allowed rate of calls of one object: a burst at once, then one call in each interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The nanoseconds per call.
    interval: u64,
    /// Nanoseconds until an empty bucket is full.
    whole: u64,
}

/// The allowed rates of writes and of reads of one object, in a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerKey {
    /// The allowed rate of writes; `None` if they are not counted.
    pub writes: Option<Pace>,
    /// The allowed rate of reads; `None` if they are not counted.
    pub reads: Option<Pace>,
    /// True if calls above the rate are refused; otherwise the object is only reported.
    pub enforce: bool,
}

/// The token buckets of recently called objects, as many as fit.
#[derive(Debug, Default)]
pub struct Sketch {
    /// The buckets in groups of neighbours; empty until the first call. The hash of an object
    /// chooses its group.
    places: Vec<[ObjectBucket; NEIGHBOURS]>,
}

/// The bucket of one object; all zero if it is unused.
#[derive(Clone, Copy, Debug, Default)]
struct ObjectBucket {
    object: u64,
    full_at: Moment,
}

// === impl Pace ===

impl Pace {
    /// Makes a pace of this many calls in a second, with a burst.
    #[must_use]
    pub fn new(rate: f64, burst: NonZeroU32) -> Self {
        // A rate without an interval is as good as the slowest or the fastest.
        let interval = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX);
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        Self { interval, whole: interval.saturating_mul(burst.get().into()) }
    }

    /// Returns the calls per second.
    #[must_use]
    pub fn rate(self) -> f64 {
        1.0 / Duration::from_nanos(self.interval).as_secs_f64()
    }

    /// Returns the most calls at once.
    #[must_use]
    pub fn burst(self) -> u64 {
        self.whole / self.interval
    }

    /// Returns the hash for counting an object at this rate, so that no two rates share a count.
    #[inline]
    #[must_use]
    pub fn number(self, object: u64) -> u64 {
        object ^ self.interval ^ self.whole.rotate_left(32)
    }

    /// Converts the time until a bucket is full from the rate `other` to this rate, for the same
    /// number of tokens. With the rate `other` it takes `missing`.
    fn missing(self, missing: Duration, other: Self) -> Duration {
        let interval = u128::from(self.interval);
        let whole = u128::from(self.whole);
        let others_burst = u128::from(other.burst());
        let missing = (missing.as_nanos() * interval).div_ceil(other.interval.into()) + whole;
        let missing = missing.saturating_sub(others_burst * interval).min(whole);
        Duration::from_nanos(u64::try_from(missing).unwrap_or(u64::MAX))
    }
}

// === impl PerKey ===

impl PerKey {
    /// Returns the allowed rate of reads or of writes.
    #[inline]
    #[must_use]
    pub fn pace(&self, reads: bool) -> Option<Pace> {
        if reads { self.reads } else { self.writes }
    }
}

// === impl Sketch ===

impl Sketch {
    /// Takes a token from the bucket of an object.
    ///
    /// # Errors
    /// The moment of the next token, if there is none now.
    #[inline]
    pub fn take(&mut self, object: u64, pace: Pace, now: Moment) -> Result<(), Moment> {
        if self.places.is_empty() {
            self.places = vec![[ObjectBucket::default(); NEIGHBOURS]; PLACES / NEIGHBOURS];
        }
        let object = object.max(1);
        let Some(neighbours) = self.places.get_mut(neighbours(object)) else { return Ok(()) };
        let Some(bucket) = place_of(object, neighbours) else { return Ok(()) };
        if bucket.object != object {
            *bucket = ObjectBucket { object, full_at: now };
        }
        let taken = bucket.full_at.max(now).as_nanos().saturating_add(pace.interval);
        if taken - now.as_nanos() > pace.whole {
            return Err(Moment::from_nanos(taken - pace.whole));
        }
        bucket.full_at = Moment::from_nanos(taken);
        Ok(())
    }

    /// Converts the counts of a class's reads or writes to another rate: each object keeps its
    /// tokens, up to the new burst. Without a new rate the objects are forgotten.
    pub fn carry_over(&mut self, class: u32, reads: bool, from: Pace, to: Option<Pace>, now: Moment) {
        let is_meant = |bucket: &&mut ObjectBucket| bucket.object & CLASS == in_class(0, class, reads);
        // A full bucket is as good as none.
        for bucket in self.places.iter_mut().flatten().filter(is_meant).filter(|bucket| bucket.full_at > now) {
            match to {
                Some(to) => bucket.full_at = now + to.missing(bucket.full_at - now, from),
                None => *bucket = ObjectBucket::default(),
            }
        }
    }

    /// Returns when the bucket of an object is full; `None` if it is full already.
    #[must_use]
    pub fn full_at(&self, object: u64) -> Option<Moment> {
        let mut around = self.places.get(neighbours(object))?.iter();
        around.find(|bucket| bucket.object == object.max(1)).map(|bucket| bucket.full_at)
    }

    /// Restores the bucket of an object to an earlier result of [`Self::full_at`].
    pub fn restore(&mut self, object: u64, before: Option<Moment>) {
        let mut around = self.places.get_mut(neighbours(object)).into_iter().flatten();
        if let Some(bucket) = around.find(|bucket| bucket.object == object.max(1)) {
            bucket.full_at = before.unwrap_or_default();
        }
    }

    /// Returns the memory the sketch takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<[ObjectBucket; NEIGHBOURS]>()
    }
}

/// Returns the hash for counting the reads or the writes of an object in one class, as each class
/// has rates of its own. The class is in the last bits, for [`Sketch::carry_over`].
#[inline]
#[must_use]
pub fn in_class(object: u64, class: u32, reads: bool) -> u64 {
    object & !CLASS | (u64::from(class) << 1 | u64::from(reads)) & CLASS
}

/// Returns the index of the group of buckets for an object.
#[inline]
fn neighbours(object: u64) -> usize {
    (object >> 32) as usize % (PLACES / NEIGHBOURS)
}

/// Returns the bucket to use for an object: its own, or else the one of its group that is nearest
/// to full.
#[inline]
fn place_of(object: u64, neighbours: &mut [ObjectBucket; NEIGHBOURS]) -> Option<&mut ObjectBucket> {
    let own = neighbours.iter().position(|bucket| bucket.object == object);
    match own {
        Some(own) => neighbours.get_mut(own),
        None => neighbours.iter_mut().min_by_key(|bucket| bucket.full_at),
    }
}

/// The bits of an object's hash for the class, and for reads or writes.
const CLASS: u64 = 0xffff;
/// The number of objects counted at once, which takes 128 KiB. At the default of one write per
/// second and object this is enough for writes of a thousand different objects in each second.
const PLACES: usize = 8192;
/// The number of buckets to choose from for an object.
const NEIGHBOURS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: f64, burst: u32) -> Pace {
        Pace::new(rate, NonZeroU32::new(burst).expect("some"))
    }

    #[test]
    fn an_object_has_its_burst_and_then_its_rate_and_is_told_when_to_come_back() {
        let (mut sketch, pace, at) = (Sketch::default(), pace(2.0, 3), Moment::from_millis);
        for _ in 0..3 {
            assert_eq!(sketch.take(7, pace, at(1000)), Ok(()));
        }
        assert_eq!(sketch.take(7, pace, at(1000)), Err(at(1500)));
        assert_eq!(sketch.take(8, pace, at(1000)), Ok(()), "another object has its own");
        assert_eq!(sketch.take(7, pace, at(1499)), Err(at(1500)));
        assert_eq!(sketch.take(7, pace, at(1500)), Ok(()));
        let passed = (0..10_000).filter(|millis| sketch.take(7, pace, at(1501 + millis)).is_ok()).count();
        assert_eq!(passed, 20, "two in a second");
    }

    #[test]
    fn no_pace_and_no_moment_overflows() {
        for rate in [1e-300, 1e-9, 1e9, 1e300] {
            let (mut sketch, pace) = (Sketch::default(), pace(rate, u32::MAX));
            for now in [Moment::ZERO, Moment::from_millis(1), Moment::MAX] {
                assert_eq!(sketch.take(0, pace, now), Ok(()));
                assert_eq!(sketch.take(u64::MAX, pace, now), Ok(()));
            }
        }
    }

    #[test]
    fn another_pace_finds_the_tokens_that_are_left_and_at_most_its_burst() {
        let (fast, slow, at) = (pace(5.0, 50), pace(0.1, 5), Moment::from_millis(1000));
        // For the tokens that are taken at the one pace, those that are left at the other.
        for (from, to, cases) in [
            (fast, slow, [(0, 5), (45, 5), (46, 4), (49, 1), (50, 0)]),
            (slow, fast, [(0, 50), (1, 4), (3, 2), (4, 1), (5, 0)]),
        ] {
            for (taken, left) in cases {
                let (mut sketch, object) = (Sketch::default(), in_class(7 << 32, 3, true));
                for _ in 0..taken {
                    assert_eq!(sketch.take(object, from, at), Ok(()));
                }
                sketch.carry_over(3, false, from, None, at);
                sketch.carry_over(2, true, from, None, at);
                sketch.carry_over(3, true, from, Some(to), at);
                let went = (0..100).take_while(|_| sketch.take(object, to, at).is_ok()).count();
                assert_eq!(went, left, "after {taken} of {from:?}");
            }
        }
    }
}
