//! Indexes of waiting calls, of queues and of groups of queues, and the arenas they point into.
//! Each kind of index is a type of its own, so that the compiler rejects an index of the wrong
//! kind.

use std::marker::PhantomData;
use std::num::NonZeroU32;

use slab::Slab;

/// A position in an arena. It is stored plus one, so that an `Option` of it takes no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Index<Kind>(NonZeroU32, PhantomData<Kind>);

/// The marker for the type of [`WaiterIndex`]; it has no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OfWaiter {}
/// The marker for the type of [`QueueIndex`]; it has no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OfQueue {}
/// The marker for the type of [`GroupIndex`]; it has no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OfGroup {}

/// The index of a waiting call.
pub(crate) type WaiterIndex = Index<OfWaiter>;
/// The index of a queue.
pub(crate) type QueueIndex = Index<OfQueue>;
/// The index of a queue group.
pub(crate) type GroupIndex = Index<OfGroup>;

/// A slab that is only indexed by indexes of its own `Kind`.
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

    /// Returns the number of entries there is room for, used or not. Every index is below it.
    pub(super) fn capacity(&self) -> usize {
        self.slab.capacity()
    }
}
