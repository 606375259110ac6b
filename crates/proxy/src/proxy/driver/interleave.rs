//! Switching points for the model checker of the tests; they do nothing in a release.
//!
//! The driver's only shared state is behind std mutexes, none of them held at a switching point. So
//! a scheduler that switches only here sees every order of events that threads could produce.

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

/// Runs `story` under this many random schedules. If a task waits forever, it fails and names the
/// schedule to replay.
#[cfg(test)]
pub(super) fn under_schedules(schedules: usize, story: impl Fn() + Send + Sync + 'static) {
    MODELLED.set(true);
    shuttle::check_random(story, schedules);
    MODELLED.set(false);
}
