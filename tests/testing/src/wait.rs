//! Waits in real time, for what other processes do.

use std::time::Duration;

use crate::fetched::now;

/// Repeats `check` until it returns something; panics with `what` when `within` has passed.
pub fn wait_for<T>(what: &str, within: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let start = now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(start.elapsed() < within, "not within {within:?}: {what}");
        pause(Duration::from_millis(20));
    }
}

/// Lets real time pass, between two looks or because a test is about a time.
#[expect(clippy::disallowed_methods, reason = "other processes run on real time")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
