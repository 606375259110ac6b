//! The rate at which one object may be called, as far as the limiter enforces it.

use super::Policy;

// === impl Policy ===

impl Policy {
    /// True if a class refuses calls of an object that is called too often.
    pub(crate) fn enforces_per_key(&self) -> bool {
        self.classes.iter().any(|class| class.per_key.is_some_and(|per_key| per_key.enforce))
    }
}
