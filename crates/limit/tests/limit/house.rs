//! The sources of the limiter: who may see what, and who calls whom.
//!
//! A call is an arrow from the file where it stands to the file that defines the method, if only
//! one file defines a method or function of that name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Arrows = BTreeMap<String, BTreeSet<String>>;

#[test]
fn other_files_see_no_field_of_the_limiter() {
    let sources = sources();
    let fields = blocks(&sources["limiter"], "pub struct Limiter ").next().expect("it has fields");
    assert!(fields.contains(':') && !fields.contains("pub"), "{fields}");
}

#[test]
fn the_limiter_has_at_most_60_methods() {
    let methods = |text: &String| blocks(text, "\nimpl Limiter ").map(|body| names(body).len()).sum::<usize>();
    let count: usize = sources().values().map(methods).sum();
    assert!((1..=60).contains(&count), "{count} methods");
}

#[test]
fn no_struct_has_more_than_15_fields() {
    let is_field = |line: &&str| line.starts_with("    ") && !line.starts_with("     ") && line.contains(": ");
    for (file, text) in sources() {
        for fields in blocks(&text, "struct ") {
            let count = fields.lines().filter(is_field).count();
            assert!(count <= 15, "{file}: {count} fields: {fields}");
        }
    }
}

#[test]
fn at_most_two_files_call_each_other_in_a_ring() {
    let arrows = arrows(&sources());
    assert!(arrows.len() > 20, "files call each other: {arrows:?}");
    for from in arrows.keys() {
        let ring: BTreeSet<_> =
            reach(&arrows, from).into_iter().filter(|to| reach(&arrows, to).contains(from)).collect();
        assert!(ring.len() <= 2, "a ring of calls: {ring:?}");
    }
}

#[test]
fn a_ring_of_three_files_is_found() {
    let file =
        |name: &str, calls: &str| (name.to_owned(), format!("    fn of_{name}(&self) {{ self.of_{calls}() }}\n"));
    let arrows = arrows(&[file("a", "b"), file("b", "c"), file("c", "a")].into());
    assert_eq!(reach(&arrows, "a").len(), 3);
}

/// Every file by its path, without comments and tests.
fn sources() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                let name = path.strip_prefix(&root).expect("below it").with_extension("");
                found.insert(name.display().to_string(), lines.flat_map(|line| [line, "\n"]).collect());
            }
        }
    }
    found
}

/// The texts from after each `start` to the end of its block, if it has one.
fn blocks<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    let block = |after: &'a str| {
        after.split("\n}").next().filter(|block| !block.lines().next().is_some_and(|line| line.ends_with(';')))
    };
    text.split(start).skip(1).filter_map(block)
}

/// The names of the functions that a text defines.
fn names(text: &str) -> BTreeSet<String> {
    let name = |rest: &str| rest.split(|c| !is_word(c)).next().unwrap_or_default().to_owned();
    let is_start = |before: &str| before.trim().is_empty() || before.trim().starts_with("pub");
    let defined = text.lines().filter_map(|line| line.split_once("fn ")).filter(|(before, _)| is_start(before));
    defined.map(|(_, rest)| name(rest)).collect()
}

/// The names of the methods and associated functions that a text calls.
fn calls(text: &str) -> BTreeSet<String> {
    let of = |before: &str| {
        let receiver = before.trim_end_matches(is_word);
        let name = before.strip_prefix(receiver).unwrap_or_default();
        (receiver.ends_with(['.', ':']) && !STANDARD.contains(&name)).then(|| name.to_owned())
    };
    text.split('(').filter_map(of).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Names of ours that collections and iterators of the standard library have too.
const STANDARD: [&str; 11] =
    ["any", "capacity", "clamp", "collect", "copied", "count", "iter_mut", "last", "map", "pop", "replace"];

fn arrows(sources: &BTreeMap<String, String>) -> Arrows {
    let mut homes: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    for (file, text) in sources {
        names(text).into_iter().for_each(|name| homes.entry(name).or_default().push(file));
    }
    let home = |name: String| homes.get(&name).filter(|homes| homes.len() == 1).map(|homes| homes[0].clone());
    let of = |(file, text): (&String, &String)| {
        let to = calls(text).into_iter().filter_map(home).filter(|to| to != file).collect();
        (file.clone(), to)
    };
    sources.iter().map(of).collect()
}

/// The files that calls lead to from one.
fn reach(arrows: &Arrows, from: &str) -> BTreeSet<String> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(file) = next.pop() {
        next.extend(arrows.get(&file).into_iter().flatten().filter(|to| reached.insert((*to).clone())).cloned());
    }
    reached
}
