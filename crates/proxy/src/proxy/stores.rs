//! Sends a gate's requests to the stores of its shared buckets.

use std::sync::Arc;

use crate::limit::{Ask, StoreAnswer, StoreFailure};

/// Sends requests to the stores of shared buckets. Cheap to clone.
#[derive(Clone, derive_more::Debug)]
#[debug("Stores")]
pub struct Stores(Arc<Hand>);

/// The callback for the answers to a batch of requests. It must be called once, even if all
/// requests fail.
pub type Done = Box<dyn FnOnce(Vec<Result<StoreAnswer, StoreFailure>>) + Send>;

type Hand = dyn Fn(Vec<Ask>, Done) + Send + Sync;

// === impl Stores ===

impl Stores {
    /// Makes a sender that calls `ask` with each batch: the requests of one gate to one store.
    pub fn new(ask: impl Fn(Vec<Ask>, Done) + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(super) fn ask(&self, asks: Vec<Ask>, done: Done) {
        (self.0)(asks, done);
    }
}

impl Default for Stores {
    /// Returns a sender without stores: every request fails at once.
    fn default() -> Self {
        Self::new(|asks, done| done(vec![Err(StoreFailure::Wrong); asks.len()]))
    }
}
