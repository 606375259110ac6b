//! What a limiter remembers over a restart: failing keys, pauses and bucket levels.
//!
//! P21: after a restart no key is tried before its time, no pause ends sooner, and no bucket has
//! more tokens than it would have had. Times are kept as durations, because moments mean nothing to
//! another process. Names are kept for another limiter of this process alone: they could be paths,
//! and paths can be secrets.

use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::limiter::{Limiter, Parts};
use crate::moment::Moment;
use crate::resources::{FrozenPause, Gap, Levels};
use crate::{ClassId, KeyState, Owner, Position};

/// The memory of a limiter at one moment, for the state file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrozenLimiter {
    /// The failing keys, the longest waits first.
    pub keys: Vec<FrozenKey>,
    /// The pauses in force.
    pub pauses: Vec<FrozenPause>,
    /// The tokens in the saved buckets, each with the bucket's owner.
    pub buckets: Vec<(FrozenPart, Levels)>,
}

/// The owner of a saved bucket: a gate, its retries or a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrozenPart {
    /// The whole gate.
    Gate,
    /// The retries of the gate, for its retry bucket.
    Retries,
    /// The class of this name.
    Class(Arc<str>),
}

/// A failing key, as saved for a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenKey {
    /// The key; its fields are hashes.
    pub key: Key,
    /// The key's readable name; empty if it was not asked for.
    pub name: Box<str>,
    /// The number of failures in a row.
    pub failures: u32,
    /// The HTTP status of the last failure.
    pub status: Option<u16>,
    /// The time until a call may test the key again.
    pub ready: Duration,
    /// The time left of a wait asked for by the upstream itself.
    pub named: Duration,
    /// The time until the key is forgotten.
    pub forget: Duration,
}

/// A walk over a limiter's memory, a little at a time.
#[derive(Debug, Default)]
pub struct FreezeWalk {
    began: Option<Moment>,
    place: Option<Position>,
    keeps_names: bool,
    frozen: FrozenLimiter,
}

/// Counters of the changes to a limiter's memory, to save it only if something is new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The number of changes to keys and pauses.
    pub memory: u64,
    /// The number of changes to bucket levels.
    pub takes: u64,
}

// === impl FreezeWalk ===

impl FreezeWalk {
    /// Begins a walk that writes down the names of keys, too. They must not leave the process.
    pub fn with_names() -> Self {
        Self { keeps_names: true, ..Self::default() }
    }
}

// === impl Limiter ===

impl Limiter {
    /// Returns the number of changes so far.
    pub fn changes(&self) -> Changes {
        let memory = self.parts.stage.table().changes().wrapping_add(self.parts.resources.pauses.changes());
        Changes { memory, takes: self.parts.resources.buckets.takes }
    }

    /// Writes down a little more of what the limiter remembers, with at most `most` keys. Returns
    /// the result once it is complete.
    pub fn freeze_some(&self, freezing: &mut FreezeWalk, most: usize, now: Moment) -> Option<FrozenLimiter> {
        let now = self.latest(now);
        let began = *freezing.began.get_or_insert_with(|| {
            freezing.frozen.pauses = self.parts.resources.pauses.freeze(now);
            freezing.frozen.buckets = self.parts.frozen_buckets(now);
            now
        });
        let keeps_names = freezing.keeps_names;
        let keys = &mut freezing.frozen.keys;
        freezing.place = self.parts.stage.table().read_some(freezing.place, |object, failing| {
            if failing.forget_at > began && keys.len() < most {
                let state = failing.state;
                keys.push(FrozenKey {
                    key: Key { object, collection: failing.collection, facet: failing.facet },
                    name: if keeps_names { failing.name.clone() } else { Box::default() },
                    failures: state.failures,
                    status: state.last_status,
                    ready: state.ready_at - began,
                    named: failing.named - began,
                    forget: failing.forget_at - began,
                });
            }
        });
        let is_over = freezing.place.is_none() || keys.len() >= most;
        is_over.then(|| std::mem::take(freezing).frozen)
    }

    /// Restores the memory of an earlier limiter of the same gate. Call it before the first call
    /// arrives.
    pub fn thaw(&mut self, frozen: &FrozenLimiter, gap: Gap, now: Moment) {
        let now = self.latest(now);
        self.parts.thaw(frozen, gap, now);
    }
}

// === impl Parts ===

impl Parts {
    fn thaw(&mut self, frozen: &FrozenLimiter, gap: Gap, now: Moment) {
        let at = |left: Duration| now + left.saturating_sub(gap.length);
        for frozen in frozen.keys.iter().filter(|frozen| frozen.forget > gap.length) {
            let FrozenKey { key, ref name, failures, status, ready, named, forget } = *frozen;
            let state = KeyState { failures, last_status: status, last_failure: now, ready_at: at(ready) };
            self.stage.restore(key, name.clone(), state, at(named), at(forget));
        }
        for pause in &frozen.pauses {
            self.resources.pauses.restore(pause, gap.length, now);
        }
        self.stage.keys().listen(self.resources.pauses.grows());
        for (of, levels) in &frozen.buckets {
            if let Some(owner) = self.owner(of) {
                self.resources.buckets.restore(owner, levels, gap, now);
            }
        }
    }

    pub(super) fn frozen_buckets(&self, now: Moment) -> Vec<(FrozenPart, Levels)> {
        let classes = (0..self.rules.policy().classes.len()).map(ClassId::at);
        let classes = classes.map(|class| (self.part_of(class), Owner::Class(class)));
        let all = [(FrozenPart::Gate, Owner::Gate), (FrozenPart::Retries, Owner::Retries)].into_iter().chain(classes);
        let mut room = PARTS;
        let mut levels = |owner| {
            let levels = self.resources.buckets.levels(owner, room, now)?;
            room = room.saturating_sub(levels.parts.len());
            Some(levels)
        };
        all.filter_map(|(place, owner)| Some((place, levels(owner)?))).collect()
    }

    fn part_of(&self, class: ClassId) -> FrozenPart {
        FrozenPart::Class(Arc::clone(&self.rules.policy().class(class).name))
    }

    fn class_named(&self, name: &str) -> Option<ClassId> {
        self.rules.policy().classes.iter().position(|class| &*class.name == name).map(ClassId::at)
    }

    fn owner(&self, place: &FrozenPart) -> Option<Owner> {
        Some(match place {
            FrozenPart::Gate => Owner::Gate,
            FrozenPart::Retries => Owner::Retries,
            FrozenPart::Class(name) => Owner::Class(self.class_named(name)?),
        })
    }
}

/// The most buckets per flow or credential to write down.
const PARTS: usize = 4000;

#[cfg(test)]
mod tests;
