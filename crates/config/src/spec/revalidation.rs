//! The cache of answers to be revalidated.

/// The cache of a gate's answers: the upstream is only asked whether they have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revalidation {
    /// For each class id, true if answers are kept.
    pub classes: Vec<bool>,
    /// The most bytes to keep.
    pub max_bytes: usize,
}

// === impl Revalidation ===

impl Revalidation {
    /// Returns the most bytes to keep: zero if no class keeps any.
    pub fn bytes_in_use(&self) -> usize {
        if self.classes.contains(&true) { self.max_bytes } else { 0 }
    }
}
