//! The answers that a gate keeps, to ask its upstream only if they have changed.

/// The answers that a gate keeps, to ask only if they have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revalidation {
    /// True for the classes whose answers are kept, by class id.
    pub classes: Vec<bool>,
    /// The most bytes that are kept.
    pub max_bytes: usize,
}

// === impl Revalidation ===

impl Revalidation {
    /// Returns the most bytes that will be kept: none if no class keeps any.
    pub fn bytes_in_use(&self) -> usize {
        if self.classes.contains(&true) { self.max_bytes } else { 0 }
    }
}
