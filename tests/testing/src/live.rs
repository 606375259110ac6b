//! Tests that need more than Rust and a C compiler: Go, a store, a browser, the network.
//!
//! `TIDEGATE_LIVE=1` runs them, and makes a missing program a failure. Otherwise each says that it
//! is skipped, and passes.

use std::io::Write as _;

/// Returns true if everything has to be there.
pub fn is_required() -> bool {
    std::env::var_os("TIDEGATE_LIVE").is_some_and(|value| value == "1")
}

/// Returns an error unless everything has to be there.
pub fn required() -> Result<(), String> {
    if is_required() { Ok(()) } else { Err("TIDEGATE_LIVE=1 runs it".to_owned()) }
}

/// Returns what was found. Otherwise prints the reason and returns `None`.
///
/// # Panics
/// If something is missing where everything has to be there.
pub fn or_skip<T>(test: &str, found: Result<T, String>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(why) => {
            assert!(!is_required(), "TIDEGATE_LIVE=1, but {test} misses a program: {why}");
            // Past libtest's capture, so that it shows in a run that passes.
            drop(writeln!(std::io::stdout().lock(), "SKIPPED {test}: {why}"));
            None
        }
    }
}
