//! The committed vectors are, byte for byte, what the committed module versions print. Needs Go.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::live::{self, or_skip};

#[test]
fn the_committed_vectors_are_what_the_originals_answer() {
    if or_skip("the committed vectors", live::required().and_then(|()| modules())).is_none() {
        return;
    }
    let fresh = tempfile::tempdir().expect("a folder");
    let run = go(&["test", "-count=1", "-vet=off", ".", "-args", "-vectors", &fresh.path().to_string_lossy()])
        .expect("go was there a moment ago");
    assert!(run.status.success(), "{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));

    let committed = super::folder().join("vectors");
    assert_eq!(names(&committed), names(fresh.path()), "other files are written than are committed");
    for name in names(&committed) {
        let [old, new] = [&committed, fresh.path()].map(|folder| fs::read(folder.join(&name)).expect("it was listed"));
        assert!(
            old == new,
            "{name} is not what the originals answer: run `go test -count=1 .` in tests/golden and see what changed"
        );
    }
}

/// Checks that the vectors can be made: Go is installed, and the modules can be fetched.
fn modules() -> Result<(), String> {
    let list = go(&["list", "-deps", "-test", "."]).map_err(|error| format!("go cannot be run: {error}"))?;
    if list.status.success() {
        return Ok(());
    }
    Err(format!("the Go modules of tests/golden cannot be had: {}", String::from_utf8_lossy(&list.stderr).trim()))
}

fn go(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new("go").args(arguments).current_dir(super::folder()).output()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}
