//! An object that is called too often, watched until it is clear what kind of loop that is.

use std::time::Duration;

use super::recent::Recent;
use super::report::{Bodies, Caller, Habit, Report};
use super::seen::{Refused, Seen};
use crate::moment::Moment;

/// An object that is called too often.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    /// The object and the direction.
    pub(super) id: u64,
    /// The object alone.
    pub(super) of: u64,
    /// True once it was named.
    pub(super) is_named: bool,
    reads: bool,
    object: Box<str>,
    kind: Box<str>,
    path: Box<str>,
    first: Moment,
    last: Moment,
    /// The steps of the last minute in which it was called too often, the present one in the last
    /// bit.
    busy: u16,
    step: u64,
    calls: Recent,
    /// Since the beginning: all, those with a 4xx and with a 5xx, those that were refused here, and
    /// those of them that came too soon and whose key fails.
    total: u64,
    denied: u64,
    failed: u64,
    refused: u64,
    too_soon: u64,
    failing: u64,
    callers: Vec<Habits>,
    /// The place of the last caller, and how often it changed.
    last_caller: usize,
    turns: u64,
}

/// One caller's calls of an object.
#[derive(Clone, Debug)]
struct Habits {
    number: u64,
    name: Box<str>,
    calls: u64,
    body: Option<u64>,
    same: u64,
    other: u64,
}

// === impl Watched ===

impl Watched {
    pub(super) fn new(id: u64, seen: &Seen<'_>) -> Self {
        Self {
            id,
            of: seen.object,
            is_named: false,
            reads: seen.reads,
            object: seen.names.object().into(),
            kind: seen.names.kind().into(),
            path: seen.names.path().into(),
            first: seen.at,
            last: seen.at,
            busy: 0,
            step: step(seen.at),
            calls: Recent::new(seen.at),
            total: 0,
            denied: 0,
            failed: 0,
            refused: 0,
            too_soon: 0,
            failing: 0,
            callers: Vec::new(),
            last_caller: 0,
            turns: 0,
        }
    }

    /// Learns of a call. `over` is true if it came too soon.
    pub(super) fn learn(&mut self, seen: &Seen<'_>, over: bool) {
        self.go_on(seen.at);
        self.last = self.last.max(seen.at);
        self.busy |= u16::from(over || seen.refused == Some(Refused::TooSoon));
        self.calls.add(seen.at);
        self.total += 1;
        match (seen.refused, seen.status) {
            (Some(why), _) => {
                self.refused += 1;
                self.too_soon += u64::from(why == Refused::TooSoon);
                self.failing += u64::from(why == Refused::Failing);
            }
            (None, 400..500) => self.denied += 1,
            (None, 500..) => self.failed += 1,
            (None, _) => {}
        }
        let known = self.callers.iter().position(|caller| caller.number == seen.caller);
        let place = known.unwrap_or_else(|| self.callers.len().min(CALLERS - 1));
        if place == self.callers.len() {
            self.callers.push(Habits::new(seen));
        }
        if self.last_caller != place {
            (self.last_caller, self.turns) = (place, self.turns + 1);
        }
        if let Some(caller) = self.callers.get_mut(place) {
            caller.learn(seen);
        }
    }

    /// True if it has been called too often for most of the last minute.
    pub(super) fn is_loop(&mut self, now: Moment) -> bool {
        self.go_on(now);
        self.busy.count_ones() >= BUSY
    }

    /// True if most of its calls got a 4xx.
    pub(super) fn is_mostly_denied(&self) -> bool {
        self.denied * 2 >= self.total
    }

    /// True if most of its calls were refused here because its key fails.
    pub(super) fn is_mostly_failing(&self) -> bool {
        self.failing * 2 >= self.total
    }

    /// True if it has not been called too often for a minute.
    pub(super) fn is_over(&mut self, now: Moment) -> bool {
        self.go_on(now);
        self.busy == 0
    }

    /// Returns the number of its calls, by which one makes room for another.
    pub(super) fn weight(&self) -> (bool, u64) {
        (self.is_named, self.total)
    }

    pub(super) fn report(&mut self, now: Moment) -> Report {
        let callers: Vec<_> =
            self.callers.iter().map(|caller| Caller { name: caller.name.clone(), calls: caller.calls }).collect();
        let of_all = |of: fn(&Habits) -> u64| self.callers.iter().map(of).sum::<u64>();
        Report {
            object: self.object.clone(),
            kind: self.kind.clone(),
            path: self.path.clone(),
            habit: Habit::Often {
                reads: self.reads,
                bodies: Bodies::of(of_all(|caller| caller.same), of_all(|caller| caller.other)),
                take_turns: self.take_turns(),
                denied: self.denied,
                failed: self.failed,
                refused: self.refused,
            },
            calls: self.calls.count(now),
            within: (self.last - self.first).min(MEMORY),
            since: self.first,
            last: self.last,
            callers,
            is_paced: self.too_soon > 0,
        }
    }

    /// True if two callers, each with a good part of the calls, come one after the other.
    fn take_turns(&self) -> bool {
        let part = |caller: &&Habits| caller.calls * 5 >= self.total;
        self.callers.iter().filter(part).count() == 2 && self.turns * 5 >= self.total * 2
    }

    fn go_on(&mut self, now: Moment) {
        let gone = step(now).saturating_sub(self.step).min(16);
        self.busy = u16::try_from((u32::from(self.busy) << gone) & MINUTE).unwrap_or_default();
        self.step = self.step.max(step(now));
    }
}

// === impl Habits ===

impl Habits {
    fn new(seen: &Seen<'_>) -> Self {
        let name = seen.names.caller().into();
        Self { number: seen.caller, name, calls: 0, body: None, same: 0, other: 0 }
    }

    fn learn(&mut self, seen: &Seen<'_>) {
        self.calls += 1;
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

/// The callers of one object that are told apart; the last stands for all others.
const CALLERS: usize = 4;
const STEP: Duration = Duration::from_secs(5);
/// The bits of the last minute.
const MINUTE: u32 = (1 << 12) - 1;
/// The steps of the last minute in which an object was called too often, from which it is a loop
/// and no burst.
const BUSY: u32 = 8;
/// What is told of goes back no further.
const MEMORY: Duration = Duration::from_secs(600);
