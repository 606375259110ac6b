//! Shares of a common memory bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// One owner's part of a common count of bytes, subtracted when dropped.
#[derive(Default)]
pub(crate) struct Share {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

// === impl Share ===

impl Share {
    pub(crate) fn of(all: &Arc<AtomicUsize>) -> Self {
        Self { all: Arc::clone(all), bytes: 0 }
    }

    /// Returns the bytes of this owner.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of all owners.
    pub(crate) fn total(&self) -> usize {
        self.all.load(Relaxed)
    }

    /// Sets the bytes of this owner, and returns those of all.
    pub(crate) fn set(&mut self, bytes: usize) -> usize {
        let change = bytes.wrapping_sub(self.bytes); // wraps if there are fewer, as `fetch_add` does
        self.bytes = bytes;
        if change == 0 { self.total() } else { self.all.fetch_add(change, Relaxed).wrapping_add(change) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}
