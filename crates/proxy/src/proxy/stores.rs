//! Sends a gate's requests to the stores of its shared buckets.

use std::sync::Arc;

use crate::limit::{Ask, StoreAnswer, StoreFailure};

/// Sends requests to the stores of shared buckets. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Stores")]
pub struct Stores(Arc<Hand>);

/// Receives the answers to a batch of requests; must be called once, whatever they are.
pub type Done = Box<dyn FnOnce(Vec<Result<StoreAnswer, StoreFailure>>) + Send>;

type Hand = dyn Fn(Vec<Ask>, Done) + Send + Sync;

// === impl Stores ===

impl Stores {
    /// Sends through `ask`; it gets all requests one gate has for one store at a time.
    pub fn new(ask: impl Fn(Vec<Ask>, Done) + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(super) fn ask(&self, asks: Vec<Ask>, done: Done) {
        (self.0)(asks, done);
    }
}

impl Default for Stores {
    /// Returns a value without a store: no request is ever answered.
    fn default() -> Self {
        Self::new(|asks, done| done(vec![Err(StoreFailure::Wrong); asks.len()]))
    }
}
