//! The stores of shared buckets: where the gates of one process, or of many, keep what they share.
//!
//! A gate hands its questions on with a function to call with what came of each. Nothing here knows
//! a gate or a limit; nothing of a call is ever in a store.

mod memory;

use std::sync::Arc;

use self::memory::Memory;
use crate::clock::Clock;
use crate::limit::{Answer, Ask, Away};

/// Every store of the process.
#[derive(Debug)]
pub(crate) struct Stores {
    memory: Memory,
}

/// Takes what came of a question.
pub(crate) type Done = Box<dyn FnOnce(Result<Answer, Away>) + Send>;

// === impl Stores ===

impl Stores {
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { memory: Memory::new(clock) })
    }

    /// Asks the store of a shared bucket. `done` is called once, here or later.
    pub(crate) fn ask(&self, ask: &Ask, done: Done) {
        done(Ok(self.memory.ask(ask)));
    }
}
