//! Every listener of the sources has a row in docs/internals/reliability.md that says what it holds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::sources;

/// The files that open sockets, how many, and the rows of their listeners.
const OPENED: &[(&str, usize, &[&str])] = &[
    ("crates/proxy/src/bind.rs", 3, &["admin port", "control socket", "webhook"]),
    ("src/demo/server.rs", 1, &["`demo`"]),
    ("crates/proxy/src/proxy/egress.rs", 2, &["egress", "egress.names"]),
    ("crates/proxy/src/proxy/gate.rs", 1, &["gates"]),
    ("crates/proxy/src/proxy/listener/socket.rs", 1, &[]),
];

/// The text of all files in a folder.
fn text_below(folder: &Path) -> String {
    let below = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable").path());
    below
        .map(|path| if path.is_dir() { text_below(&path) } else { fs::read_to_string(&path).unwrap_or_default() })
        .collect()
}

/// The code of a file before its tests.
fn shipped(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

#[test]
fn every_listener_has_its_bounds_in_the_table() {
    let mut opened = BTreeMap::new();
    for (file, _, text) in sources() {
        let name = file.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap_or(&file).to_owned();
        let of = |what: &str| shipped(&text).matches(what).count();
        let count = of("TcpListener::bind(") + of("UnixListener::bind(") + of("ListenSocket::bind(");
        let name = name.display().to_string();
        if count > 0 && !name.contains("tests") {
            opened.insert(name, count);
        }
    }
    let listed = OPENED.iter().map(|(file, count, _)| ((*file).to_owned(), *count));
    assert_eq!(opened, listed.collect(), "a listener without bounds, or one that is gone");

    let page = include_str!("../../../docs/internals/reliability.md");
    let table = page.split("## Listeners").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the section");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .map(|row| row.trim_matches('|').split(" | ").collect())
        .collect();
    let names: Vec<&str> = rows.iter().map(|row| row[0].trim()).collect();
    let listed: Vec<&str> = OPENED.iter().flat_map(|(_, _, rows)| *rows).copied().collect();
    let mut sorted = (names.clone(), listed);
    sorted.0.sort_unstable();
    sorted.1.sort_unstable();
    assert_eq!(sorted.0, sorted.1);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = text_below(&root.join("src")) + &text_below(&root.join("tests/it"));
    for row in rows {
        assert!(row.len() == 6 && row.iter().all(|cell| !cell.trim().is_empty()), "{row:?}");
        for test in row[5].split('`').skip(1).step_by(2) {
            assert!(tests.contains(&format!("fn {test}(")), "no test {test}");
        }
    }
}
