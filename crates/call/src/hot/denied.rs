//! Runs of calls with the same 4xx and never a success: a caller repeats what cannot succeed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::found::{FoundLoop, LoopKind, News};
use super::seen::{Act, CallNames, ObjectCall};
use crate::moment::Moment;

/// The runs of the same 4xx, by the hash of object, operation and caller.
#[derive(Debug)]
pub(super) struct DenialRuns {
    runs: BTreeMap<u64, Run>,
    /// The most runs to remember.
    most: usize,
}

/// A run of calls of one caller, all with the same 4xx.
#[derive(Debug, Default)]
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
    pub(super) fn new(most: usize) -> Self {
        Self { runs: BTreeMap::new(), most }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the number of calls in the run of a call.
    pub(super) fn calls(&self, call: &ObjectCall) -> u64 {
        self.runs.get(&call.by_caller(call.object)).map_or(0, |run| run.calls)
    }

    /// Records a call answered with a 4xx. Returns the loop that began or ended, if one did.
    pub(super) fn denied(&mut self, call: &ObjectCall, names: &dyn Fn() -> CallNames) -> Option<News> {
        let id = call.by_caller(call.object);
        let is_other = self.runs.get(&id).is_some_and(|run| run.status != call.status);
        let ended = if is_other { self.passed(call) } else { None };
        if self.runs.len() >= self.most && !self.runs.contains_key(&id) {
            self.make_room();
            if self.runs.len() >= self.most {
                return ended;
            }
        }
        let run = self.runs.entry(id).or_insert_with(|| Run::new(call));
        run.learn(call, names);
        if run.is_named || !run.is_loop() {
            return ended;
        }
        run.is_named = true;
        run.found(id).map(News::Began)
    }

    /// Forgets the shorter half of the runs not reported yet. A reported run would be reported
    /// again.
    fn make_room(&mut self) {
        let mut lengths: Vec<_> = self.runs.values().map(Run::length).collect();
        let (_, middle, _) = lengths.select_nth_unstable(self.most / 2);
        let middle = *middle;
        self.runs.retain(|_, run| run.is_named || run.length() >= middle);
    }

    /// Records a call with another response: it ends the run of the same 4xx. Returns the loop that
    /// ended, if one did.
    pub(super) fn passed(&mut self, call: &ObjectCall) -> Option<News> {
        let id = call.by_caller(call.object);
        self.runs.remove(&id).filter(|run| run.is_named).and_then(|run| run.found(id)).map(News::Ended)
    }

    /// Forgets old runs, and returns those that were loops.
    pub(super) fn tick(&mut self, now: Moment) -> Vec<FoundLoop> {
        let mut ended = Vec::new();
        self.runs.retain(|id, run| {
            let is_over = run.is_over(now);
            ended.extend(run.found(*id).filter(|_| is_over && run.is_named));
            !is_over
        });
        ended
    }

    /// Returns true if a run of this object has been reported.
    pub(super) fn names(&self, object: u64) -> bool {
        self.runs.values().any(|run| run.is_named && run.object == object)
    }

    /// Returns the runs long enough to count as loops.
    pub(super) fn list(&self) -> impl Iterator<Item = FoundLoop> {
        self.runs.iter().filter(|(_, run)| run.is_named).filter_map(|(id, run)| run.found(*id))
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let named = self.runs.values().filter(|run| run.names.is_some()).count();
        self.runs.len() * 2 * (size_of::<Run>() + size_of::<u64>()) + named * (size_of::<CallNames>() + TEXTS)
    }
}

// === impl Run ===

impl Run {
    fn new(call: &ObjectCall) -> Self {
        let ObjectCall { object, status, at, act, .. } = *call;
        Self { object, status, first: at, last: at, reads: act == Act::Read, ..Self::default() }
    }

    fn learn(&mut self, call: &ObjectCall, names: &dyn Fn() -> CallNames) {
        self.calls += 1;
        self.gap = call.at - self.last;
        self.last = self.last.max(call.at);
        if self.calls == SERIOUS {
            self.names = Some(Box::new(names()));
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

    fn found(&self, id: u64) -> Option<FoundLoop> {
        let names = CallNames::clone(self.names.as_ref()?);
        Some(FoundLoop {
            within: self.last - self.first,
            since: self.first,
            last: self.last,
            in_vain: self.calls,
            judged: self.calls,
            status: Some(self.status),
            ..FoundLoop::of(id, LoopKind::Denied, names, self.calls)
        })
    }
}

/// Returns true for a permanent denial. A 429 asks for a retry, a 408 is about time, and after a
/// 410 a reader begins again.
pub(super) fn is_denial(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 408 | 410 | 429)
}

/// The least number of calls in a run for keeping its names.
const SERIOUS: u64 = 4;
const CALLS: u64 = 10;
/// The least number of calls in a loop of reads with a 404.
const POLLS: u64 = 30;
/// The least time from the first to the last call of a loop.
const LASTS: Duration = Duration::from_secs(30);
/// The least time from a run's last call to its end. With slow calls it is three times their last
/// gap.
pub(super) const QUIET: Duration = Duration::from_secs(300);
const LONGEST_QUIET: Duration = Duration::from_secs(3600);
/// A guess at the bytes of the names in a call.
#[cfg(test)]
pub(super) const TEXTS: usize = 200;
