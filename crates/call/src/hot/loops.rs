//! The objects called too often or in vain, with the kind of loop.
//!
//! A loop is reported if an object was called more often than its pace for most of a minute (eight
//! of the last twelve steps of five seconds, more than a burst), or if one caller got the same 4xx
//! for it ten times in a row in half a minute or more. The loop is over after a minute without
//! calls above the pace; a run of 4xx is over after any other response, or after a time without
//! calls. What is slower is found by the detector that reads logs, too: a sketch selects the objects
//! that are written again and again, so that the detector knows few.

use std::num::NonZeroU32;
use std::time::Duration;

use super::detector::Detector;
use super::found::{FoundLoop, LoopKind, News};
use super::repeats::Proof;
use super::seen::{Act, CallNames, ObjectCall, written};
use super::watched::WatchedObject;
use crate::api::Key;
use crate::limit::sketch::{Pace, Sketch};
use crate::moment::Moment;

/// The objects called too often or in vain.
#[derive(Debug)]
pub struct Loops {
    sketch: Sketch,
    watched: Vec<WatchedObject>,
    /// The writes of each object at the pace of a slow loop; the detector counts those above it.
    slow: Sketch,
    slow_pace: Pace,
    detector: Detector,
    /// The loops that the detector named.
    named: Vec<FoundLoop>,
    /// When to ask the detector.
    next_look: Moment,
    /// Loops begun or ended, to be returned by the next `tick`.
    news: Vec<News>,
}

// === impl Loops ===

impl Loops {
    /// Counts a call of an object against its allowed rate. Returns `None` if nothing more of it need
    /// be recorded, and otherwise whether it came too soon.
    #[inline]
    pub fn count(&mut self, key: Key, act: Act, pace: Option<Pace>, at: Moment, is_denied: bool) -> Option<bool> {
        let too_soon = pace.is_some_and(|pace| {
            self.sketch.take(pace.number(in_direction(key.object, act == Act::Read)), pace, at).is_err()
        });
        let is_repeated = match act {
            Act::Create | Act::CreateEvent | Act::Delete => true,
            Act::Write => pace.is_some() && self.is_repeated(written(key.object, key.facet), at),
            Act::Read | Act::Other => false,
        };
        (too_soon || is_denied || is_repeated || !self.is_calm()).then_some(too_soon)
    }

