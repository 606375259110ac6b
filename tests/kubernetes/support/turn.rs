//! Turns of the tests: two cores cannot carry a herd and measure a latency at the same time.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURN: RwLock<()> = RwLock::new(());

/// Until this is dropped, other light tests may run.
pub(crate) fn light() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Until this is dropped, no other test of this target runs.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}
