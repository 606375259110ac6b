//! Loops: calls repeated in vain.
//!
//! A write changed nothing if its answer has the version that the object had before. A log without
//! answers says it as well: the API takes a write only if it is based on the object's version, so
//! of two writes with one base the first changed nothing. A log of bodies shows a write of the same
//! body, or of the body before the last.

mod object;
mod repeats;

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::time::Duration;

use self::object::Object;
use self::repeats::Repeats;
use super::callers::Callers;
use crate::api::Verb;
use crate::limit::words;
use crate::simulate::replay::{CallEnd, Record};

/// A loop: calls of one kind, repeated in vain.
#[derive(Clone, Debug)]
pub struct FoundLoop {
    /// The kind of the loop.
    pub kind: LoopKind,
    /// The caller; both, if two write in turn.
    pub callers: Vec<String>,
    /// The verb of the calls.
    pub verb: Verb,
    /// The group, the resource and the subresource.
    pub resource: String,
    /// The namespace and the name; without a name for calls about many objects.
    pub object: String,
    /// The number of objects.
    pub objects: usize,
    /// The number of calls.
    pub calls: u64,
    /// The time from the first of them to the last.
    pub within: Duration,
    /// The number of calls in vain.
    pub in_vain: u64,
    /// The number of calls known from the log to be in vain or not.
    pub judged: u64,
    /// The status of refused calls.
    pub status: Option<u16>,
}

words! {
    /// The kind of a loop.
    pub enum LoopKind {
        /// Most writes of one object change nothing.
        Unchanged = "unchanged",
        /// One object is written nearly each second, and as far as the log says most writes change it.
        Fast = "fast",
        /// Many objects are written in turn, and most writes change nothing.
        Spread = "spread",
        /// Two callers write one object in turn.
        TwoWriters = "two_writers",
        /// All calls are refused with the same 4xx.
        Denied = "denied",
        /// Most creates are answered with 409, because the object is there.
        AlreadyThere = "already_there",
        /// Most deletes are answered with 404, because the object is gone.
        AlreadyGone = "already_gone",
        /// One caller creates many more Events than others.
        EventFlood = "event_flood",
    }
}

/// Possible loops, by a hash of what their calls have in common.
#[derive(Debug, Default)]
pub(super) struct Loops {
    hasher: RandomState,
    objects: HashMap<u64, Object>,
    /// Creates and deletes in a collection.
    collections: HashMap<u64, Repeats>,
    /// Calls with the same 4xx since the last success, and the status.
    denied: HashMap<u64, Denied>,
}

#[derive(Debug)]
struct Denied {
    status: u16,
    repeats: Repeats,
}

// === impl Loops ===

impl Loops {
    /// Counts a call of a caller.
    pub(super) fn count(&mut self, record: &Record, caller: usize) {
        let request = &record.request;
        let CallEnd::Answered { status, .. } = record.ending else { return };
        // A lease is written every few seconds by design.
        if request.resource == "leases" || request.dry_run {
            return;
        }
        let is_named = record.hashes.key.is_some() || !record.object.name.is_empty();
        self.denied(record, caller, status);
        let vain = if request.verb == Verb::Create { 409 } else { 404 };
        match request.verb {
            Verb::Create | Verb::Delete => {
                let id = self.id((caller, request.verb, place(record)));
                let repeats = self.collections.entry(id).or_insert_with(|| Repeats::new(record, caller).of_all());
                repeats.count(record.at, Some(status == vain));
            }
            Verb::Update | Verb::Patch if (200..300).contains(&status) && is_named => {
                let id = self.object(record, ());
                self.objects.entry(id).or_insert_with(|| Object::new(record, caller)).count(record, caller);
            }
            _ => {}
        }
        self.forget();
    }

    /// Returns the loops, those with the most calls first.
    pub(super) fn found(self, callers: &Callers) -> Vec<FoundLoop> {
        let mut found = Vec::new();
        // By the writer and the kind of the objects.
        let mut written: HashMap<_, Vec<Repeats>> = HashMap::new();
        for mut object in self.objects.into_values() {
            if let Some(fight) = object.fight(callers) {
                found.push(fight);
                continue;
            }
            for writes in object.writers.into_iter().map(|writer| writer.writes) {
                let request = &writes.request;
                let kind = [&request.group, &request.resource, &request.subresource].map(String::clone);
                written.entry((writes.caller, kind)).or_default().push(writes);
            }
        }
        found.extend(written.into_values().flat_map(|writes| of_one_kind(writes, callers)));
        let mut events: Vec<u64> =
            self.collections.values().filter(|one| is_of_events(one)).map(|one| one.calls).collect();
        events.sort_unstable();
        // Of all callers but the loudest.
        let median = events.get(events.len().saturating_sub(1) / 2).copied().filter(|_| events.len() > 1).unwrap_or(0);
        found.extend(self.collections.values().filter_map(|calls| in_collection(calls, median, callers)));
        let denied = self.denied.into_values().filter(|denied| denied.repeats.is_often());
        found.extend(denied.map(|Denied { status, repeats }| FoundLoop {
            status: Some(status),
            ..repeats.found(LoopKind::Denied, callers)
        }));
        found.sort_by(|one, other| other.calls.cmp(&one.calls).then_with(|| one.object.cmp(&other.object)));
        found
    }

