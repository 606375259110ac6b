//! The memory of the process as a store, for buckets shared by gates of one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::clock::Clock;
use crate::limit::{Ask, BucketPart, Ledger, StoreAnswer};
use tidegate_upstream::lock;

/// The buckets shared by gates of this process.
#[derive(Debug)]
pub(super) struct Memory {
    clock: Clock,
    ledgers: Mutex<Ledgers>,
}

/// The shared buckets by name and part.
type Ledgers = HashMap<(Arc<str>, Option<BucketPart>), Ledger>;

// === impl Memory ===

impl Memory {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, ledgers: Mutex::default() }
    }

    /// Answers a request at once.
    pub(super) fn ask(&self, ask: &Ask) -> StoreAnswer {
        let mut ledgers = lock(&self.ledgers);
        let name = Arc::clone(&ask.shared.name);
        let now = self.clock.now().as_nanos() / 1000;
        // Names come from the configuration, so they are few; parts come from clients.
        if ledgers.len() >= MOST && !ledgers.contains_key(&(Arc::clone(&name), ask.part)) {
            ledgers.retain(|(_, part), ledger| part.is_none() || !ledger.is_idle(now));
        }
        ledgers.entry((name, ask.part)).or_default().ask(ask, now)
    }
}

/// The number of buckets at which full and unused parts of split buckets begin to be dropped.
const MOST: usize = 1000;
