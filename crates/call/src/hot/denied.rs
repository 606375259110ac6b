//! Runs of calls with the same 4xx and never a success: a caller repeats what cannot succeed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::report::{Habit, HotCaller, News, Report};
use super::seen::{CallNames, ObjectCall};
use crate::moment::Moment;

/// The runs of the same 4xx, by the hash of object, operation and caller.
#[derive(Debug, Default)]
pub(super) struct DenialRuns(BTreeMap<u64, Run>);

/// A run of calls of one caller, all with the same 4xx.
#[derive(Clone, Debug, Default)]
struct Run {
    object: u64,
    status: u16,
    calls: u64,
    first: Moment,
    last: Moment,
    /// The time between the run's last two calls: a controller's queue doubles it each time.
    gap: Duration,
    reads: bool,
    is_named: bool,
    /// The names to report, kept from the run's fourth call on.
    names: Option<Box<CallNames>>,
}

// === impl DenialRuns ===

impl DenialRuns {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records a call answered with a 4xx. Returns what to log, if anything.
    pub(super) fn denied(&mut self, seen: &ObjectCall<'_>) -> Option<News> {
        let id = id(seen);
        let is_other = self.0.get(&id).is_some_and(|run| run.status != seen.status);
        let ended = if is_other { self.passed(seen) } else { None };
        if self.0.len() >= MOST && !self.0.contains_key(&id) {
            self.make_room();
            if self.0.len() >= MOST {
                return ended;
            }
        }
        self.0.entry(id).or_insert_with(|| Run::new(seen)).learn(seen);
        ended
    }

    /// Forgets the shorter half of the runs not reported yet. A reported run would be reported
    /// again.
    fn make_room(&mut self) {
        let mut lengths: Vec<_> = self.0.values().map(Run::length).collect();
        let (_, middle, _) = lengths.select_nth_unstable(MOST / 2);
        let middle = *middle;
        self.0.retain(|_, run| run.is_named || run.length() >= middle);
    }

    /// Records a call with another response: it ends the run of the same 4xx. Returns what to log,
    /// if anything.
    pub(super) fn passed(&mut self, seen: &ObjectCall<'_>) -> Option<News> {
        self.0.remove(&id(seen)).and_then(|run| run.ended())
    }

    /// Adds new loops to `news`, to be logged, and forgets old runs.
    pub(super) fn tick(&mut self, now: Moment, news: &mut Vec<News>) {
        for run in self.0.values_mut().filter(|run| !run.is_named && run.is_loop()) {
            run.is_named = true;
            news.extend(run.report().map(News::Began));
        }
        self.0.retain(|_, run| {
            let is_over = run.is_over(now);
            news.extend(run.ended().filter(|_| is_over));
            !is_over
        });
    }

    /// Returns true if a run of this object has been reported.
    pub(super) fn names(&self, object: u64) -> bool {
        self.0.values().any(|run| run.is_named && run.object == object)
    }

    /// Returns the runs long enough to count as loops.
    pub(super) fn list(&self) -> impl Iterator<Item = Report> {
        self.0.values().filter(|run| run.is_named).filter_map(Run::report)
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let names = |run: &Run| run.names.as_ref().map_or(0, |names| size_of_val(&**names) + names.object.len() + 200);
        self.0.len() * 2 * (size_of::<Run>() + size_of::<u64>()) + self.0.values().map(names).sum::<usize>()
    }
}

// === impl Run ===

impl Run {
    fn new(seen: &ObjectCall<'_>) -> Self {
        Self {
            object: seen.object,
            status: seen.status,
            first: seen.at,
            last: seen.at,
            reads: seen.reads,
            ..Self::default()
        }
    }

    fn learn(&mut self, seen: &ObjectCall<'_>) {
        self.calls += 1;
        self.gap = seen.at - self.last;
        self.last = self.last.max(seen.at);
        if self.calls == SERIOUS {
            self.names = Some(Box::new((seen.names)()));
        }
    }

    /// Returns true if the calls of the run are a loop: many, and for long. Reads with a 404 may
    /// only wait for an object to be created: they are a loop if there is more than one in two
    /// seconds.
    fn is_loop(&self) -> bool {
        let lasted = self.last - self.first;
        let is_poll = self.reads && self.status == 404;
        let is_often = !is_poll || self.calls >= POLLS && Duration::from_secs(2 * self.calls) >= lasted;
        self.calls >= CALLS && lasted >= LASTS && is_often
    }

    /// Returns how important a run is. To make room, the least important is forgotten.
    fn length(&self) -> (bool, u64, Moment) {
        (self.is_named, self.calls, self.last)
    }

    fn is_over(&self, now: Moment) -> bool {
        now - self.last > (self.gap * 3).clamp(QUIET, LONGEST_QUIET)
    }

    fn ended(&self) -> Option<News> {
        if self.is_named { self.report().map(News::Ended) } else { None }
    }

    fn report(&self) -> Option<Report> {
        let names = CallNames::clone(self.names.as_ref()?);
        Some(Report {
            habit: Habit::Denied { status: self.status },
            calls: self.calls,
            within: self.last - self.first,
            since: self.first,
            last: self.last,
            callers: vec![HotCaller { name: names.caller.clone(), calls: self.calls }],
            is_paced: false,
            names,
        })
    }
}

/// Returns the hash of an object, an operation on it and a caller.
fn id(seen: &ObjectCall<'_>) -> u64 {
    seen.object ^ seen.facet.rotate_left(17) ^ seen.caller.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The most runs to remember.
const MOST: usize = 1024;
/// The least number of calls in a run for keeping its names.
const SERIOUS: u64 = 4;
const CALLS: u64 = 10;
/// The least number of calls in a loop of reads with a 404.
const POLLS: u64 = 30;
/// The least time from the first to the last call of a loop.
const LASTS: Duration = Duration::from_secs(30);
/// The least time from a run's last call to its end. With slow calls it is three times their last
/// gap.
const QUIET: Duration = Duration::from_secs(300);
const LONGEST_QUIET: Duration = Duration::from_secs(3600);
