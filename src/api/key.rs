//! What failure is remembered for, and which connections a call uses.

use std::time::Duration;

/// Which upstream connections a call uses. Each group has its own, so that a flood of one never takes the other's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Leases and every other exempt call.
    Exempt,
    /// Calls that end.
    Short,
    /// Watches, followed logs, proxied calls.
    LongRunning,
    /// Calls that ask to switch protocols: each brings a connection of its own, so there is always room.
    Upgrades,
}

/// What failure is remembered for: an object (or collection, or path) and the part of it that a call touches.
///
/// The parts are hashes keyed by a per-process secret, so that looking up a healthy key costs no allocation and nobody outside can aim
/// for a collision (64 bits: with 100,000 failing keys one lookup in 10^14 errs). The readable name is made when a key starts to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The object: group, resource, namespace and name; or the path. Equal to `collection` where the collection itself is read.
    pub object: u64,
    /// The object's collection: group, resource and namespace; or the path.
    pub collection: u64,
    /// Verb class and subresource, from [`facet`].
    pub facet: u64,
}

/// A facet from the hash of what a call touches. A DELETE has a facet of its own, or a write that fails would keep its object from being
/// deleted. It is the neighbour of the facet of the other writes: where one write goes at a time, it is one of them.
#[must_use]
pub const fn facet(hash: u64, deletes: bool) -> u64 {
    if deletes { hash | DELETES } else { hash & !DELETES }
}

/// The facet of the other writes beside those that delete: the same for both.
#[must_use]
pub const fn written_facet(facet: u64) -> u64 {
    facet & !DELETES
}

/// The last bit tells a DELETE from the other writes.
const DELETES: u64 = 1;

// === impl Key ===

impl Key {
    /// Whether it is that of reading a collection or of discovery: only there are object and collection the same.
    #[must_use]
    pub const fn is_collection_read(&self) -> bool {
        self.object == self.collection
    }

    /// The longest delay that a failure of this key may bring, whatever the strategy says.
    #[must_use]
    pub const fn longest_delay(&self) -> Duration {
        if self.is_collection_read() { COLLECTION_READ_MAX } else { Duration::MAX }
    }
}

/// Informers back off by themselves, and a blind one hurts every object of its kind.
const COLLECTION_READ_MAX: Duration = Duration::from_secs(5);
