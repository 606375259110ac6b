//! Keys (objects and operations with remembered failures), and the groups of upstream
//! connections.

use std::time::Duration;

words! {
    /// A group of upstream connections. Each has connections of its own, so that a flood in one
    /// group never takes the streams of another.
    pub enum Group {
        /// Leases, and every other call of an exempt class.
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

/// A key for remembering failures: an object, a collection or a path, and an operation
/// on it.
///
/// The fields are hashes with a secret of the process, so that a lookup allocates nothing and no
/// client can aim for a collision. With 100,000 failing keys, one lookup in 10^14 errs. The
/// readable name is made when a key starts to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Hash of the object: group, resource, namespace and name; or of the path. Equal to
    /// `collection` if the collection itself is read.
    pub object: u64,
    /// Hash of the object's collection: group, resource and namespace; or of the path.
    pub collection: u64,
    /// Hash of the operation: kind of verb (read, write, delete) and subresource. Made by
    /// [`facet`].
    pub facet: u64,
}

/// Makes the `facet` of a key from the hash of the kind of verb and the subresource.
///
/// A DELETE has a facet of its own, so that a failing write does not keep its object from being
/// deleted. It differs in one bit from the facet of the other writes, so that both can be counted
/// together where writes go one at a time.
pub const fn facet(hash: u64, deletes: bool) -> u64 {
    if deletes { hash | DELETES } else { hash & !DELETES }
}

/// Returns the `facet` shared by all writes of an object, DELETE included.
pub const fn written_facet(facet: u64) -> u64 {
    facet & !DELETES
}

/// The bit of a `facet` set for a DELETE and clear for all other operations.
const DELETES: u64 = 1;

// === impl Key ===

impl Key {
    /// Returns true for the key of a collection read or of discovery: its object is its collection.
    pub const fn is_collection_read(&self) -> bool {
        self.object == self.collection
    }

    /// Returns the upper limit of the delay after a failure of this key, whatever the backoff
    /// strategy says.
    pub const fn longest_delay(&self) -> Duration {
        if self.is_collection_read() { COLLECTION_READ_MAX } else { Duration::MAX }
    }
}

// Informers back off by themselves, and an informer that cannot read hurts every object of its kind.
const COLLECTION_READ_MAX: Duration = Duration::from_secs(5);
