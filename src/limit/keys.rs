//! What is remembered of failing keys: readable, and settled for healthy keys, without the limiter's lock.
//!
//! Only failing keys are here, so that a healthy one costs one look-up and no memory (P4). All changes are made by the limiter's
//! `table::Table`, under its lock; this half is shared with the request path and the status page.

mod walk;

use std::{
    fmt,
    hash::{BuildHasherDefault, Hasher},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use dashmap::DashMap;

use super::{backoff::mix, permit::Receipt, verdict::KeyState};
use crate::{
    api::{Answer, Gone, Key, Outcome},
    moment::Moment,
};

/// What is remembered of failing keys.
pub struct Keys {
    /// By object: usually one facet of it fails. Boxed, because up to half of a table is room to grow.
    objects: DashMap<u64, Box<Facets>, Spread>,
    /// Failing keys by collection.
    collections: DashMap<u64, u32, Spread>,
    len: AtomicUsize,
    /// Whether successes matter beyond their keys: a pause grows until one.
    listening: AtomicBool,
}

/// One failing key.
#[derive(Debug)]
pub(super) struct Failing {
    pub(super) facet: u64,
    pub(super) collection: u64,
    pub(super) name: Box<str>,
    pub(super) state: KeyState,
    /// The latest time that the upstream named: only a success ends it, or that it comes.
    pub(super) named: Moment,
    /// It is forgotten then.
    pub(super) forget_at: Moment,
    /// Number of the last recorded failure, its lower half: a call that left before it says nothing new.
    pub(super) generation: u32,
    /// Number of the trial that is past the key stage; 0 when none is.
    pub(super) trial: u32,
}

/// What the limiter needs to know of a failing key.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) state: KeyState,
    pub(super) trial: u32,
    pub(super) forget_at: Moment,
}

/// The failing facets of one object: nearly always one, which needs no allocation of its own.
#[derive(Debug)]
pub(super) enum Facets {
    One(Failing),
    Many(Vec<Failing>),
}

/// Keys are secret hashes already; mixing only protects against numbers made by hand in tests and simulations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mixer(u64);

/// For tables by key.
pub(super) type Spread = BuildHasherDefault<Mixer>;

// === impl Keys ===

impl Keys {
    pub(super) fn new() -> Self {
        let (objects, collections) = (DashMap::default(), DashMap::default());
        Self { objects, collections, len: AtomicUsize::new(0), listening: AtomicBool::new(false) }
    }

    /// Whether an outcome changes nothing (the usual case: success of a healthy key), in which case the receipt is settled. No lock of
    /// the limiter needed.
    ///
    /// # Errors
    /// Gives the receipt back when `Limiter::finish` must be called with it.
    pub fn settle(&self, receipt: Receipt, answer: Answer) -> Result<(), Receipt> {
        let counts = match answer.outcome {
            Outcome::Failure | Outcome::Throttled { .. } => true,
            Outcome::Abandoned | Outcome::Neutral => {
                answer.gone != Gone::Nothing && self.holds(receipt.call().key.as_ref(), answer.gone == Gone::Object)
            }
            Outcome::Success => {
                self.holds(receipt.call().key.as_ref(), answer.gone == Gone::Object) || self.listening.load(Relaxed)
            }
        };
        if counts || answer.throttled || answer.pause.is_some() || receipt.holds_key() { Err(receipt) } else { Ok(()) }
    }

    /// Whether any key of the collection fails, so that names in bodies are worth reading.
    #[must_use]
    pub fn any_failing_in(&self, collection: u64) -> bool {
        !self.is_empty() && self.collections.contains_key(&collection)
    }

    /// Failing keys.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Whether no key fails.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every failing key by name, in no order. It takes as long as there are keys: for tests and simulations.
    #[must_use]
    pub fn list(&self, now: Moment) -> Vec<(String, Key, KeyState)> {
        let mut found = Vec::with_capacity(self.len());
        for entry in &self.objects {
            for failing in entry.value().iter().filter(|failing| failing.forget_at > now) {
                let key = Key { object: *entry.key(), collection: failing.collection, facet: failing.facet };
                found.push((failing.name.to_string(), key, failing.state));
            }
        }
        found
    }

