//! The identity of a key in the table.

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
    /// Returns the common key of all writes, DELETE included: one of them goes at a time.
    pub(crate) fn written(self) -> Self {
        Self { facet: written_facet(self.facet), ..self }
    }

    /// Returns the key of the DELETE for the key of the other writes, and the reverse. For a read it
    /// is a key that no call has.
    pub(crate) fn neighbour(self) -> Self {
        Self { facet: facet(self.facet, self == self.written()), ..self }
    }
}
