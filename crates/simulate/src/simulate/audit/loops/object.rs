//! A written object, and its writers.

use super::repeats::{LEAST, Repeats};
use super::{FoundLoop, LoopKind};
use crate::simulate::audit::callers::Callers;
use crate::simulate::replay::{ObjectFacts, Record};

/// An object, by its writes so far.
#[derive(Debug)]
pub(super) struct Object {
    last_writer: usize,
    /// The last write, and the body of the one before.
    last: ObjectFacts,
    before: Option<u64>,
    pub(super) writers: Vec<Writer>,
}

/// A writer of an object.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) writes: Repeats,
    body: Option<u64>,
    /// The turns: its writes after a write by another writer.
    turns: u64,
    /// The turns with the same body as its write before: the other writer had undone that.
    again: u64,
}

// === impl Object ===

impl Object {
    pub(super) fn new(record: &Record, caller: usize) -> Self {
        let writer = Writer::new(record, caller);
        Self { last_writer: caller, last: ObjectFacts::default(), before: None, writers: vec![writer] }
    }

    /// Counts a write accepted by the API.
    pub(super) fn count(&mut self, record: &Record, caller: usize) {
        let body = record.object.body;
        let in_vain = self.judge(&record.object, caller);
        let known = self.writers.iter().position(|writer| writer.writes.caller == caller);
        let index = known.unwrap_or_else(|| {
            self.writers.truncate(MOST_WRITERS - 1);
            self.writers.push(Writer::new(record, caller));
            self.writers.len() - 1
        });
        let writer = &mut self.writers[index];
        if self.last_writer != caller {
            writer.turns += 1;
            writer.again += u64::from(body.is_some() && body == writer.body);
        }
        writer.body = body;
        writer.writes.count(record.at, in_vain);
        self.last_writer = caller;
        self.before = self.last.body;
        self.last = record.object.clone();
    }

    /// Returns true if a write changed nothing, or undid its writer's last one; `None` if the log
    /// does not say.
    fn judge(&self, write: &ObjectFacts, caller: usize) -> Option<bool> {
        let are_equal = |one: Option<u64>, other: Option<u64>| Some(one? == other?);
        let is_own = self.last_writer == caller;
        let is_undone = are_equal(write.body, self.before) == Some(true);
        are_equal(write.version, self.last.version)
            .or_else(|| are_equal(write.base, self.last.base).filter(|_| is_own))
            .or_else(|| are_equal(write.body, self.last.body))
            .map(|is_same| is_same || is_own && is_undone)
    }

    /// Returns the loop of two callers writing the object in turn, if there is one.
    pub(super) fn fight(&mut self, callers: &Callers) -> Option<FoundLoop> {
        self.writers.sort_by_key(|writer| std::cmp::Reverse(writer.turns));
        let [one, other, ..] = &self.writers[..] else { return None };
        let turns = one.turns + other.turns;
        let again = one.again + other.again;
        let mut both = one.writes.found(LoopKind::TwoWriters, callers);
        both.callers.push(callers.name(other.writes.caller).to_owned());
        both.callers.sort();
        both.calls += other.writes.calls;
        let is_often = one.writes.is_often() && other.writes.is_often();
        let is_proven = again >= LEAST && again * 2 >= turns;
        // Without bodies only the pace tells.
        let is_quick = one.body.is_none() && one.writes.an_hour().min(other.writes.an_hour()) >= TURNS_AN_HOUR;
        (is_often && turns * 2 > both.calls && (is_proven || is_quick)).then_some(both)
    }
}

// === impl Writer ===

impl Writer {
    fn new(record: &Record, caller: usize) -> Self {
        Self { writes: Repeats::new(record, caller), body: None, turns: 0, again: 0 }
    }
}

const MOST_WRITERS: usize = 8;
/// So many writes in an hour by each of two callers in turn are a loop, whatever they write.
const TURNS_AN_HOUR: u64 = 180;
