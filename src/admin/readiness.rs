//! Readiness by dropped latches: no task has to remember to say "ready"; it only has to finish.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The tasks that must finish before the process is ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    latches: Arc<Mutex<Vec<Weak<str>>>>,
}

/// Held by a task that must finish; dropping it means that the task is done.
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

    /// Adds a task to wait for.
    pub fn latch(&self, name: &str) -> Latch {
        let name: Arc<str> = name.into();
        self.latches.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&name));
        Latch { _name: name }
    }

    /// Returns the tasks that have not finished.
    pub fn waiting_for(&self) -> Vec<String> {
        let mut latches = self.latches.lock().unwrap_or_else(PoisonError::into_inner);
        latches.retain(|latch| latch.strong_count() > 0);
        latches.iter().filter_map(Weak::upgrade).map(|name| (*name).to_owned()).collect()
    }
}
