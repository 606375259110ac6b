//! Keys for remembering failures, and the groups of connections.

use std::time::Duration;

words! {
    /// A group of upstream connections. Each has connections of its own, so that a flood in one
    /// group never takes the streams of another.
    pub enum Group {
        /// Leases and every other exempt call.
        Exempt = "leases",
        /// Short calls.
        Short = "short",
        /// Watches, followed logs, and proxied calls without an upgrade.
        LongRunning = "long_running",
        /// Upgrades to another protocol. Each has a connection of its own, so there is always
        /// room.
        Upgrades = "upgrades",
    }
}

/// A key: failures are remembered for it. It is an object, a collection or a path, and a part of
/// that.
///
/// The parts are hashes with a secret of the process, so that a lookup allocates nothing and no
/// client can aim for a collision. With 100,000 failing keys, one lookup in 10^14 errs. The readable
/// name is made when a key starts to fail.
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

/// Returns the facet for the hash of a part of an object.
///
/// A DELETE has a facet of its own, so that a failing write does not keep its object from being
/// deleted. It differs in one bit from the facet of the other writes: where one write goes at a
/// time, a DELETE is one of them.
pub const fn facet(hash: u64, deletes: bool) -> u64 {
    if deletes { hash | DELETES } else { hash & !DELETES }
}

/// Returns the facet of all writes, DELETE included.
pub const fn written_facet(facet: u64) -> u64 {
    facet & !DELETES
}

/// The bit of a DELETE.
const DELETES: u64 = 1;

// === impl Key ===

impl Key {
    /// Returns true for the key of a collection read or of discovery: its object is its collection.
    pub const fn is_collection_read(&self) -> bool {
        self.object == self.collection
    }

    /// Returns the limit on the delay after a failure of this key, whatever the strategy.
    pub const fn longest_delay(&self) -> Duration {
        if self.is_collection_read() { COLLECTION_READ_MAX } else { Duration::MAX }
    }
}

// Informers back off by themselves, and an informer that cannot read hurts every object of its kind.
const COLLECTION_READ_MAX: Duration = Duration::from_secs(5);
