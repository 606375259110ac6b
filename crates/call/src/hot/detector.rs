//! The rules of loops, for a gate's traffic and for logs: calls repeated in vain.
//!
//! A write changed nothing if its answer has the version that the object had before. A log without
//! answers says it as well: the API takes a write only if it is based on the object's version, so
//! of two writes with one base the first changed nothing. Bodies show a write that repeats the last
//! one, times aside, or the one before it.

use std::collections::BTreeMap;

use super::denied::{DenialRuns, QUIET, is_denial};
use super::found::{FoundLoop, LoopKind, News};
use super::repeats::{Effect, Proof, Repeats};
use super::seen::{Act, CallNames, ObjectCall};
use super::written::WrittenObject;
use crate::moment::Moment;

/// Possible loops, by a hash of what their calls have in common.
#[derive(Debug)]
pub struct Detector {
    proof: Proof,
    /// The most objects, collections and denied calls to know.
    most: usize,
    objects: BTreeMap<u64, WrittenObject>,
    /// The number of their writers.
    writers: usize,
    collections: BTreeMap<u64, Collection>,
    denied: DenialRuns,
}

/// Creates or deletes in one collection by one caller.
#[derive(Debug)]
struct Collection {
    act: Act,
    calls: Repeats,
}

// === impl Detector ===

impl Detector {
    /// Returns a detector that knows at most so many objects.
    pub fn new(proof: Proof, most: usize) -> Self {
        let denied = DenialRuns::new(most);
        Self { proof, most, objects: BTreeMap::new(), writers: 0, collections: BTreeMap::new(), denied }
    }

    /// Counts a call. Returns a loop of denied calls that it began or ended.
    pub fn count(&mut self, call: &ObjectCall, names: &dyn Fn() -> CallNames) -> Option<News> {
        if !call.is_upstreams {
            return None;
        }
        let news = match call.status {
            _ if !call.is_named() => None,
            status if is_denial(status) => self.denied.denied(call, names),
            429.. => None, // another failure
            _ => self.denied.passed(call),
        };
        match call.act {
            // The same object again and again is a run of denials.
            Act::Create | Act::CreateEvent | Act::Delete if self.denied.calls(call) < SAME => {
                let id = call.by_caller(call.collection);
                let new = || Collection { act: call.act, calls: Repeats::new(call, names().of_all()) };
                if let Some(collection) = place(&mut self.collections, id, self.most / 4, new) {
                    let vain = if call.act == Act::Delete { 404 } else { 409 };
                    let effect = if call.status == vain { Effect::Nothing } else { Effect::Change };
                    collection.calls.count(call.at, Some(effect));
                }
            }
            Act::Write if call.is_named() && (200..300).contains(&call.status) => {
                let has_room = self.writers < self.most / 4 * 5;
                if let Some(object) = place(&mut self.objects, call.written(), self.most, WrittenObject::default) {
                    self.writers += usize::from(object.count(call, names, has_room));
                }
            }
            _ => {}
        }
        news
    }

    /// Returns true if the writes of an object are counted.
    #[inline]
    pub(super) fn knows(&self, written: u64) -> bool {
        self.objects.contains_key(&written)
    }

    /// Returns true if a write of an object is to be judged by its body and its answer.
    pub(super) fn samples(&self, written: u64, now: Moment) -> bool {
        self.objects.get(&written).is_some_and(|object| !object.is_known_well(now))
    }

    /// Returns the number of objects whose writes are counted.
    pub(super) fn objects(&self) -> usize {
        self.objects.len()
    }

    /// Returns true if there are runs of denied calls.
    pub(super) fn is_denying(&self) -> bool {
        !self.denied.is_empty()
    }

    /// Returns true if a run of denied calls of this object has been named.
    pub(super) fn denies(&self, object: u64) -> bool {
        self.denied.names(object)
    }

    /// Forgets old runs of denied calls, and returns those that were named. What does not look like
    /// a loop makes room if there is little.
    pub fn tick(&mut self, now: Moment) -> Vec<FoundLoop> {
        if self.objects.len() > self.most / 4 * 3 {
            self.objects.retain(|_, object| object.may_be_loop(now));
        }
        if self.collections.len() > self.most / 16 * 3 {
            self.collections.retain(|_, one| one.act == Act::CreateEvent || one.calls.may_be_loop(now));
        }
        self.writers = self.objects.values().map(WrittenObject::writers).sum();
        self.denied.tick(now)
    }

    /// Returns the loops of denied calls.
    pub fn denied(&self) -> impl Iterator<Item = FoundLoop> {
        self.denied.list()
    }

