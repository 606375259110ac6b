//! An object with too many calls, observed to find the kind of loop.

use std::time::Duration;

use super::found::{CallCounts, FoundLoop, HotCaller, LoopKind};
use super::seen::{Act, CallNames, ObjectCall, RefusalKind};
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
    /// The loop of the object's writes that the detector found.
    pub(super) judged: Option<FoundLoop>,
    /// The hash of the written part, as the detector counts it.
    written: u64,
    names: CallNames,
    first: Moment,
    last: Moment,
    /// One bit for each five seconds of the last minute, set if calls came too often; the lowest
    /// bit is now.
    busy: u16,
    step: u64,
    counts: CallCounts,
    callers: Vec<Habits>,
    /// The index of the last caller.
    last_caller: usize,
    /// How often a call came from a caller other than that of the call before.
    turns: u64,
}

/// The calls of one caller for an object.
#[derive(Clone, Debug)]
struct Habits {
    number: u64,
    caller: HotCaller,
    body: Option<u64>,
}

// === impl WatchedObject ===

impl WatchedObject {
    pub(super) fn new(id: u64, seen: &ObjectCall, names: CallNames) -> Self {
        Self {
            id,
            of: seen.object,
            written: seen.written(),
            counts: CallCounts { reads: seen.act == Act::Read, ..CallCounts::default() },
            names,
            first: seen.at,
            last: seen.at,
            step: step(seen.at),
            ..Self::default()
        }
    }

    /// Records a call. `over` is true if it came too soon.
    pub(super) fn learn(&mut self, seen: &ObjectCall, over: bool, names: &dyn Fn() -> CallNames) {
        self.go_on(seen.at);
        self.last = self.last.max(seen.at);
        self.busy |= u16::from(over || seen.refused == Some(RefusalKind::TooSoon));
        self.counts.add(seen);
        let known = self.callers.iter().position(|caller| caller.number == seen.caller);
        let place = known.unwrap_or_else(|| self.callers.len().min(CALLERS - 1));
        if place == self.callers.len() {
            let caller = HotCaller { name: names().caller, calls: 0 };
            self.callers.push(Habits { number: seen.caller, caller, body: None });
        }
        if self.last_caller != place {
            self.last_caller = place;
            self.turns += 1;
        }
        let Some(caller) = self.callers.get_mut(place) else { return };
        caller.caller.calls += 1;
        if let Some(body) = seen.content.body
            && let Some(before) = caller.body.replace(body)
        {
            self.counts.same += u64::from(before == body);
            self.counts.other += u64::from(before != body);
        }
    }

    /// Returns true if the object was called too often for most of the last minute.
    pub(super) fn is_loop(&mut self, now: Moment) -> bool {
        self.go_on(now);
        self.busy.count_ones() >= BUSY
    }

    /// Returns true if the detector counts the object's writes by this number.
    pub(super) fn is_of(&self, id: u64) -> bool {
        !self.counts.reads && self.written == id
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

    pub(super) fn report(&self) -> FoundLoop {
        let judged = self.judged.as_ref();
        let kind =
            if self.take_turns() { LoopKind::TwoWriters } else { judged.map_or(LoopKind::Fast, |found| found.kind) };
        FoundLoop {
            callers: self.callers.iter().map(|habits| habits.caller.clone()).collect(),
            within: self.last - self.first,
            since: self.first,
            last: self.last,
            in_vain: judged.map_or(0, |found| found.in_vain),
            unchanged: judged.map_or(0, |found| found.unchanged),
            judged: judged.map_or(0, |found| found.judged),
            fast: Some(self.counts.clone()),
            ..FoundLoop::of(self.id, kind, self.names.clone(), self.counts.all)
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
    fn add(&mut self, seen: &ObjectCall) {
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
