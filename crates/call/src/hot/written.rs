//! A written object, and its writers.

use super::denied::QUIET;
use super::found::{FoundLoop, LoopKind};
use super::repeats::{Effect, Proof, Repeats};
use super::seen::{CallNames, Content, ObjectCall};
use crate::moment::Moment;

/// An object, by its writes so far.
#[derive(Debug, Default)]
pub(super) struct WrittenObject {
    last_writer: Option<u64>,
    /// The last write, and the body of the one before.
    last: Content,
    before: Option<u64>,
    writers: Vec<Writer>,
}

/// A writer of an object.
#[derive(Debug, Default)]
pub(super) struct Writer {
    writes: Repeats,
    body: Option<u64>,
    /// The turns: its writes after a write by another writer.
    turns: u64,
    /// The turns with a known body, and those with the body of its write before: the other writer
    /// had undone that.
    compared: u64,
    again: u64,
}

// === impl WrittenObject ===

impl WrittenObject {
    /// Counts a write accepted by the API. Returns true if it is the first of a writer, of which there
    /// may be more only if `has_room`.
    pub(super) fn count(&mut self, call: &ObjectCall, names: &dyn Fn() -> CallNames, has_room: bool) -> bool {
        let effect = self.judge(&call.content, call.caller);
        let known = self.writers.iter().position(|writer| writer.writes.caller == call.caller);
        let is_new = known.is_none() && (self.writers.is_empty() || has_room && self.writers.len() < MOST_WRITERS);
        if is_new {
            self.writers.push(Writer { writes: Repeats::new(call, names()), ..Writer::default() });
        }
        // The last of all, if it is new.
        let index = known.or_else(|| self.writers.len().checked_sub(1).filter(|_| is_new));
        if let Some(writer) = index.and_then(|index| self.writers.get_mut(index)) {
            writer.count(call, effect, self.last_writer.is_some_and(|last| last != call.caller));
        }
        self.last_writer = Some(call.caller);
        self.before = self.last.body;
        self.last = call.content;
        is_new
    }

    /// Returns the number of writers.
    pub(super) fn writers(&self) -> usize {
        self.writers.len()
    }

    /// Returns the writes of each writer.
    pub(super) fn writes(&self) -> impl Iterator<Item = &Repeats> {
        self.writers.iter().map(|writer| &writer.writes)
    }

    /// Returns true if the object may turn out to be in a loop: two writers may fight, whatever they
    /// write.
    pub(super) fn may_be_loop(&self, now: Moment) -> bool {
        let is_shared = self.writers.len() > 1 && now - self.last() < QUIET;
        is_shared || self.writes().any(|writes| writes.may_be_loop(now))
    }

    /// Returns the moment of the last write.
    pub(super) fn last(&self) -> Moment {
        self.writes().map(|writes| writes.last).max().unwrap_or_default()
    }

    /// Returns true if enough writes of this minute were judged.
    pub(super) fn is_known_well(&self, now: Moment) -> bool {
        self.writes().any(|writes| writes.is_known_well(now))
    }

    /// Forgets half of what is an hour old.
    pub(super) fn age(&mut self, now: Moment) {
        for writer in &mut self.writers {
            if writer.writes.age(now) {
                [&mut writer.turns, &mut writer.compared, &mut writer.again].into_iter().for_each(|count| *count /= 2);
            }
        }
    }

    /// Returns the effect of a write; `None` if it is unknown. Only versions prove that nothing changed:
    /// others may have changed the object between two writes of one body.
    fn judge(&self, write: &Content, caller: u64) -> Option<Effect> {
        let are_equal = |one: Option<u64>, other: Option<u64>| Some(one? == other?);
        let is_own = self.last_writer == Some(caller);
        let is_same = are_equal(write.version, self.last.version)
            .or_else(|| are_equal(write.base, self.last.base).filter(|_| is_own));
        let is_again = are_equal(write.timeless, self.last.timeless);
        let is_undone = is_own && are_equal(write.body, self.before) == Some(true);
        match is_same.or(is_again)? {
            _ if is_same == Some(true) => Some(Effect::Nothing),
            _ if is_again == Some(true) || is_undone => Some(Effect::Repeated),
            _ => Some(Effect::Change),
        }
    }

    /// Returns the loop of two callers writing the object in turn, if there is one.
    pub(super) fn fight(&self, id: u64, proof: &Proof) -> Option<FoundLoop> {
        let mut writers: Vec<&Writer> = self.writers.iter().collect();
        writers.sort_by_key(|writer| std::cmp::Reverse(writer.turns));
        let [one, other, ..] = &writers[..] else { return None };
        let again = one.again + other.again;
        let mut both = one.writes.found(id, LoopKind::TwoWriters);
        both.callers.extend(other.writes.found(id, LoopKind::TwoWriters).callers);
        both.calls += other.writes.calls;
        both.last = one.writes.last.min(other.writes.last);
        let is_often = [one, other].iter().all(|one| one.writes.is_often(proof));
        let is_proven = again >= AGAIN && again * 2 >= one.compared + other.compared;
        // Without bodies only the pace tells.
        let is_quick = one.body.is_none() && one.writes.an_hour().min(other.writes.an_hour()) >= TURNS_AN_HOUR;
        let is_in_turn = (one.turns + other.turns) * 2 > both.calls;
        (is_often && is_in_turn && (is_proven || is_quick)).then_some(both)
    }
}

// === impl Writer ===

impl Writer {
    fn count(&mut self, call: &ObjectCall, effect: Option<Effect>, is_turn: bool) {
        let body = call.content.body;
        self.turns += u64::from(is_turn);
        if let Some(body) = body.filter(|_| is_turn) {
            self.compared += 1;
            self.again += u64::from(self.body == Some(body));
        }
        self.body = body.or(self.body);
        self.writes.count(call.at, effect);
    }
}

const MOST_WRITERS: usize = 8;
/// Fewer turns with the same body are no fight.
const AGAIN: u64 = 10;
/// So many writes in an hour by each of two callers in turn are a loop, whatever they write.
const TURNS_AN_HOUR: u64 = 180;
