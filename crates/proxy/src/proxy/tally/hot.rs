//! Hot objects: those called too often or in vain. They are counted at each response and shown in
//! the status and the log; no limit depends on these counts.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::clock::Clock;
use crate::hot::{Loops, News, ObjectCall, Pace, Report};
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
}

// === impl Hot ===

impl Hot {
    /// Counts a call of an object. Returns `None` if nothing more of it need be recorded, and
    /// otherwise whether the call came too soon after earlier ones.
    #[inline]
    pub(crate) fn count(
        &self,
        object: u64,
        reads: bool,
        pace: Option<Pace>,
        at: Moment,
        is_denied: bool,
    ) -> Option<bool> {
        if pace.is_none() && !is_denied && !self.is_busy.load(Relaxed) {
            return None;
        }
        let mut loops = lock(&self.loops);
        let too_soon = pace.is_some_and(|pace| loops.is_too_soon(object, reads, pace, at));
        (too_soon || is_denied || !loops.is_calm()).then_some(too_soon)
    }

    /// Records the details of a call; used if [`Self::count`] did not return `None`.
    pub(crate) fn learn(&self, seen: &ObjectCall<'_>, too_soon: bool) {
        let mut loops = lock(&self.loops);
        loops.learn(seen, too_soon);
        self.note(&loops);
    }

    /// Returns true if the request bodies of an object's calls are to be compared.
    #[inline]
    pub(crate) fn watches(&self, object: u64, reads: bool) -> bool {
        self.watched.load(Relaxed) > 0 && lock(&self.loops).watches(object, reads)
    }

    /// Logs changes of the hot objects (called too often or in vain), and returns the new ones.
    /// Called every second.
    pub(crate) fn second(&self, gate: &str, now: Moment) -> Vec<Report> {
        let news = {
            let mut loops = lock(&self.loops);
            let news = loops.tick(now);
            self.note(&loops);
            news
        };
        let more = news.len().saturating_sub(FEW);
        for news in news.iter().take(FEW) {
            match news {
                News::Began(report) => {
                    tracing::warn!(gate, object = &*report.names.object, "object is hot: {}", report.says(true))
                }
                News::Ended(report) => {
                    tracing::info!(
                        gate,
                        object = &*report.names.object,
                        "object is no longer hot: {}",
                        report.says(true)
                    );
                }
            }
        }
        if more > 0 {
            tracing::warn!(gate, more, "more objects became hot or stopped being hot; the status page lists them");
        }
        let begun = news.into_iter().filter_map(|news| match news {
            News::Began(report) => Some(report),
            News::Ended(_) => None,
        });
        begun.collect()
    }

    /// Returns the number of hot objects.
    pub(crate) fn len(&self, now: Moment) -> usize {
        lock(&self.loops).list(now).len()
    }

    /// Returns the hot objects for the status page.
    pub(crate) fn tell(&self, clock: Clock, names: bool) -> Vec<status::HotObject> {
        let list = lock(&self.loops).list(clock.now());
        list.iter().take(SHOWN).map(|report| told(report, clock, names)).collect()
    }

    /// Copies the values for other threads to read without the lock.
    fn note(&self, loops: &Loops) {
        self.watched.store(loops.watched(), Relaxed);
        self.is_busy.store(!loops.is_calm(), Relaxed);
    }
}

fn told(report: &Report, clock: Clock, names: bool) -> status::HotObject {
    let callers = report.callers.iter().map(|caller| caller.name.to_string());
    status::HotObject {
        object: if names { report.names.object.to_string() } else { String::new() },
        kind: report.names.kind.to_string(),
        says: report.says(names),
        calls: report.calls,
        seconds: report.within.as_secs_f64(),
        status: report.status(),
        enforced: report.is_paced,
        callers: if names { callers.collect() } else { Vec::new() },
        since_ms: clock.wall(report.since),
        last_ms: clock.wall(report.last),
    }
}

/// The most log lines about hot objects in one second.
const FEW: usize = 5;
/// The most objects on the status page.
const SHOWN: usize = 100;
