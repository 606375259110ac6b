//! The shared, readable half of the key table. It looks up failing keys, and applies answers to
//! calls of healthy keys, without the limiter's lock.
//!
//! Only failing keys are stored, so a healthy key costs one lookup and no memory (P4). All changes
//! are made by [`Table`](super::Table), under the limiter's lock; this half is shared with the
//! request path and the status page.

use std::borrow::Cow;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use dashmap::{DashMap, Entry};

use super::KeyId;
use super::backoff::mix;
use crate::KeyState;
use crate::key::Key;
use crate::moment::Moment;
use crate::outcome::{Answer, Outcome, Removal};

/// The failing keys of a limiter.
#[derive(Default, derive_more::Debug)]
#[debug("{} failing keys", self.len())]
pub struct Keys {
    /// The failing keys of each object: usually one.
    objects: DashMap<u64, Box<[FailingKey]>, Spread>,
    /// The number of failing keys in each collection of objects.
    collections: DashMap<u64, u32, Spread>,
    len: AtomicUsize,
    /// Set while a pause grows with each throttling: then the first success of any key must be
    /// reported, to end the growth.
    listening: AtomicBool,
}

/// One failing key, in the table.
#[derive(Debug)]
pub(crate) struct FailingKey {
    pub(crate) facet: u64,
    pub(crate) collection: u64,
    /// The key's readable name; empty if it is not known.
    pub(crate) name: Box<str>,
    pub(crate) state: KeyState,
    /// The latest end of the waits asked for by the upstream: until then no call of the key is
    /// sent. Only a success ends it earlier.
    pub(crate) named: Moment,
    pub(crate) forget_at: Moment,
    /// The number of the key's last failure, counted over all keys. The outcome of a call sent
    /// before this failure is stale.
    pub(crate) number: u64,
    /// The number of the call testing the key now (its trial); 0 for none.
    pub(crate) trial: u32,
}

/// The state of a failing key, copied for one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyView {
    pub(crate) state: KeyState,
    pub(crate) trial: u32,
    pub(crate) forget_at: Moment,
}

/// The earliest times among an object's keys: when one may be tried, and when one is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectTimes {
    pub(crate) ready_at: Moment,
    pub(crate) forget_at: Moment,
}

/// The result of a change to an object's keys, and the object's times before and after it.
#[derive(Debug)]
pub(crate) struct ObjectChange<T> {
    pub(crate) result: T,
    pub(crate) before: Option<ObjectTimes>,
    pub(crate) after: Option<ObjectTimes>,
}

/// A hasher for keys: as these are secret hashes already, it only mixes bits. Mixing protects
/// against numbers made by hand in tests and simulations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mixer(u64);

/// The hasher of tables indexed by key.
pub(crate) type Spread = BuildHasherDefault<Mixer>;

// === impl Keys ===

impl Keys {
    /// Returns true if the limiter must process the answer to a call of this key. A success of a
    /// healthy key, the usual case, changes nothing.
    #[inline]
    pub(crate) fn learns_from(&self, key: Option<&Key>, answer: Answer) -> bool {
        let counts = match answer.outcome {
            Outcome::Failure | Outcome::Throttled { .. } => true,
            Outcome::Abandoned | Outcome::Neutral => {
                answer.gone != Removal::Nothing && self.holds(key, answer.gone == Removal::Object)
            }
            Outcome::Success => self.holds(key, answer.gone == Removal::Object) || self.listening.load(Relaxed),
        };
        counts || answer.throttled || answer.pause.is_some() || answer.quota.is_some()
    }

    /// Returns true if any key of the collection is failing. Only then are bodies read for the
    /// names of objects.
    pub fn any_failing_in(&self, collection: u64) -> bool {
        !self.is_empty() && self.collections.contains_key(&collection)
    }

    /// Returns the number of failing keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Returns true if no key is failing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the name, key and state of every failing key, in no order. It takes time in
    /// proportion to their number, so it is meant for tests and simulations.
    pub fn list(&self, now: Moment) -> Vec<(String, Key, KeyState)> {
        let mut found = Vec::with_capacity(self.len());
        for entry in &self.objects {
            let failing = entry.value().iter().filter(|failing| failing.forget_at > now);
            found.extend(failing.map(|failing| failing.shown(*entry.key())));
        }
        found
    }

    /// Returns the name and the state of a failing key.
    pub fn find(&self, key: &Key, now: Moment) -> Option<(String, KeyState)> {
        self.read(key, now, |failing| (failing.label(key.object).into_owned(), failing.state))
    }

