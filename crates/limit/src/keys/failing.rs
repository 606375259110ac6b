//! The readable half of the key table: failing keys can be looked up, and calls of healthy keys
//! settled, without the limiter's lock.
//!
//! Only failing keys are stored, so a healthy one costs one look-up and no memory (P4). All changes
//! are made by the limiter's `table::Table`, under its lock; this half is shared with the request
//! path and the status page.

use std::borrow::Cow;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use dashmap::DashMap;

use crate::KeyState;
use crate::key::Key;
use crate::keys::backoff::mix;
use crate::moment::Moment;
use crate::outcome::{Answer, Gone, Outcome};

/// The failing keys and what is remembered of each.
#[derive(Default, derive_more::Debug)]
#[debug("{} failing keys", self.len())]
pub struct Keys {
    /// The failing facets by object: usually one. Boxed, because up to half of a table is room to
    /// grow.
    objects: DashMap<u64, Box<Facets>, Spread>,
    /// The number of failing keys by collection.
    collections: DashMap<u64, u32, Spread>,
    len: AtomicUsize,
    /// True if successes matter beyond their keys: a pause grows until one arrives.
    listening: AtomicBool,
}

/// One failing key.
#[derive(Debug)]
pub(crate) struct Failing {
    pub(crate) facet: u64,
    pub(crate) collection: u64,
    /// Its name; empty if it is not known.
    pub(crate) name: Box<str>,
    pub(crate) state: KeyState,
    /// The latest time that the upstream named: only a success ends it before it comes.
    pub(crate) named: Moment,
    /// The moment it is forgotten.
    pub(crate) forget_at: Moment,
    /// The lower half of the number of the last recorded failure: the outcome of a call that left
    /// before it is not news.
    pub(crate) generation: u32,
    /// The number of the trial that is past the key stage; 0 for none.
    pub(crate) trial: u32,
}

/// The part of a failing key that the limiter needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) state: KeyState,
    pub(crate) trial: u32,
    pub(crate) forget_at: Moment,
}

/// The failing facets of one object: nearly always one, which needs no allocation.
#[derive(Debug)]
pub(crate) enum Facets {
    One(Failing),
    Many(Vec<Failing>),
}

/// A hasher for keys, which are secret hashes already: mixing only protects against numbers made by
/// hand in tests and simulations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mixer(u64);

/// The hasher of tables by key.
pub(crate) type Spread = BuildHasherDefault<Mixer>;

// === impl Keys ===

impl Keys {
    /// True if the answer to a call of this key changes anything that is remembered, here or
    /// elsewhere. The usual case, success of a healthy key, does not.
    #[inline]
    pub(crate) fn learns_from(&self, key: Option<&Key>, answer: Answer) -> bool {
        let counts = match answer.outcome {
            Outcome::Failure | Outcome::Throttled { .. } => true,
            Outcome::Abandoned | Outcome::Neutral => {
                answer.gone != Gone::Nothing && self.holds(key, answer.gone == Gone::Object)
            }
            Outcome::Success => self.holds(key, answer.gone == Gone::Object) || self.listening.load(Relaxed),
        };
        counts || answer.throttled || answer.pause.is_some()
    }

    /// True if any key of the collection is failing, so that names in bodies are worth reading.
    pub fn any_failing_in(&self, collection: u64) -> bool {
        !self.is_empty() && self.collections.contains_key(&collection)
    }

    /// Returns the number of failing keys.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// True if no key is failing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns every failing key by name, in no order: for tests and simulations, because the time
    /// it takes grows with the number of keys.
    pub fn list(&self, now: Moment) -> Vec<(String, Key, KeyState)> {
        let mut found = Vec::with_capacity(self.len());
        for entry in &self.objects {
            let failing = entry.value().all().iter().filter(|failing| failing.forget_at > now);
            found.extend(failing.map(|failing| failing.shown(*entry.key())));
        }
        found
    }

    /// Returns the name and the state of a failing key.
    pub fn find(&self, key: &Key, now: Moment) -> Option<(String, KeyState)> {
        let facets = self.objects.get(&key.object)?;
        let failing = facets.find(key.facet).filter(|failing| failing.forget_at > now)?;
        Some((failing.label(key.object).into_owned(), failing.state))
    }

    /// Reads the failing keys of an object.
    pub(crate) fn each(&self, object: u64, mut read: impl FnMut(&Failing)) {
        if let Some(facets) = self.objects.get(&object) {
            facets.all().iter().for_each(&mut read);
        }
    }

    /// Sets whether every success must be reported to the limiter.
    pub(crate) fn listen(&self, listening: bool) {
        self.listening.store(listening, Relaxed);
    }