    /// Counts a call refused with a 4xx that does not depend on the object's state.
    fn denied(&mut self, record: &Record, caller: usize, status: u16) {
        let id = self.object(record, (caller, record.request.verb));
        let is_denied = matches!(status, 400..500) && !matches!(status, 404 | 409 | 410 | 429);
        if !is_denied {
            self.denied.remove(&id);
            return;
        }
        let new = || Denied { status, repeats: Repeats::new(record, caller) };
        let denied = self.denied.entry(id).or_insert_with(new);
        if denied.status != status {
            *denied = new();
        }
        denied.repeats.count(record.at, Some(true));
    }

    /// Forgets calls made only once or twice, if there are too many.
    fn forget(&mut self) {
        shrink(&mut self.objects, |object| object.writers.iter().any(|writer| writer.writes.is_repeated()));
        shrink(&mut self.denied, |denied| denied.repeats.is_repeated());
        shrink(&mut self.collections, Repeats::is_repeated);
    }

    /// Returns the hash of a call's object, and of `more`. A gate's log has a hash for its name.
    fn object(&self, record: &Record, more: impl Hash) -> u64 {
        let key = record.hashes.key.map(|key| key.object);
        self.id((place(record), key, &record.object.name, more))
    }

    fn id(&self, parts: impl Hash) -> u64 {
        self.hasher.hash_one(parts)
    }
}

/// Drops unrepeated calls from an oversized map, and half of the rest if it is still large.
fn shrink<T>(map: &mut HashMap<u64, T>, is_repeated: impl Fn(&T) -> bool) {
    if map.len() > MOST {
        map.retain(|_, calls| is_repeated(calls));
        let is_much = map.len() > MOST / 4 * 3;
        map.retain(|id, _| !is_much || id.is_multiple_of(2));
    }
}

/// Returns what calls about one collection have in common.
fn place(record: &Record) -> [&str; 4] {
    let request = &record.request;
    [&request.group, &request.resource, &request.subresource, &request.namespace]
}

/// Returns the loops of one writer of objects of one kind: one loop if most writes of all are in vain.
fn of_one_kind(writes: Vec<Repeats>, callers: &Callers) -> Vec<FoundLoop> {
    let objects = writes.len();
    let each = writes.iter().filter_map(|writes| {
        let kind = match writes {
            _ if writes.is_often() && writes.is_mostly_in_vain() => LoopKind::Unchanged,
            _ if writes.is_fast() => LoopKind::Fast,
            _ => return None,
        };
        Some(writes.found(kind, callers))
    });
    let each = each.collect();
    let all = writes.into_iter().reduce(|all, one| all.with(&one));
    let is_loop = |all: &Repeats| objects >= MANY_OBJECTS && all.is_often() && all.is_mostly_in_vain();
    let Some(all) = all.filter(is_loop) else { return each };
    vec![FoundLoop { objects, ..all.of_all().found(LoopKind::Spread, callers) }]
}

/// Returns the loop of creates or deletes in a collection; `median` is the usual number of Events of
/// a caller.
fn in_collection(calls: &Repeats, median: u64, callers: &Callers) -> Option<FoundLoop> {
    let is_create = calls.request.verb == Verb::Create;
    let kind = match calls {
        calls if calls.is_often() && calls.is_mostly_in_vain() && is_create => LoopKind::AlreadyThere,
        calls if calls.is_often() && calls.is_mostly_in_vain() => LoopKind::AlreadyGone,
        calls if is_of_events(calls) && calls.calls >= EVENTS.max(5 * median) && calls.an_hour() >= EVENTS_AN_HOUR => {
            LoopKind::EventFlood
        }
        _ => return None,
    };
    Some(calls.found(kind, callers))
}

fn is_of_events(calls: &Repeats) -> bool {
    calls.request.resource == "events" && calls.request.verb == Verb::Create
}

/// The most objects, and the most collections, to know.
const MOST: usize = 30_000;
/// Fewer objects are named each.
const MANY_OBJECTS: usize = 5;
/// Fewer Events, or slower ones, are no flood.
const EVENTS: u64 = 100;
const EVENTS_AN_HOUR: u64 = 600;
