//! The cache of answers to revalidate.

/// The cache of a gate's answers: its upstream is asked only if they have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revalidation {
    /// True for the classes with kept answers, by class id.
    pub classes: Vec<bool>,
    /// The most bytes to keep.
    pub max_bytes: usize,
}

// === impl Revalidation ===

impl Revalidation {
    /// Returns the most bytes to keep: none if no class keeps any.
    pub fn bytes_in_use(&self) -> usize {
        if self.classes.contains(&true) { self.max_bytes } else { 0 }
    }
}
