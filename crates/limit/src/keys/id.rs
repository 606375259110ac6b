//! The identity of a key in the table of failing keys.

use crate::key::{Key, facet, written_facet};

/// A key without its collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyId {
    pub(crate) object: u64,
    pub(crate) facet: u64,
}

// === impl KeyId ===

impl From<&Key> for KeyId {
    fn from(key: &Key) -> Self {
        Self { object: key.object, facet: key.facet }
    }
}

impl KeyId {
    /// Returns the key by which one write goes at a time: the same for all writes of an object, its
    /// DELETE among them.
    pub(crate) fn written(self) -> Self {
        Self { facet: written_facet(self.facet), ..self }
    }

    /// Returns the key of DELETE for that of the other writes, and the other way round; for a read,
    /// a key that no call has.
    pub(crate) fn neighbour(self) -> Self {
        Self { facet: facet(self.facet, self == self.written()), ..self }
    }
}
