//! The room that answers take, until the last who holds one lets go of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that are taken by all.
#[derive(Default)]
pub(super) struct Taken(Arc<AtomicUsize>);

/// Room that was taken, given back when dropped.
#[derive(Default)]
pub(super) struct Room {
    bytes: usize,
    all: Option<Arc<AtomicUsize>>,
}

// === impl Taken ===

impl Taken {
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self, bytes: usize) -> Room {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Room { bytes, all: Some(Arc::clone(&self.0)) }
    }
}

// === impl Room ===

impl Room {
    /// Takes over the room of another.
    pub(super) fn join(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
        self.all = self.all.take().or_else(|| other.all.take());
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(all) = &self.all {
            all.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}
