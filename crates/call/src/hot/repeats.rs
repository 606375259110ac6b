//! Calls of one kind by one caller, and how many of them were in vain.

use std::time::Duration;

use super::denied::QUIET;
use super::found::{FoundLoop, LoopKind};
use super::seen::{CallNames, ObjectCall};
use crate::moment::Moment;

/// How many calls, and for how long, are a loop.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    /// The least number of calls.
    pub calls: u64,
    /// The least time from the first call to the last.
    pub lasts: Duration,
    /// The same for a flood of Events.
    pub flood_lasts: Duration,
}

/// Calls of one kind by one caller.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    pub(super) caller: u64,
    /// The hash of the kind of the objects.
    pub(super) kind: u64,
    names: CallNames,
    pub(super) calls: u64,
    /// The number of calls with a known effect.
    judged: u64,
    in_vain: u64,
    /// The number of calls that changed nothing.
    unchanged: u64,
    /// The moment of the first call.
    since: Moment,
    /// The moment since which calls are counted.
    from: Moment,
    pub(super) last: Moment,
    /// The number of the minute of the last call, the calls in it, and the most in any.
    minute: u64,
    in_minute: u64,
    most_in_a_minute: u64,
}

/// The effect of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Change,
    Nothing,
    /// It sent what an earlier call sent, times aside.
    Repeated,
}

// === impl Repeats ===

impl Repeats {
    pub(super) fn new(call: &ObjectCall, names: CallNames) -> Self {
        let ObjectCall { caller, kind, at, .. } = *call;
        Self { caller, kind, names, since: at, from: at, last: at, ..Self::default() }
    }

    /// Counts a call.
    pub(super) fn count(&mut self, at: Moment, effect: Option<Effect>) {
        self.calls += 1;
        self.judged += u64::from(effect.is_some());
        self.in_vain += u64::from(effect.is_some_and(|effect| effect != Effect::Change));
        self.unchanged += u64::from(effect == Some(Effect::Nothing));
        self.last = self.last.max(at);
        self.in_minute = if minute(at) == self.minute { self.in_minute + 1 } else { 1 };
        self.minute = minute(at);
        self.most_in_a_minute = self.most_in_a_minute.max(self.in_minute);
    }

    /// Returns true if the calls may turn out to be a loop: they were in vain, or it is not known that
    /// they had an effect and they go on.
    pub(super) fn may_be_loop(&self, now: Moment) -> bool {
        let has_effect = self.judged >= JUDGED && self.in_vain * 4 < self.judged;
        let patience = if self.calls < REPEATED { QUIET } else { QUIET * 3 };
        self.is_mostly_in_vain() || !has_effect && now - self.last < patience
    }

    /// Returns true for calls frequent enough to be a loop.
    pub(super) fn is_often(&self, proof: &Proof) -> bool {
        self.calls >= proof.calls && self.an_hour() >= AN_HOUR && self.last - self.since >= proof.lasts
    }

    /// Returns true if at least half of the calls were in vain, as far as it is known.
    pub(super) fn is_mostly_in_vain(&self) -> bool {
        self.in_vain >= IN_VAIN && self.in_vain * 2 + 1 >= self.judged
    }

    /// Returns true if in some minute a call came nearly each second.
    pub(super) fn is_fast(&self) -> bool {
        self.most_in_a_minute >= IN_A_MINUTE
    }

    /// Returns true if enough calls of this minute were judged.
    pub(super) fn is_known_well(&self, now: Moment) -> bool {
        self.minute == minute(now) && self.in_minute >= WELL_KNOWN
    }

    /// Halves the counts of two hours, and returns true then: what is left is enough for the slowest
    /// loop.
    pub(super) fn age(&mut self, now: Moment) -> bool {
        let is_old = now - self.from > Duration::from_secs(2 * HOUR);
        if is_old {
            self.from += (now - self.from) / 2;
            [&mut self.calls, &mut self.judged, &mut self.in_vain, &mut self.unchanged]
                .into_iter()
                .for_each(|count| *count = count.div_ceil(2));
        }
        is_old
    }

    /// Returns the calls in an hour at this pace.
    pub(super) fn an_hour(&self) -> u64 {
        self.calls * HOUR / (self.last - self.from).max(SHORT).as_secs()
    }

    /// Returns the time since the first call.
    pub(super) fn lasts(&self) -> Duration {
        self.last - self.since
    }

    pub(super) fn found(&self, id: u64, kind: LoopKind) -> FoundLoop {
        FoundLoop {
            within: self.last - self.from,
            since: self.since,
            last: self.last,
            in_vain: self.in_vain,
            unchanged: self.unchanged,
            judged: self.judged,
            ..FoundLoop::of(id, kind, self.names.clone(), self.calls)
        }
    }

    /// Returns the calls of all together, as those of no object in particular.
    pub(super) fn of_all<'a>(mut all: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let first = all.next()?;
        let sum = Self { names: first.names.clone().of_all(), ..*first };
        Some(all.fold(sum, |sum, one| Self {
            calls: sum.calls + one.calls,
            judged: sum.judged + one.judged,
            in_vain: sum.in_vain + one.in_vain,
            unchanged: sum.unchanged + one.unchanged,
            since: sum.since.min(one.since),
            from: sum.from.min(one.from),
            last: sum.last.max(one.last),
            ..sum
        }))
    }
}

fn minute(at: Moment) -> u64 {
    at.since_start().as_secs() / 60
}

/// Fewer calls are forgotten sooner if there are too many objects.
const REPEATED: u64 = 3;
/// Fewer calls in vain are no loop.
const IN_VAIN: u64 = 5;
/// So many judged calls prove an effect.
const JUDGED: u64 = 8;
/// Fewer calls in an hour are no loop.
const AN_HOUR: u64 = 30;
/// So many calls in a minute are a fast loop.
const IN_A_MINUTE: u64 = 45;
/// The most calls in a minute to judge.
const WELL_KNOWN: u64 = 8;
/// The pace of calls within a shorter time is counted over this time.
const SHORT: Duration = Duration::from_secs(600);
const HOUR: u64 = 3600;
