//! The hot objects, with the kind of loop.
//!
//! A loop is reported if an object was called more often than its pace for most of a minute (eight
//! of the last twelve steps of five seconds, more than a burst), or if one caller got the same 4xx
//! for it ten times in a row in half a minute or more. It is over after a minute at the pace; a run
//! of 4xx is over after any other response, or after a time without calls.

use super::denied::DenialRuns;
use super::report::{News, Report};
use super::seen::ObjectCall;
use super::watched::WatchedObject;
use crate::limit::sketch::{Pace, Sketch};
use crate::moment::Moment;

/// The hot objects.
#[derive(Debug, Default)]
pub struct Loops {
    sketch: Sketch,
    watched: Vec<WatchedObject>,
    denied: DenialRuns,
    /// For the next tick.
    news: Vec<News>,
}

// === impl Loops ===

impl Loops {
    /// Counts a call of an object at this pace. Returns true if it came too soon.
    #[inline]
    pub fn is_too_soon(&mut self, object: u64, reads: bool, pace: Pace, at: Moment) -> bool {
        self.sketch.take(pace.number(in_direction(object, reads)), pace, at).is_err()
    }

    /// True if nothing is watched: then a call at its pace without a 4xx does not matter.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.watched.is_empty() && self.denied.is_empty()
    }

    /// True if an object is watched, so that its calls need a digest of their bodies.
    pub fn watches(&self, object: u64, reads: bool) -> bool {
        let id = in_direction(object, reads);
        self.watched.iter().any(|watched| watched.id == id)
    }

    /// Returns the number of watched objects.
    pub fn watched(&self) -> usize {
        self.watched.len()
    }

    /// Learns of a call. `too_soon` is the result of [`Self::is_too_soon`].
    pub fn learn(&mut self, seen: &ObjectCall<'_>, too_soon: bool) {
        let id = in_direction(seen.object, seen.reads);
        let place = match self.watched.iter().position(|watched| watched.id == id) {
            None if too_soon => self.watch(id, seen),
            place => place,
        };
        if let Some(watched) = place.and_then(|place| self.watched.get_mut(place)) {
            watched.learn(seen, too_soon);
        }
        if seen.is_upstreams {
            let news = if is_denial(seen.status) {
                self.denied.denied(seen)
            } else if self.denied.is_empty() || seen.status >= 429 {
                None // another failure
            } else {
                self.denied.passed(seen)
            };
            self.news.extend(news);
        }
    }

    /// Returns the news since the last call. Call it every second.
    pub fn tick(&mut self, now: Moment) -> Vec<News> {
        let news = &mut self.news;
        let denied = &mut self.denied;
        denied.tick(now, news);
        for watched in self.watched.iter_mut().filter(|watched| !watched.is_named) {
            // `denied` reports an object that is always denied, and one that fails is a failing key.
            let is_known = watched.is_mostly_denied() && denied.names(watched.of) || watched.is_mostly_failing();
            if watched.is_loop(now) && !is_known {
                watched.is_named = true;
                news.push(News::Began(watched.report(now)));
            }
        }
        self.watched.retain_mut(|watched| {
            let is_over = watched.is_over(now);
            if is_over && watched.is_named {
                news.push(News::Ended(watched.report(now)));
            }
            !is_over
        });
        std::mem::take(news)
    }

    /// Returns the loops, those with most calls first.
    pub fn list(&mut self, now: Moment) -> Vec<Report> {
        let named = self.watched.iter_mut().filter(|watched| watched.is_named);
        let mut all: Vec<Report> = named.map(|watched| watched.report(now)).chain(self.denied.list()).collect();
        all.sort_by_key(|report| std::cmp::Reverse((report.calls, report.since)));
        all
    }

    /// Returns its bytes, about.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let texts = 2048;
        let watched = self.watched.capacity() * (size_of::<WatchedObject>() + texts);
        self.sketch.bytes() + watched + self.denied.bytes()
    }

    /// Begins to watch an object. With too many, it takes the place of the one with the fewest calls,
    /// unless all are loops. Returns its place.
    fn watch(&mut self, id: u64, seen: &ObjectCall<'_>) -> Option<usize> {
        if self.watched.len() >= MOST {
            let (place, least) = self.watched.iter().enumerate().min_by_key(|(_, watched)| watched.weight())?;
            if least.is_named {
                return None;
            }
            self.watched.swap_remove(place);
        }
        self.watched.push(WatchedObject::new(id, seen));
        Some(self.watched.len() - 1)
    }
}

/// Returns different numbers for reads and writes of an object.
#[inline]
#[must_use]
pub fn in_direction(object: u64, reads: bool) -> u64 {
    if reads { !object } else { object }
}

/// True for a permanent denial. A 429 asks for a retry, a 408 is about time, and
/// after a 410 a reader begins again.
fn is_denial(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 408 | 410 | 429)
}

/// The most watched objects.
const MOST: usize = 64;