    /// Returns the state of a key, if it is failing.
    #[inline]
    pub(crate) fn view(&self, key: &Key, now: Moment) -> Option<View> {
        if self.is_empty() {
            return None;
        }
        let facets = self.objects.get(&key.object)?;
        let failing = facets.find(key.facet).filter(|failing| failing.forget_at > now)?;
        Some(View { state: failing.state, trial: failing.trial, forget_at: failing.forget_at })
    }

    /// Changes a failing key in place.
    pub(crate) fn change<T>(&self, object: u64, facet: u64, change: impl FnOnce(&mut Failing) -> T) -> Option<T> {
        let mut facets = self.objects.get_mut(&object)?;
        facets.find_mut(facet).map(change)
    }

    /// Adds a key that is not there yet.
    pub(crate) fn add(&self, object: u64, failing: Failing) {
        *self.collections.entry(failing.collection).or_insert(0) += 1;
        self.len.fetch_add(1, Relaxed);
        match self.objects.entry(object) {
            dashmap::Entry::Occupied(mut facets) => facets.get_mut().push(failing),
            dashmap::Entry::Vacant(vacant) => {
                vacant.insert(Box::new(Facets::One(failing)));
            }
        }
    }

    /// Removes a key, if it is there.
    pub(crate) fn remove(&self, object: u64, facet: u64) -> Option<Failing> {
        let dashmap::Entry::Occupied(mut facets) = self.objects.entry(object) else { return None };
        let at = facets.get().all().iter().position(|failing| failing.facet == facet)?;
        let removed = match facets.get_mut().as_mut() {
            Facets::Many(many) if many.len() > 1 => many.swap_remove(at),
            Facets::One(_) | Facets::Many(_) => match *facets.remove() {
                Facets::One(only) => only,
                Facets::Many(mut many) => many.swap_remove(at),
            },
        };
        self.len.fetch_sub(1, Relaxed);
        if let dashmap::Entry::Occupied(mut count) = self.collections.entry(removed.collection) {
            if *count.get() > 1 {
                *count.get_mut() -= 1;
            } else {
                count.remove();
            }
        }
        Some(removed)
    }

    /// Returns the facet of an object that has the earliest time, and that time.
    pub(crate) fn earliest(&self, object: u64, time: fn(&Failing) -> Moment) -> Option<(Moment, u64)> {
        let facets = self.objects.get(&object)?;
        facets.all().iter().map(|failing| (time(failing), failing.facet)).min()
    }

    /// True if a key (or, with `whole`, any key of its object) is here.
    #[inline]
    fn holds(&self, key: Option<&Key>, whole: bool) -> bool {
        let Some(key) = key.filter(|_| !self.is_empty()) else { return false };
        self.objects.get(&key.object).is_some_and(|facets| whole || facets.find(key.facet).is_some())
    }
}

// === impl Failing ===

impl Failing {
    /// Returns its name, the key that it is of its object, and its state.
    pub(crate) fn shown(&self, object: u64) -> (String, Key, KeyState) {
        let key = Key { object, collection: self.collection, facet: self.facet };
        (self.label(object).into_owned(), key, self.state)
    }

    /// Returns its name. That of a key of before a restart is only known once it fails again.
    pub(crate) fn label(&self, object: u64) -> Cow<'_, str> {
        match &*self.name {
            "" => format!("restored {:08x}", low(object ^ self.facet)).into(),
            name => name.into(),
        }
    }

    /// True if the outcome of a call that left after `left` failures says nothing new. Half of a
    /// number is enough: two billion failures would have to lie between a call and the failure it
    /// is compared with.
    pub(crate) fn is_news_to(&self, left: u64) -> bool {
        low(left).wrapping_sub(self.generation) > u32::MAX / 2
    }

    /// Records that the key failed, as failure number `failures` of all.
    pub(crate) fn count(&mut self, failures: u64) {
        self.generation = low(failures);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
fn low(number: u64) -> u32 {
    number as u32
}

// === impl Facets ===

impl Facets {
    fn all(&self) -> &[Failing] {
        match self {
            Self::One(only) => std::slice::from_ref(only),
            Self::Many(many) => many,
        }
    }

    fn find(&self, facet: u64) -> Option<&Failing> {
        self.all().iter().find(|failing| failing.facet == facet)
    }

    fn find_mut(&mut self, facet: u64) -> Option<&mut Failing> {
        let all = match self {
            Self::One(only) => std::slice::from_mut(only),
            Self::Many(many) => many,
        };
        all.iter_mut().find(|failing| failing.facet == facet)
    }

    fn push(&mut self, failing: Failing) {
        let mut all = match std::mem::replace(self, Self::Many(Vec::new())) {
            Self::One(only) => vec![only],
            Self::Many(many) => many,
        };
        all.push(failing);
        *self = Self::Many(all);
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
