//! Finds the key that an unknown key or variable was meant to be: one of a similar name, of the same
//! name in another table, or the one that other programs call so.

use std::cmp::Reverse;

use super::layers::squeezed;
use super::path::Path;
use super::problems::{alternatives, nearest};
use super::record::Record;

/// Returns the keys that the unknown key at `path` may mean: the best guesses, if there are any.
pub(super) fn by_key(path: &Path, record: &Record) -> Vec<Path> {
    let Some((table, name)) = path.split_last() else { return Vec::new() };
    let known: Vec<&str> = record.keys(&table).iter().map(|key| key.name.as_str()).collect();
    if let Some(near) = nearest(name, &known) {
        return vec![table.key(near)];
    }
    let meant: Vec<String> = elsewhere(name).split('.').map(str::to_owned).collect();
    let found: Vec<Path> = record.all().filter(|key| key.0.ends_with(&meant)).collect();
    let shared = |key: &Path| key.0.iter().zip(&path.0).take_while(|(one, other)| one == other).count();
    let distance = |key: &Path| (Reverse(shared(key)), key.0.len());
    let least = found.iter().map(distance).min();
    found.into_iter().filter(|key| Some(distance(key)) == least).collect()
}

/// Returns ` (did you mean "bucket.rate"?)` for the unknown key at `path`, or an empty text. Keys
/// of the same table are named from there.
pub(super) fn suggestion(path: &Path, meant: &[Path]) -> String {
    let table = path.parent().unwrap_or_default();
    let names: Vec<String> =
        meant.iter().map(|meant| meant.below(&table).as_ref().unwrap_or(meant).to_string()).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(" (did you mean {}?)", alternatives(&names.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// Returns the key that the unknown variable `name` means by its letters.
pub(super) fn by_variable(name: &str, record: &Record) -> Option<Path> {
    let word = squeezed(name);
    let word = word.strip_prefix("TIDEGATE").filter(|word| !word.is_empty())?;
    let is_meant =
        |key: &Path| squeezed(&key.0.concat()).ends_with(word) && !key.0.iter().any(|step| step.starts_with('['));
    record.all().filter(is_meant).min_by_key(|key| key.0.len())
}

/// Returns the key that other programs call `name`, or else the name.
fn elsewhere(name: &str) -> &str {
    ELSEWHERE.iter().find(|(names, _)| names.contains(&name)).map_or(name, |(_, key)| *key)
}

/// Names that other programs have for keys of a gate.
const ELSEWHERE: [(&[&str], &str); 5] = [
    (&["qps", "rps", "limit", "rate_limit", "requests_per_second", "calls_per_second"], "bucket.rate"),
    (&["max_in_flight", "max_inflight", "max_concurrent", "concurrency"], "in_flight.max"),
    (&["url", "server", "endpoint", "base_url", "target", "backend"], "upstream"),
    (&["port", "address", "bind"], "listen"),
    (&["token", "token_file", "secret"], "credential.file"),
];
