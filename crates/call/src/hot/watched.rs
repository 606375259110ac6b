//! An object with too many calls, observed to find the kind of loop.

use std::time::Duration;

use super::recent::Recent;
use super::report::{Bodies, CallCounts, Habit, HotCaller, Report};
use super::seen::{CallNames, ObjectCall, RefusalKind};
use crate::moment::Moment;

/// An object called too often, with what was observed.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchedObject {
    /// The hash of the object's reads or of its writes.
    pub(super) id: u64,
    /// The hash of the object.
    pub(super) of: u64,
    /// True once the object was reported as a loop.
    pub(super) is_named: bool,
    reads: bool,
    names: CallNames,
    first: Moment,
    last: Moment,
    /// One bit for each five seconds of the last minute, set if calls came too often; the lowest
    /// bit is now.
    busy: u16,
    step: u64,
    calls: Recent,
    counts: CallCounts,
    callers: Vec<Habits>,
    /// The index of the last caller.
    last_caller: usize,
    /// How often a call came from a caller other than that of the call before.
    turns: u64,
}

/// The calls of one caller for an object, and how many of their bodies were the same.
#[derive(Clone, Debug)]
struct Habits {
    number: u64,
    caller: HotCaller,
    body: Option<u64>,
    same: u64,
    other: u64,
}

// === impl WatchedObject ===

impl WatchedObject {
    pub(super) fn new(id: u64, seen: &ObjectCall<'_>) -> Self {
        Self {
            id,
            of: seen.object,
            reads: seen.reads,
            names: (seen.names)(),
            first: seen.at,
            last: seen.at,
            step: step(seen.at),
            ..Self::default()
        }
    }

    /// Records a call. `over` is true if it came too soon.
    pub(super) fn learn(&mut self, seen: &ObjectCall<'_>, over: bool) {
        self.go_on(seen.at);
        self.last = self.last.max(seen.at);
        self.busy |= u16::from(over || seen.refused == Some(RefusalKind::TooSoon));
        self.calls.add(seen.at);
        self.counts.add(seen);
        let known = self.callers.iter().position(|caller| caller.number == seen.caller);
        let place = known.unwrap_or_else(|| self.callers.len().min(CALLERS - 1));
        if place == self.callers.len() {
            self.callers.push(Habits::new(seen));
        }
        if self.last_caller != place {
            self.last_caller = place;
            self.turns += 1;
        }
        if let Some(caller) = self.callers.get_mut(place) {
            caller.learn(seen);
        }
    }

    /// Returns true if the object was called too often for most of the last minute.
    pub(super) fn is_loop(&mut self, now: Moment) -> bool {
        self.go_on(now);
        self.busy.count_ones() >= BUSY
    }

    /// Returns true if most calls of the object got a 4xx.
    pub(super) fn is_mostly_denied(&self) -> bool {
        self.counts.denied * 2 >= self.counts.all
    }

    /// Returns true if the gate refused most calls of the object because their key fails.
    pub(super) fn is_mostly_failing(&self) -> bool {
        self.counts.failing * 2 >= self.counts.all
    }

    /// Returns true if the object was not called too often for a minute.
    pub(super) fn is_over(&mut self, now: Moment) -> bool {
        self.go_on(now);
        self.busy == 0
    }

    /// Returns how important an object is. To make room, the least important is dropped.
    pub(super) fn weight(&self) -> (bool, u64) {
        (self.is_named, self.counts.all)
    }

    pub(super) fn report(&self, now: Moment) -> Report {
        let of_all = |of: fn(&Habits) -> u64| self.callers.iter().map(of).sum::<u64>();
        Report {
            names: self.names.clone(),
            habit: Habit::Often {
                reads: self.reads,
                bodies: Bodies::of(of_all(|caller| caller.same), of_all(|caller| caller.other)),
                take_turns: self.take_turns(),
                counts: self.counts.clone(),
            },
            calls: self.calls.count(now),
            within: (self.last - self.first).min(MEMORY),
            since: self.first,
            last: self.last,
            callers: self.callers.iter().map(|habits| habits.caller.clone()).collect(),
            is_paced: self.counts.too_soon > 0,
        }
    }

    /// Returns true if the calls of two callers, each with a good part of all, alternate.
    fn take_turns(&self) -> bool {
        let all = self.counts.all;
        let frequent = self.callers.iter().filter(|habits| habits.caller.calls * 5 >= all);
        frequent.count() == 2 && self.turns * 5 >= all * 2
    }

    fn go_on(&mut self, now: Moment) {
        let gone = step(now).saturating_sub(self.step).min(16);
        self.busy = u16::try_from((u32::from(self.busy) << gone) & MINUTE).unwrap_or_default();
        self.step = self.step.max(step(now));
    }
}

// === impl CallCounts ===

impl CallCounts {
    fn add(&mut self, seen: &ObjectCall<'_>) {
        self.all += 1;
        match (seen.refused, seen.status) {
            (Some(why), _) => {
                self.refused += 1;
                self.too_soon += u64::from(why == RefusalKind::TooSoon);
                self.failing += u64::from(why == RefusalKind::Failing);
            }
            (None, 400..500) => self.denied += 1,
            (None, 500..) => self.failed += 1,
            (None, _) => {}
        }
    }
}

// === impl Habits ===

impl Habits {
    fn new(seen: &ObjectCall<'_>) -> Self {
        let caller = HotCaller { name: (seen.names)().caller, calls: 0 };
        Self { number: seen.caller, caller, body: None, same: 0, other: 0 }
    }

    fn learn(&mut self, seen: &ObjectCall<'_>) {
        self.caller.calls += 1;
        let Some(body) = seen.body else { return };
        match self.body.replace(body) {
            Some(before) if before == body => self.same += 1,
            Some(_) => self.other += 1,
            None => {}
        }
    }
}

fn step(now: Moment) -> u64 {
    now.since_start().as_secs() / STEP.as_secs()
}

/// The most callers of one object to tell apart; the last stands for all others.
const CALLERS: usize = 4;
const STEP: Duration = Duration::from_secs(5);
/// The bits for the last minute.
const MINUTE: u32 = (1 << 12) - 1;
/// How many of the last minute's twelve steps must have too many calls in a loop; a burst has
/// fewer.
const BUSY: u32 = 8;
/// The longest time covered by a report.
const MEMORY: Duration = Duration::from_secs(600);
