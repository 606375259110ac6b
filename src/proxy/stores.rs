//! The way of a gate to the stores of its shared buckets.

use std::fmt;
use std::sync::Arc;

use crate::limit::{Answer, Ask, Away};

/// Takes the questions to the stores of shared buckets. Cheap to clone.
#[derive(Clone)]
pub struct Stores(Arc<Hand>);

/// Takes what came of a question; to be called once, whatever that is.
pub type Done = Box<dyn FnOnce(Result<Answer, Away>) + Send>;

type Hand = dyn Fn(&Ask, Done) + Send + Sync;

// === impl Stores ===

impl Stores {
    /// Hands each question to `ask`.
    pub fn new(ask: impl Fn(&Ask, Done) + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(super) fn ask(&self, ask: &Ask, done: Done) {
        (self.0)(ask, done);
    }
}

impl Default for Stores {
    /// No store: nothing answers.
    fn default() -> Self {
        Self::new(|_, done| done(Err(Away::Wrong)))
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stores")
    }
}
