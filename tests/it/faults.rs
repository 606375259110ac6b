//! Faults around a gate, injected for real where a test can do that, next to what a direct
//! connection makes of the same fault.
//!
//! docs/internals/reliability.md has a row for each of these. A test that needs its own network or file
//! system runs itself again in its own namespaces; where it may not have them, it says that it was
//! skipped.

mod api;
mod clients;
mod descriptors;
mod disk;
mod doors;
mod frozen;
pub(crate) mod memory;
mod network;
mod resets;
mod restart;
mod state;
mod table;
mod throttled;

use std::fmt::Display;
use std::io::Write;
use std::process::Command;

/// Prints a figure for the report, past libtest's capture, so that it shows in a passing run.
fn say(line: impl Display) {
    // A closed stdout is no reason to fail a test.
    drop(writeln!(std::io::stdout().lock(), "faults: {line}"));
}

/// Runs the calling test again in its own namespaces (`--net`, `--mount`). True if this is that
/// second run; only then must the test go on.
fn is_alone(test: &str, namespaces: &[&str]) -> bool {
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return true;
    }
    let may = Command::new("unshare").args(namespaces).arg("true").output();
    if !may.as_ref().is_ok_and(|may| may.status.success()) {
        assert!(!crate::live::is_required(), "{test} needs `unshare {}`: {may:?}", namespaces.join(" "));
        say(format_args!("SKIPPED {test}: this user may not `unshare {}`", namespaces.join(" ")));
        return false;
    }
    let this = std::env::current_exe().expect("a test knows itself");
    let mut again = Command::new("unshare");
    again.args(namespaces).arg(this).args(["--exact", test, "--nocapture"]).env(ALONE, test);
    let done = again.output().expect("unshare was there a moment ago");
    let said = String::from_utf8_lossy(&done.stdout);
    said.lines().filter(|line| line.starts_with("faults: ")).for_each(|line| say(line.trim_start_matches("faults: ")));
    assert!(done.status.success() && said.contains("1 passed"), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    false
}

/// Runs a command that must succeed.
fn must(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

const ALONE: &str = "TIDEGATE_TEST_ALONE";
