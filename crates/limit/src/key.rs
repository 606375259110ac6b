//! The identity under which failures are remembered, and the group of connections that a call uses.

use std::time::Duration;

words! {
    /// The upstream connections that a call uses. Each group has its own, so that a flood in one
    /// never takes the streams of another.
    pub enum Group {
        /// Leases and every other exempt call.
        Exempt = "leases",
        /// Calls that end.
        Short = "short",
        /// Watches, followed logs, proxied calls that do not ask to switch.
        LongRunning = "long_running",
        /// Calls that ask to switch protocols: each brings a connection of its own, so there is
        /// always room.
        Upgrades = "upgrades",
    }
}

/// The identity under which failures are remembered: an object (or collection, or path) and the
/// part of it that a call touches.
///
/// The parts are hashes keyed by a per-process secret, so that the lookup of a healthy key costs no
/// allocation and no client can aim for a collision (64 bits: with 100,000 failing keys one lookup
/// in 10^14 errs). The readable name is made when a key starts to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The object: group, resource, namespace and name; or the path. Equal to `collection` if the
    /// collection itself is read.
    pub object: u64,
    /// The object's collection: group, resource and namespace; or the path.
    pub collection: u64,
    /// Verb class and subresource, from [`facet`].
    pub facet: u64,
}

/// Returns a facet from the hash of the part that a call touches. A DELETE has a facet of its own,
/// so that a failing write does not keep its object from being deleted. It is the neighbour of the
/// facet of the other writes: if one write goes at a time, a DELETE is one of them.
pub const fn facet(hash: u64, deletes: bool) -> u64 {
    if deletes { hash | DELETES } else { hash & !DELETES }
}

/// Returns the facet that a DELETE shares with the other writes.
pub const fn written_facet(facet: u64) -> u64 {
    facet & !DELETES
}

/// The last bit tells a DELETE from the other writes.
const DELETES: u64 = 1;

// === impl Key ===

impl Key {
    /// True for the key of a collection read or of discovery: only there are object and collection
    /// the same.
    pub const fn is_collection_read(&self) -> bool {
        self.object == self.collection
    }

    /// Returns the longest delay that a failure of this key may bring, whatever the strategy says.
    pub const fn longest_delay(&self) -> Duration {
        if self.is_collection_read() { COLLECTION_READ_MAX } else { Duration::MAX }
    }
}

/// Informers back off by themselves, and one that reads nothing hurts every object of its kind.
const COLLECTION_READ_MAX: Duration = Duration::from_secs(5);
