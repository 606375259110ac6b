//! Readiness, tracked by latches that tasks drop: a task need not say "ready", only finish.

use std::sync::{Arc, Mutex, Weak};

use crate::lock;
/// The tasks before the process is ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    latches: Arc<Mutex<Vec<Weak<str>>>>,
}

/// Held by a task that must finish before the process is ready.
#[derive(Debug)]
#[must_use = "dropping the latch says that this part is ready"]
pub struct Latch {
    _name: Arc<str>,
}

// === impl Readiness ===

impl Readiness {
    /// Creates a set without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a task that must finish first.
    pub fn latch(&self, name: &str) -> Latch {
        let name: Arc<str> = name.into();
        lock(&self.latches).push(Arc::downgrade(&name));
        Latch { _name: name }
    }

    /// Returns the names of unfinished tasks.
    pub fn waiting_for(&self) -> Vec<String> {
        let mut latches = lock(&self.latches);
        latches.retain(|latch| latch.strong_count() > 0);
        latches.iter().filter_map(Weak::upgrade).map(|name| (*name).to_owned()).collect()
    }
}