    /// Whether every success is to be told to the limiter.
    pub(super) fn listen(&self, listening: bool) {
        self.listening.store(listening, Relaxed);
    }

    /// What is known of a key, if it fails.
    #[inline]
    pub(super) fn view(&self, key: &Key, now: Moment) -> Option<View> {
        if self.is_empty() {
            return None;
        }
        let facets = self.objects.get(&key.object)?;
        let failing = facets.find(key.facet).filter(|failing| failing.forget_at > now)?;
        Some(View { state: failing.state, trial: failing.trial, forget_at: failing.forget_at })
    }

    /// Changes a failing key in place.
    pub(super) fn change<T>(&self, object: u64, facet: u64, change: impl FnOnce(&mut Failing) -> T) -> Option<T> {
        let mut facets = self.objects.get_mut(&object)?;
        facets.find_mut(facet).map(change)
    }

    /// Adds a key that is not there yet.
    pub(super) fn add(&self, object: u64, failing: Failing) {
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
    pub(super) fn remove(&self, object: u64, facet: u64) -> Option<Failing> {
        let removed = match self.objects.entry(object) {
            dashmap::Entry::Vacant(_) => None,
            dashmap::Entry::Occupied(mut facets) => match facets.get_mut().as_mut() {
                Facets::One(only) if only.facet != facet => None,
                Facets::One(_) => facets.remove().into_iter().next(),
                Facets::Many(many) => {
                    let at = many.iter().position(|failing| failing.facet == facet)?;
                    let removed = many.swap_remove(at);
                    if many.is_empty() {
                        facets.remove();
                    }
                    Some(removed)
                }
            },
        }?;
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

    /// The failing facets of an object.
    pub(super) fn facets(&self, object: u64) -> Vec<u64> {
        self.objects.get(&object).map(|facets| facets.iter().map(|failing| failing.facet).collect()).unwrap_or_default()
    }

    /// The facet of an object whose time comes first, and when.
    pub(super) fn earliest(&self, object: u64, time: fn(&Failing) -> Moment) -> Option<(Moment, u64)> {
        let facets = self.objects.get(&object)?;
        facets.iter().map(|failing| (time(failing), failing.facet)).min()
    }

    /// Whether a key (or, with `whole`, any key of its object) is here.
    #[inline]
    fn holds(&self, key: Option<&Key>, whole: bool) -> bool {
        let Some(key) = key.filter(|_| !self.is_empty()) else { return false };
        self.objects.get(&key.object).is_some_and(|facets| whole || facets.find(key.facet).is_some())
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failing keys", self.len())
    }
}

// === impl Failing ===

impl Failing {
    /// Whether a call that left when so many failures were known says nothing new. Half of a number is enough: two billion failures would
    /// have to lie between a call and what it is compared with.
    pub(super) fn is_news_to(&self, left: u64) -> bool {
        low(left).wrapping_sub(self.generation) > u32::MAX / 2
    }

    /// Notes that it failed, as failure number `failures` of all.
    pub(super) fn count(&mut self, failures: u64) {
        self.generation = low(failures);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
fn low(number: u64) -> u32 {
    number as u32
}

// === impl Facets ===

impl Facets {
    fn iter(&self) -> impl Iterator<Item = &Failing> {
        match self {
            Self::One(only) => std::slice::from_ref(only),
            Self::Many(many) => many.as_slice(),
        }
        .iter()
    }

    fn find(&self, facet: u64) -> Option<&Failing> {
        self.iter().find(|failing| failing.facet == facet)
    }

    fn find_mut(&mut self, facet: u64) -> Option<&mut Failing> {
        let all = match self {
            Self::One(only) => std::slice::from_mut(only),
            Self::Many(many) => many.as_mut_slice(),
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

    fn into_iter(self) -> impl Iterator<Item = Failing> {
        let (one, many) = match self {
            Self::One(only) => (Some(only), Vec::new()),
            Self::Many(many) => (None, many),
        };
        one.into_iter().chain(many)
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
