//! The settings of the response cache.

/// The cache of a gate's responses. The upstream is asked only whether a response has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revalidation {
    /// For each class id, true if responses are cached.
    pub classes: Vec<bool>,
    /// The size of the cache, in bytes.
    pub max_bytes: usize,
}

// === impl Revalidation ===

impl Revalidation {
    /// Returns the size of the cache in bytes; zero if no class uses it.
    pub fn bytes_in_use(&self) -> usize {
        if self.classes.contains(&true) { self.max_bytes } else { 0 }
    }
}
