//! Holds docs/internals/reliability.md to the sources: no row without a test, and no fault tested here that
//! is missing from the page.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The tables of faults, attacks and the rest name a test in their last column. The table of what
/// others promise names none of our tests, and that of curl's is held by one for all.
const WITHOUT_TESTS: [&str; 2] = ["What others promise", "curl's own tests"];

#[test]
fn every_row_of_the_reliability_page_names_a_test_that_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/internals/reliability.md")).expect("the page is there");
    let known = tests_of(root);
    let (mut named, mut rows) = (BTreeSet::new(), 0);
    for section in page.split("\n## ").filter(|section| WITHOUT_TESTS.iter().all(|other| !section.starts_with(other))) {
        let mut lines = section.lines().peekable();
        while let Some(line) = lines.next() {
            let is_head = lines.peek().is_some_and(|next| next.starts_with("|---") || next.starts_with("|:--"));
            if !line.starts_with('|') || line.starts_with("|---") || line.starts_with("|:--") || is_head {
                continue;
            }
            rows += 1;
            let last = line.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or_default();
            let names: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
            assert!(!names.is_empty(), "a row without a test: {line}");
            for name in names {
                assert!(known.contains(name), "`{name}` is no test, fuzz target or command here, in: {line}");
                named.insert(name.to_owned());
            }
        }
    }
    assert!(rows > 20, "only {rows} rows were found: has the page another form?");
    let mut here = BTreeSet::new();
    for file in files(&root.join("tests/it/faults")) {
        here.extend(functions(&file));
    }
    let untold: Vec<&String> = here.difference(&named).filter(|name| *name != OWN).collect();
    assert!(untold.is_empty(), "rehearsed, and not in docs/internals/reliability.md: {untold:?}");
}

const OWN: &str = "every_row_of_the_reliability_page_names_a_test_that_is_there";

/// The names of everything that counts as a test: functions marked as one, and fuzz targets.
fn tests_of(root: &Path) -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for folder in ["tests", "src", "crates"] {
        for file in files(&root.join(folder)) {
            known.extend(functions(&file));
        }
    }
    for file in files(&root.join("fuzz/fuzz_targets")) {
        known.extend(file.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    known
}

/// The names of functions below a `#[test]` or `#[tokio::test]`, or in a `proptest!` block.
fn functions(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).expect("a source can be read");
    let mut names = Vec::new();
    let mut marked = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            marked |= line.contains("test]") || line.contains("test(");
        } else if let Some(rest) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") {
            if std::mem::take(&mut marked) {
                names.extend(rest.split('(').next().map(str::to_owned));
            }
        } else if !line.starts_with("//") {
            marked = false;
        }
    }
    names
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    found
}
