//! Switching points for the model checker of the tests; nothing in the product.
//!
//! The driver's only shared state is behind std mutexes that are never held across one of these
//! points, so a scheduler that may switch here, and only here, sees every interleaving that threads
//! could.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
thread_local! {
    static MODELLED: Cell<bool> = const { Cell::new(false) };
}

/// Lets another thread run, in tests. No mutex may be held.
#[inline]
pub(super) fn point() {
    #[cfg(test)]
    if MODELLED.get() {
        // Not `yield_now`: that wakes the task as well, and a lost wakeup would go unnoticed.
        shuttle::thread::sleep(std::time::Duration::ZERO);
    }
}

/// Runs `story` under so many random schedules. Fails if a task waits without end, and names the
/// schedule to replay.
#[cfg(test)]
pub(super) fn under_schedules(schedules: usize, story: impl Fn() + Send + Sync + 'static) {
    MODELLED.set(true);
    shuttle::check_random(story, schedules);
    MODELLED.set(false);
}