    #[inline]
    fn read<T>(&self, key: &Key, now: Moment, read: impl FnOnce(&FailingKey) -> T) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let keys = self.objects.get(&key.object)?;
        keys.iter().find(|failing| failing.facet == key.facet && failing.forget_at > now).map(read)
    }

    /// Reads the failing keys of an object.
    pub(super) fn each(&self, object: u64, read: impl FnMut(&FailingKey)) {
        if let Some(keys) = self.objects.get(&object) {
            keys.iter().for_each(read);
        }
    }

    /// Sets whether every success must be reported to the limiter.
    pub(crate) fn listen(&self, listening: bool) {
        self.listening.store(listening, Relaxed);
    }

    /// Returns the state of a key; `None` if the key is not failing.
    #[inline]
    pub(crate) fn view(&self, key: &Key, now: Moment) -> Option<KeyView> {
        let view =
            |failing: &FailingKey| KeyView { state: failing.state, trial: failing.trial, forget_at: failing.forget_at };
        self.read(key, now, view)
    }

    /// Applies `change` to a failing key. The times that order the keys must stay as they are.
    pub(super) fn change<T>(&self, id: KeyId, change: impl FnOnce(&mut FailingKey) -> T) -> Option<T> {
        let mut keys = self.objects.get_mut(&id.object)?;
        keys.iter_mut().find(|failing| failing.facet == id.facet).map(change)
    }

    /// Applies `change` to the failing keys of an object.
    pub(super) fn change_object<T>(
        &self,
        object: u64,
        change: impl FnOnce(&mut Vec<FailingKey>) -> T,
    ) -> ObjectChange<T> {
        let mut entry = self.objects.entry(object);
        let mut keys = match &mut entry {
            Entry::Occupied(keys) => std::mem::take(keys.get_mut()).into_vec(),
            Entry::Vacant(_) => Vec::new(),
        };
        let before = ObjectTimes::of(&keys);
        let result = change(&mut keys);
        let after = ObjectTimes::of(&keys);
        if after.is_some() {
            entry.insert(keys.into_boxed_slice());
        } else if let Entry::Occupied(entry) = entry {
            entry.remove();
        }
        ObjectChange { result, before, after }
    }

    /// Adds a failing key not yet in the table.
    pub(super) fn add(&self, object: u64, failing: FailingKey) -> ObjectChange<()> {
        *self.collections.entry(failing.collection).or_insert(0) += 1;
        self.len.fetch_add(1, Relaxed);
        self.change_object(object, |keys| {
            // Nearly every object has one failing key, which should not take room for four.
            keys.reserve_exact(1);
            keys.push(failing);
        })
    }

    /// Removes a key, if it is there.
    pub(super) fn remove(&self, id: KeyId) -> ObjectChange<Option<FailingKey>> {
        let removed = self.change_object(id.object, |keys| {
            let at = keys.iter().position(|failing| failing.facet == id.facet)?;
            Some(keys.swap_remove(at))
        });
        if let Some(failing) = &removed.result {
            self.len.fetch_sub(1, Relaxed);
            self.collections.remove_if_mut(&failing.collection, |_, count| {
                *count -= 1;
                *count == 0
            });
        }
        removed
    }

    /// Returns the key of an object with the earliest `time`.
    pub(super) fn earliest(&self, object: u64, time: fn(&FailingKey) -> Moment) -> Option<KeyId> {
        let keys = self.objects.get(&object)?;
        let failing = keys.iter().min_by_key(|failing| (time(failing), failing.facet))?;
        Some(KeyId { object, facet: failing.facet })
    }

    /// Returns true if a key (or, with `whole`, any key of its object) is failing.
    #[inline]
    fn holds(&self, key: Option<&Key>, whole: bool) -> bool {
        let Some(key) = key.filter(|_| !self.is_empty()) else { return false };
        let keys = self.objects.get(&key.object);
        keys.is_some_and(|keys| whole || keys.iter().any(|failing| failing.facet == key.facet))
    }
}

// === impl FailingKey ===

impl FailingKey {
    /// Returns the name of the key, the key and its state.
    pub(super) fn shown(&self, object: u64) -> (String, Key, KeyState) {
        let key = Key { object, collection: self.collection, facet: self.facet };
        (self.label(object).into_owned(), key, self.state)
    }

    /// Returns the name of the key. For a key saved before a restart it is a substitute until the
    /// key fails again.
    pub(crate) fn label(&self, object: u64) -> Cow<'_, str> {
        match &*self.name {
            "" => format!("restored {:08x}", (object ^ self.facet) & 0xffff_ffff).into(),
            name => name.into(),
        }
    }
}

// === impl ObjectTimes ===

impl ObjectTimes {
    fn of(keys: &[FailingKey]) -> Option<Self> {
        let times = keys.iter().map(|failing| Self { ready_at: failing.state.ready_at, forget_at: failing.forget_at });
        times.reduce(|one, other| Self {
            ready_at: one.ready_at.min(other.ready_at),
            forget_at: one.forget_at.min(other.forget_at),
        })
    }
}

// === impl Mixer ===

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = mix(self.0 ^ number);
    }
}