    /// Returns roughly how much memory the detector takes, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let texts = super::denied::TEXTS;
        let objects = self.objects.len() * (size_of::<WrittenObject>() + 16);
        let writers = self.writers * (size_of::<super::written::Writer>() + texts);
        objects * 3 / 2 + writers + self.collections.len() * (size_of::<Collection>() + texts) + self.denied.bytes()
    }

    /// Forgets what is old.
    pub(super) fn age(&mut self, now: Moment) {
        self.objects.retain(|_, object| now - object.last() < QUIET * 3);
        self.collections.retain(|_, one| now - one.calls.last < QUIET * 3);
        self.objects.values_mut().for_each(|object| object.age(now));
        for collection in self.collections.values_mut() {
            collection.calls.age(now);
        }
    }

    /// Returns the loops of other calls.
    pub fn found(&self) -> Vec<FoundLoop> {
        let proof = &self.proof;
        let mut found = Vec::new();
        // By the writer and the kind of the objects.
        let mut written: BTreeMap<_, Vec<(u64, &Repeats)>> = BTreeMap::new();
        for (id, object) in &self.objects {
            if let Some(fight) = object.fight(*id, proof) {
                found.push(fight);
                continue;
            }
            for writes in object.writes() {
                written.entry((writes.caller, writes.kind)).or_default().push((*id, writes));
            }
        }
        found.extend(written.into_values().flat_map(|writes| of_one_kind(&writes, proof)));
        let events = self.collections.values().filter(|one| one.act == Act::CreateEvent);
        let mut events: Vec<u64> = events.map(|one| one.calls.calls).collect();
        events.sort_unstable();
        // Of all callers but the loudest.
        let median = events.get(events.len().saturating_sub(1) / 2).copied().filter(|_| events.len() > 1).unwrap_or(0);
        let of = |(id, one): (&u64, &Collection)| Some(one.calls.found(*id, one.loop_kind(median, proof)?));
        found.extend(self.collections.iter().filter_map(of));
        found
    }
}

// === impl Collection ===

impl Collection {
    /// Returns the kind of the loop, if it is one; `median` is the usual number of Events of a caller.
    fn loop_kind(&self, median: u64, proof: &Proof) -> Option<LoopKind> {
        let Self { act, calls } = self;
        let is_in_vain = calls.is_often(proof) && calls.is_mostly_in_vain();
        let is_flood = calls.calls >= EVENTS.max(5 * median) && calls.an_hour() >= EVENTS_AN_HOUR;
        match act {
            Act::Delete => is_in_vain.then_some(LoopKind::AlreadyGone),
            _ if is_in_vain => Some(LoopKind::AlreadyThere),
            Act::CreateEvent if is_flood && calls.lasts() >= proof.flood_lasts => Some(LoopKind::EventFlood),
            _ => None,
        }
    }
}

/// Returns what is known by a number, and makes it if there is room.
fn place<T>(known: &mut BTreeMap<u64, T>, id: u64, most: usize, new: impl FnOnce() -> T) -> Option<&mut T> {
    let has_room = known.len() < most || known.contains_key(&id);
    has_room.then(|| known.entry(id).or_insert_with(new))
}

/// Returns the loops of one writer of objects of one kind: one loop if most writes of all are in vain.
fn of_one_kind(writes: &[(u64, &Repeats)], proof: &Proof) -> Vec<FoundLoop> {
    let all = Repeats::of_all(writes.iter().map(|(_, writes)| *writes))
        .filter(|all| writes.len() >= MANY_OBJECTS && all.is_often(proof) && all.is_mostly_in_vain());
    if let Some(all) = all {
        let id = all.caller.wrapping_add(1).wrapping_mul(all.kind | 1);
        return vec![FoundLoop { objects: writes.len(), ..all.found(id, LoopKind::Spread) }];
    }
    let each = writes.iter().filter_map(|(id, writes)| {
        let kind = match writes {
            _ if writes.is_often(proof) && writes.is_mostly_in_vain() => LoopKind::Unchanged,
            _ if writes.is_fast() => LoopKind::Fast,
            _ => return None,
        };
        Some(writes.found(*id, kind))
    });
    each.collect()
}

/// Fewer objects are named each.
const MANY_OBJECTS: usize = 5;
/// So many refusals of one object are no longer counted for its collection.
const SAME: u64 = 3;
/// Fewer Events, or slower ones, are no flood.
const EVENTS: u64 = 100;
const EVENTS_AN_HOUR: u64 = 600;

#[cfg(test)]
mod tests;
