//! The way of a gate to the stores of its shared buckets.

use std::sync::Arc;

use crate::limit::{Ask, StoreAnswer, StoreFailure};

/// Takes the questions to the stores of shared buckets. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Stores")]
pub struct Stores(Arc<Hand>);

/// Takes the results of a question; to be called once, whatever they are.
pub type Done = Box<dyn FnOnce(Vec<Result<StoreAnswer, StoreFailure>>) + Send>;

type Hand = dyn Fn(Vec<Ask>, Done) + Send + Sync;

// === impl Stores ===

impl Stores {
    /// Hands each question to `ask`: what the members of one gate ask one store at one time.
    pub fn new(ask: impl Fn(Vec<Ask>, Done) + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(super) fn ask(&self, asks: Vec<Ask>, done: Done) {
        (self.0)(asks, done);
    }
}

impl Default for Stores {
    /// No store: nothing answers.
    fn default() -> Self {
        Self::new(|asks, done| done(vec![Err(StoreFailure::Wrong); asks.len()]))
    }
}
