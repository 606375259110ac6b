//! Locks that a panic does not poison: no state is left half-way where one is held.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