    /// Returns true if no object is being observed: then a read within its rate and without a 4xx
    /// need not be recorded.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.watched.is_empty() && !self.detector.is_denying()
    }

    /// Returns true if a write may belong to a slow loop.
    fn is_repeated(&mut self, written: u64, at: Moment) -> bool {
        self.detector.knows(written) || self.slow.take(written, self.slow_pace, at).is_err()
    }

    /// Returns true if an object is being observed, so that the bodies of its calls must be
    /// compared.
    pub fn watches(&self, key: Key, act: Act, now: Moment) -> bool {
        let id = in_direction(key.object, act == Act::Read);
        self.watched.iter().any(|watched| watched.id == id) || act == Act::Write && self.samples(key, now)
    }

    /// Returns true if a write is to be judged by its body and the version in its answer.
    pub fn samples(&self, key: Key, now: Moment) -> bool {
        self.detector.samples(written(key.object, key.facet), now)
    }

    /// Returns the number of objects being observed.
    pub fn watched(&self) -> usize {
        self.watched.len() + self.detector.objects()
    }

    /// Records a call. `too_soon` is the result of [`Self::count`].
    pub fn learn(&mut self, seen: &ObjectCall, too_soon: bool, names: &dyn Fn() -> CallNames) {
        if seen.is_named() {
            let id = in_direction(seen.object, seen.act == Act::Read);
            let place = match self.watched.iter().position(|watched| watched.id == id) {
                None if too_soon => self.watch(id, seen, names),
                place => place,
            };
            if let Some(watched) = place.and_then(|place| self.watched.get_mut(place)) {
                watched.learn(seen, too_soon, names);
            }
        }
        if !seen.is_judged_later {
            self.judge(seen, names);
        }
    }

    /// Records a call whose answer is known, so that it can be judged.
    pub fn judge(&mut self, seen: &ObjectCall, names: &dyn Fn() -> CallNames) {
        self.news.extend(self.detector.count(seen, names));
    }

    /// Returns the loops begun or ended since the last call, to be logged. Call it every second.
    pub fn tick(&mut self, now: Moment) -> Vec<News> {
        self.news.extend(self.detector.tick(now).into_iter().map(News::Ended));
        if now >= self.next_look {
            self.next_look = now + LOOK;
            self.look(now);
        }
        let news = &mut self.news;
        for watched in self.watched.iter_mut().filter(|watched| !watched.is_named) {
            // The detector reports an object that is always denied, and one that fails is a failing key.
            let is_known = watched.is_mostly_denied() && self.detector.denies(watched.of)
                || watched.is_mostly_failing()
                || self.named.iter().any(|named| watched.is_of(named.id));
            if watched.is_loop(now) && !is_known {
                watched.is_named = true;
                news.push(News::Began(watched.report()));
            }
        }
        self.watched.retain_mut(|watched| {
            let is_over = watched.is_over(now);
            if is_over && watched.is_named {
                news.push(News::Ended(watched.report()));
            }
            !is_over
        });
        std::mem::take(news)
    }

    /// Returns the loops, those with most calls first.
    pub fn list(&self) -> Vec<FoundLoop> {
        let fast = self.watched.iter().filter(|watched| watched.is_named).map(|watched| watched.report());
        let mut all: Vec<_> = fast.chain(self.detector.denied()).chain(self.named.iter().cloned()).collect();
        all.sort_by_key(|found| std::cmp::Reverse((found.calls, found.since)));
        all
    }

    /// Returns roughly how much memory the loops take, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let texts = 2048;
        let watched = self.watched.capacity() * (size_of::<WatchedObject>() + texts);
        self.sketch.bytes() + self.slow.bytes() + watched + self.detector.bytes()
    }

    /// Compares the detector's loops with those named before. One ends some minutes after its last
    /// call, or after it was last found: half of its calls in vain are now more, now less.
    fn look(&mut self, now: Moment) {
        let goes_on = |found: &FoundLoop| now - found.last < ENDS_AFTER;
        self.detector.age(now);
        let mut found = self.detector.found();
        found.retain(|found| found.kind != LoopKind::Fast && goes_on(found)); // fast ones are watched
        for watched in self.watched.iter_mut().filter(|watched| watched.is_named) {
            let place = found.iter().position(|found| watched.is_of(found.id));
            watched.judged = place.map(|place| found.swap_remove(place));
        }
        let is_in = |all: &[FoundLoop], one: &FoundLoop| all.iter().any(|other| other.id == one.id);
        let begun = found.iter().filter(|found| !is_in(&self.named, found));
        self.news.extend(begun.cloned().map(News::Began));
        for named in std::mem::take(&mut self.named) {
            if is_in(&found, &named) {
                continue;
            }
            if goes_on(&named) {
                found.push(named);
            } else {
                self.news.push(News::Ended(named));
            }
        }
        self.named = found;
    }

    /// Begins to observe an object and returns its index. If there are too many, it replaces the
    /// one with the fewest calls, unless all are loops.
    fn watch(&mut self, id: u64, seen: &ObjectCall, names: &dyn Fn() -> CallNames) -> Option<usize> {
        if self.watched.len() >= MOST {
            let (place, least) = self.watched.iter().enumerate().min_by_key(|(_, watched)| watched.weight())?;
            if least.is_named {
                return None;
            }
            self.watched.swap_remove(place);
        }
        self.watched.push(WatchedObject::new(id, seen, names()));
        Some(self.watched.len() - 1)
    }
}

impl Default for Loops {
    fn default() -> Self {
        Self {
            sketch: Sketch::default(),
            watched: Vec::new(),
            slow: Sketch::default(),
            slow_pace: Pace::new(SLOW, SLOW_BURST),
            detector: Detector::new(PROOF, KNOWN),
            named: Vec::new(),
            next_look: Moment::ZERO,
            news: Vec::new(),
        }
    }
}

/// Returns the hash for counting an object's reads or its writes.
#[inline]
pub fn in_direction(object: u64, reads: bool) -> u64 {
    if reads { !object } else { object }
}

/// The most objects to observe.
const MOST: usize = 64;
/// The most objects whose writes are judged, and the most runs of denied calls.
const KNOWN: usize = 384;
/// The proof of a loop: less may be a rollout.
const PROOF: Proof = Proof { calls: 20, lasts: Duration::from_secs(300), flood_lasts: Duration::from_secs(3300) };
/// The writes in a second above which an object's are judged: twenty in an hour.
const SLOW: f64 = 20.0 / 3600.0;
const SLOW_BURST: NonZeroU32 = NonZeroU32::new(3).unwrap();
/// The time without a call in vain after which a loop has ended; the slowest has a call in two minutes.
const ENDS_AFTER: Duration = Duration::from_secs(300);
/// The time between two looks at the detector.
const LOOK: Duration = Duration::from_secs(60);
