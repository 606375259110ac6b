//! Finds the objects that are called too often or in vain, and tells what kind of loop it is.
//!
//! An object is named when it was called more often than its pace for most of a minute (eight of
//! the last twelve steps of five seconds), so that a burst is none, or when one caller has got the
//! same 4xx for it ten times in a row in half a minute or more. It is over after a minute in which
//! it kept to its pace; a run of 4xx is over with the first call that gets anything else, or after
//! a time without any.

use super::denied::Denied;
use super::report::{News, Report};
use super::seen::Seen;
use super::watched::Watched;
use crate::limit::sketch::{Pace, Sketch};
use crate::moment::Moment;

/// The objects that are called too often or in vain.
#[derive(Debug, Default)]
pub struct Loops {
    sketch: Sketch,
    watched: Vec<Watched>,
    denied: Denied,
    /// Findings that are not told yet.
    news: Vec<News>,
}

// === impl Loops ===

impl Loops {
    /// Counts a call of an object among those at this pace. Returns true if it came too soon.
    #[inline]
    pub fn is_too_soon(&mut self, object: u64, reads: bool, pace: Pace, at: Moment) -> bool {
        self.sketch.take(pace.number(in_direction(object, reads)), pace, at).is_err()
    }

    /// True if nothing is watched, so that a call that came at its pace and was not denied need not
    /// be looked at.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.watched.is_empty() && self.denied.is_empty()
    }

    /// True if an object is watched, so that the bodies of its calls are worth a digest.
    pub fn watches(&self, object: u64, reads: bool) -> bool {
        let id = in_direction(object, reads);
        self.watched.iter().any(|watched| watched.id == id)
    }

    /// Returns the number of objects that are watched.
    pub fn watched(&self) -> usize {
        self.watched.len()
    }

    /// Learns of a call. `too_soon` is what [`Self::is_too_soon`] said of it.
    pub fn learn(&mut self, seen: &Seen<'_>, too_soon: bool) {
        let id = in_direction(seen.object, seen.reads);
        let place = match self.watched.iter().position(|watched| watched.id == id) {
            None if too_soon => self.watch(Watched::new(id, seen)),
            place => place,
        };
        if let Some(watched) = place.and_then(|place| self.watched.get_mut(place)) {
            watched.learn(seen, too_soon);
        }
        if seen.is_upstreams {
            let news = if is_denial(seen.status) {
                self.denied.denied(seen)
            } else if self.denied.is_empty() || seen.status >= 429 {
                None // A failure tells nothing of it.
            } else {
                self.denied.passed(seen)
            };
            self.news.extend(news);
        }
    }

    /// Returns what has become known since the last call: every second is often enough.
    pub fn tick(&mut self, now: Moment) -> Vec<News> {
        let news = &mut self.news;
        let denied = &mut self.denied;
        denied.tick(now, news);
        for watched in self.watched.iter_mut().filter(|watched| !watched.is_named) {
            // An object that is denied for ever is named by `denied`, and one that fails is shown
            // as a failing key.
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

    /// Returns the bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        let watched = self.watched.capacity() * (size_of::<Watched>() + A_WATCHED);
        self.sketch.bytes() + watched + self.denied.bytes()
    }

    /// Begins to watch an object. If too many are watched, the one with the fewest calls that has
    /// no name yet goes. Returns its place, if there is one.
    fn watch(&mut self, watched: Watched) -> Option<usize> {
        if self.watched.len() >= MOST {
            let least = self.watched.iter().enumerate().min_by_key(|(_, watched)| watched.weight())?;
            let (place, (is_named, _)) = (least.0, least.1.weight());
            if is_named {
                return None;
            }
            self.watched.swap_remove(place);
        }
        self.watched.push(watched);
        Some(self.watched.len() - 1)
    }
}

/// Tells reads of an object from its writes.
#[inline]
#[must_use]
pub fn in_direction(object: u64, reads: bool) -> u64 {
    if reads { !object } else { object }
}

/// True for an answer that no retry of the same call changes. A 429 asks for a retry, a 408 is
/// about time, and a 410 tells a reader to begin again.
fn is_denial(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 408 | 410 | 429)
}

/// The objects that are watched at once.
const MOST: usize = 64;
/// The bytes of the texts of one of them, at most.
const A_WATCHED: usize = 2048;
