//! The objects called too often or in vain, with the kind of loop.
//!
//! A loop is reported if an object was called more often than its pace for most of a minute (eight
//! of the last twelve steps of five seconds, more than a burst), or if one caller got the same 4xx
//! for it ten times in a row in half a minute or more. The loop is over after a minute without
//! calls above the pace; a run of 4xx is over after any other response, or after a time without
//! calls.

use super::denied::DenialRuns;
use super::report::{News, Report};
use super::seen::ObjectCall;
use super::watched::WatchedObject;
use crate::limit::sketch::{Pace, Sketch};
use crate::moment::Moment;

/// The objects called too often or in vain.
#[derive(Debug, Default)]
pub struct Loops {
    sketch: Sketch,
    watched: Vec<WatchedObject>,
    denied: DenialRuns,
    /// Loops begun or ended, to be returned by the next `tick`.
    news: Vec<News>,
}

// === impl Loops ===

impl Loops {
    /// Counts a call of an object against its allowed rate. Returns true if it came too soon.
    #[inline]
    pub fn is_too_soon(&mut self, object: u64, reads: bool, pace: Pace, at: Moment) -> bool {
        self.sketch.take(pace.number(in_direction(object, reads)), pace, at).is_err()
    }

    /// Returns true if no object is being observed: then a call within its rate and without a 4xx
    /// need not be recorded.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.watched.is_empty() && self.denied.is_empty()
    }

    /// Returns true if an object is being observed, so that the bodies of its calls must be
    /// compared.
    pub fn watches(&self, object: u64, reads: bool) -> bool {
        let id = in_direction(object, reads);
        self.watched.iter().any(|watched| watched.id == id)
    }

    /// Returns the number of objects being observed.
    pub fn watched(&self) -> usize {
        self.watched.len()
    }

    /// Records a call. `too_soon` is the result of [`Self::is_too_soon`].
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

    /// Returns the loops begun or ended since the last call, to be logged. Call it every second.
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

    /// Returns roughly how much memory the loops take, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let texts = 2048;
        let watched = self.watched.capacity() * (size_of::<WatchedObject>() + texts);
        self.sketch.bytes() + watched + self.denied.bytes()
    }

    /// Begins to observe an object and returns its index. If there are too many, it replaces the
    /// one with the fewest calls, unless all are loops.
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

/// Returns the hash for counting an object's reads or its writes.
#[inline]
#[must_use]
pub fn in_direction(object: u64, reads: bool) -> u64 {
    if reads { !object } else { object }
}

/// Returns true for a permanent denial. A 429 asks for a retry, a 408 is about time, and after a
/// 410 a reader begins again.
fn is_denial(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 408 | 410 | 429)
}

/// The most objects to observe.
const MOST: usize = 64;
