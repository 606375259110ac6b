//! The memory of the process as a store: for the gates of one process that share a bucket.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Clock;
use crate::limit::{Answer, Ask, Ledger};

/// The shared buckets of this process.
#[derive(Debug)]
pub(super) struct Memory {
    clock: Clock,
    ledgers: Mutex<HashMap<Arc<str>, Ledger>>,
}

// === impl Memory ===

impl Memory {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, ledgers: Mutex::default() }
    }

    /// Answers a question at once.
    pub(super) fn ask(&self, ask: &Ask) -> Answer {
        let mut ledgers = self.ledgers.lock().unwrap_or_else(PoisonError::into_inner);
        // Names come from the configuration, so they are few.
        let ledger = ledgers.entry(Arc::clone(&ask.shared.name)).or_default();
        ledger.ask(ask, self.clock.now().as_nanos() / 1000)
    }
}
