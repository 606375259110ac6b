//! Holds the core to the answers of the originals, client-go, Crossplane and kube-apiserver, by the
//! vectors in `tests/golden`.
//!
//! `tests/golden/README.md` describes what was run and how. `tests/golden/DIFFERENCES.md` describes
//! where tidegate differs on purpose, and names the tests here that hold those differences.

mod backoff;
mod bucket;
mod controller;
mod durations;
mod gate;
mod limits;
mod refusals;
mod regenerate;
mod requestinfo;

use std::fs;
use std::path::PathBuf;

use serde::de::DeserializeOwned;

/// The committed vectors of one file.
fn vectors<T: DeserializeOwned>(name: &str) -> T {
    let path = folder().join("vectors").join(name).with_extension("json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The Go module that writes them.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Fails with the first few differences, and their number.
#[track_caller]
fn none(wrong: &[String], of: usize) {
    assert!(wrong.is_empty(), "{} of {of} differ:\n{}", wrong.len(), wrong[..wrong.len().min(25)].join("\n"));
}
