//! Hot objects: those called too often or in vain. They are counted at each response and shown in
//! the status and the log; no limit depends on these counts.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::api::Key;
use crate::clock::Clock;
use crate::hot::{Act, CallNames, FoundLoop, Loops, News, ObjectCall, Pace};
use crate::lock;
use crate::moment::Moment;
use crate::status;

/// The counts of calls by object, to find those called too often or in vain.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    loops: Mutex<Loops>,
    /// The number of objects with request bodies to compare. If it is zero, no lock is taken.
    watched: AtomicUsize,
    /// True if some object has recent calls that were too frequent or denied. Then every call of an
    /// object must be recorded.
    is_busy: AtomicBool,
    /// The number of answers being read.
    reading: AtomicUsize,
}

// === impl Hot ===

impl Hot {
    /// Counts a call of an object. Returns `None` if nothing more of it need be recorded, and
    /// otherwise whether the call came too soon after earlier ones.
    #[inline]
    pub(crate) fn count(&self, key: Key, act: Act, pace: Option<Pace>, at: Moment, is_denied: bool) -> Option<bool> {
        if pace.is_none() && !is_denied && !self.is_busy.load(Relaxed) {
            return None;
        }
        lock(&self.loops).count(key, act, pace, at, is_denied)
    }

    /// Records the details of a call; used if [`Self::count`] did not return `None`.
    pub(crate) fn learn(&self, seen: &ObjectCall, too_soon: bool, names: &dyn Fn() -> CallNames) {
        let mut loops = lock(&self.loops);
        loops.learn(seen, too_soon, names);
        self.note(&loops);
    }

    /// Returns true if the request bodies of an object's calls are to be compared.
    #[inline]
    pub(crate) fn watches(&self, key: Key, act: Act, now: Moment) -> bool {
        self.watched.load(Relaxed) > 0 && lock(&self.loops).watches(key, act, now)
    }

    /// Returns true if the answer to a write of the object is to be read: its writes may be a loop.
    /// [`Self::read`] has to follow.
    #[inline]
    pub(crate) fn reads(&self, key: Key, now: Moment) -> bool {
        let is_wanted = self.watched.load(Relaxed) > 0
            && self.reading.load(Relaxed) < MOST_READ
            && lock(&self.loops).samples(key, now);
        self.reading.fetch_add(usize::from(is_wanted), Relaxed);
        is_wanted
    }

    /// Judges a write whose answer was read.
    pub(crate) fn read(&self, seen: &ObjectCall, names: &dyn Fn() -> CallNames) {
        self.reading.fetch_sub(1, Relaxed);
        let mut loops = lock(&self.loops);
        loops.judge(seen, names);
        self.note(&loops);
    }

    /// Logs changes of the hot objects (called too often or in vain), and returns the new ones.
    /// Called every second.
    pub(crate) fn second(&self, gate: &str, now: Moment) -> Vec<FoundLoop> {
        let news = {
            let mut loops = lock(&self.loops);
            let news = loops.tick(now);
            self.note(&loops);
            news
        };
        for news in news.iter().take(FEW) {
            match news {
                News::Began(found) => {
                    tracing::warn!(gate, object = &*found.names.object, "object is hot: {}", found.says(true));
                }
                News::Ended(found) => {
                    let says = found.says(true);
                    tracing::info!(gate, object = &*found.names.object, "object is no longer hot: {says}");
                }
            }
        }
        let more = news.len().saturating_sub(FEW);
        if more > 0 {
            tracing::warn!(gate, more, "more objects became hot or stopped being hot; the status page lists them");
        }
        let begun = news.into_iter().filter_map(|news| match news {
            News::Began(found) => Some(found),
            News::Ended(_) => None,
        });
        begun.collect()
    }

    /// Returns the number of hot objects.
    pub(crate) fn len(&self) -> usize {
        lock(&self.loops).list().len()
    }

    /// Returns the hot objects for the status page.
    pub(crate) fn tell(&self, clock: Clock, names: bool) -> Vec<status::HotObject> {
        let list = lock(&self.loops).list();
        list.iter().take(SHOWN).map(|found| told(found, clock, names)).collect()
    }

    /// Copies the values for other threads to read without the lock.
    fn note(&self, loops: &Loops) {
        self.watched.store(loops.watched(), Relaxed);
        self.is_busy.store(!loops.is_calm(), Relaxed);
    }
}

fn told(found: &FoundLoop, clock: Clock, names: bool) -> status::HotObject {
    let callers = found.callers.iter().map(|caller| caller.name.to_string());
    status::HotObject {
        object: if names { found.names.object.to_string() } else { String::new() },
        kind: found.names.kind.to_string(),
        says: found.says(names),
        kind_of_loop: found.kind.word().to_owned(),
        calls: found.calls,
        seconds: found.within.as_secs_f64(),
        status: found.status,
        enforced: found.is_paced(),
        callers: if names { callers.collect() } else { Vec::new() },
        since_ms: clock.wall(found.since),
        last_ms: clock.wall(found.last),
    }
}

/// The most answers to read at once.
const MOST_READ: usize = 4;
/// The most log lines about hot objects in one second.
const FEW: usize = 5;
/// The most objects on the status page.
const SHOWN: usize = 100;
