//! The identity of a key in the table.

use crate::key::{Key, facet, written_facet};

/// A [`Key`](crate::key::Key) without its collection.
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
    /// Returns one common key for all writes of the object, DELETE included, to let only one of
    /// them be in progress.
    pub(crate) fn written(self) -> Self {
        Self { facet: written_facet(self.facet), ..self }
    }

    /// Returns the key of the object's DELETE if this is the key of its other writes, and the
    /// reverse. For a read the result is a key that no call has.
    pub(crate) fn neighbour(self) -> Self {
        Self { facet: facet(self.facet, self == self.written()), ..self }
    }
}
