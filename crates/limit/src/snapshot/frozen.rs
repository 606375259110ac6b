//! The state that a limiter takes along over a restart: failing keys, pauses and bucket levels.
//!
//! P21: after a restart no key is tried before its time, no pause ends sooner, and no bucket has
//! more tokens than it would have had. Times are kept as what is left of them, because moments mean
//! nothing to another process. Names are not kept: they could be paths, and paths can be secrets.

use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::moment::Moment;
use crate::resources::{Flow, Levels, PauseTarget};
use crate::{ClassId, KeyState, Limiter, Owner, Parts, Position};

/// A limiter's memory as it was at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrozenLimiter {
    /// The failing keys, those that wait longest first.
    pub keys: Vec<FrozenKey>,
    /// The pauses.
    pub pauses: Vec<FrozenPause>,
    /// The levels of the buckets, by owner.
    pub buckets: Vec<(FrozenPart, Levels)>,
}

/// The part of a gate that a pause or a bucket is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrozenPart {
    /// The whole gate.
    Gate,
    /// The retries of the gate.
    Retries,
    /// The class of this name.
    Class(Arc<str>),
    /// The credential of this hash.
    Credential(u64),
    /// The credentials that are not told apart.
    OtherCredentials,
}

/// A failing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrozenKey {
    /// The key, by its hashes.
    pub key: Key,
    /// The number of consecutive failures.
    pub failures: u32,
    /// The status of the last one.
    pub status: Option<u16>,
    /// The time until it may be tried.
    pub ready: Duration,
    /// The time that is left of what the upstream named.
    pub named: Duration,
    /// The time until it is forgotten.
    pub forget: Duration,
}

/// A pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenPause {
    /// The calls that wait.
    pub of: FrozenPart,
    /// The time that it has left.
    pub left: Duration,
    /// The length to which it has grown without a time of its own.
    pub grown: Duration,
}

/// The time between the moment at which a limiter was frozen and the one at which another goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The time that has passed, at least.
    pub length: Duration,
    /// The time for which the frozen one may have gone on without being seen; `None` if it has not.
    pub unseen: Option<Duration>,
}

/// A reading of a limiter's memory, a little at a time.
#[derive(Debug, Default)]
pub struct FreezeWalk {
    began: Option<Moment>,
    place: Option<Position>,
    frozen: FrozenLimiter,
}

/// Numbers that change when there is something new to keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Of keys and pauses.
    pub memory: u64,
    /// Of the levels of buckets.
    pub takes: u64,
}

// === impl Limiter ===

impl Limiter {
    /// Returns the numbers by which to see if there is something new to keep.
    pub fn changes(&self) -> Changes {
        let memory = self.parts().stage.table().changes().wrapping_add(self.parts().resources.pauses.changes);
        Changes { memory, takes: self.parts().resources.buckets.takes }
    }

    /// Reads a little more of what is kept over a restart, of at most `most` keys. Returns it once
    /// it is whole.
    pub fn freeze_some(&self, freezing: &mut FreezeWalk, most: usize, now: Moment) -> Option<FrozenLimiter> {
        let now = self.latest(now);
        let began = *freezing.began.get_or_insert_with(|| {
            freezing.frozen.pauses = self.parts().frozen_pauses(now);
            freezing.frozen.buckets = self.parts().frozen_buckets(now);
            now
        });
        let keys = &mut freezing.frozen.keys;
        freezing.place = self.parts().stage.table().read_some(freezing.place, |object, failing| {
            if failing.forget_at > began && keys.len() < most {
                let state = failing.state;
                keys.push(FrozenKey {
                    key: Key { object, collection: failing.collection, facet: failing.facet },
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

    /// Goes on with what another limiter of the same gate remembered. For a limiter at rest, before
    /// its first call.
    pub fn thaw(&mut self, frozen: &FrozenLimiter, gap: Gap, now: Moment) {
        let now = self.latest(now);
        self.restore(|parts| parts.thaw(frozen, gap, now));
    }
}

// === impl Parts ===

impl Parts {
    fn thaw(&mut self, frozen: &FrozenLimiter, gap: Gap, now: Moment) {
        for FrozenKey { key, failures, status, ready, named, forget } in frozen.keys.iter().copied() {
            let at = |left: Duration| now + left.saturating_sub(gap.length);
            if forget > gap.length {
                let state = KeyState { failures, last_status: status, last_failure: now, ready_at: at(ready) };
                self.stage.restore(key, state, at(named), at(forget));
            }
        }
        for pause in &frozen.pauses {
            if let Some(who) = self.paused(&pause.of) {
                let until = now + pause.left.saturating_sub(gap.length);
                self.resources.pauses.restore(who, until, pause.grown, now);
            }
        }
        self.stage.keys().listen(self.resources.pauses.grows);
        let seconds = gap.length.as_secs_f64();
        let surely = gap.unseen.map(|unseen| gap.length.saturating_sub(unseen).as_secs_f64());
        for (of, levels) in &frozen.buckets {
            if let Some(owner) = self.owner(of) {
                self.resources.buckets.restore(owner, levels, Flow { seconds, surely }, now);
            }
        }
    }

    pub(super) fn frozen_pauses(&self, now: Moment) -> Vec<FrozenPause> {
        let of = |who| match who {
            PauseTarget::Gate => FrozenPart::Gate,
            PauseTarget::Class(class) => self.part_of(class),
            PauseTarget::Credential(who) => FrozenPart::Credential(who),
            PauseTarget::OtherCredentials => FrozenPart::OtherCredentials,
        };
        let kept = self.resources.pauses.kept(now);
        kept.map(|(who, left, grown)| FrozenPause { of: of(who), left, grown }).collect()
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

    fn paused(&self, place: &FrozenPart) -> Option<PauseTarget> {
        Some(match place {
            FrozenPart::Gate => PauseTarget::Gate,
            FrozenPart::Class(name) => PauseTarget::Class(self.class_named(name)?),
            FrozenPart::Credential(who) => PauseTarget::Credential(*who),
            FrozenPart::OtherCredentials => PauseTarget::OtherCredentials,
            FrozenPart::Retries => return None,
        })
    }

    fn owner(&self, place: &FrozenPart) -> Option<Owner> {
        Some(match place {
            FrozenPart::Gate => Owner::Gate,
            FrozenPart::Retries => Owner::Retries,
            FrozenPart::Class(name) => Owner::Class(self.class_named(name)?),
            FrozenPart::Credential(_) | FrozenPart::OtherCredentials => return None,
        })
    }
}

/// The most buckets by flow or credential that are kept.
const PARTS: usize = 4000;

#[cfg(test)]
mod tests;
