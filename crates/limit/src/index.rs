//! Indexes of waiting calls, queues and queue groups, each of a type of its own, and their arenas.

use std::marker::PhantomData;
use std::num::NonZeroU32;

use slab::Slab;

/// A place in an arena. It is stored one higher, so that an `Option` of it takes no more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Index<Kind>(NonZeroU32, PhantomData<Kind>);

/// The kind of a [`WaiterIndex`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OfWaiter {}
/// The kind of a [`QueueIndex`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OfQueue {}
/// The kind of a [`GroupIndex`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OfGroup {}

/// The index of a waiting call.
pub(crate) type WaiterIndex = Index<OfWaiter>;
/// The index of a queue.
pub(crate) type QueueIndex = Index<OfQueue>;
/// The index of a queue group.
pub(crate) type GroupIndex = Index<OfGroup>;

/// A slab for indexes of its own kind.
#[derive(Debug)]
pub(crate) struct Arena<Kind, T> {
    slab: Slab<T>,
    kind: PhantomData<Kind>,
}

// === impl Index ===

impl<Kind> Index<Kind> {
    pub(super) fn at(place: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(u32::try_from(place).unwrap_or(u32::MAX)), PhantomData)
    }

    pub(super) fn offset(self) -> usize {
        self.0.get() as usize - 1
    }
}

// === impl Arena ===

impl<Kind, T> Default for Arena<Kind, T> {
    fn default() -> Self {
        Self { slab: Slab::new(), kind: PhantomData }
    }
}

impl<Kind, T> Arena<Kind, T> {
    pub(super) fn insert(&mut self, value: T) -> Index<Kind> {
        Index::at(self.slab.insert(value))
    }

    pub(super) fn remove(&mut self, index: Index<Kind>) -> Option<T> {
        self.slab.try_remove(index.offset())
    }

    pub(super) fn get(&self, index: Index<Kind>) -> Option<&T> {
        self.slab.get(index.offset())
    }

    pub(super) fn get_mut(&mut self, index: Index<Kind>) -> Option<&mut T> {
        self.slab.get_mut(index.offset())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slab.iter().map(|(_, value)| value)
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns an upper bound of all places.
    pub(super) fn capacity(&self) -> usize {
        self.slab.capacity()
    }
}
