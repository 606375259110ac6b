//! Turns of the tests: two cores cannot carry a herd, or a compiler, and measure a latency at the
//! same time.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURN: RwLock<()> = RwLock::new(());

/// Until this is dropped, only light tests run, and nothing is built.
pub fn light() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Until this is dropped, no other test that takes a turn runs.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}
