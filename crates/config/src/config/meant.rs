//! Guesses the user's intention behind an unknown key or variable.

use super::layers::{FILE, name_of, squeezed};
use super::path::Path;
use super::problems::{alternatives, nearest};
use super::record::Record;
use super::shape::Shape;

/// Returns known keys as suggestions for the unknown key at `path`.
///
/// They are a key of similar spelling in its table, the equivalent of another tool's name, or the
/// key of the same name in another table of its class or gate.
pub(super) fn by_key(path: &Path, record: &Record) -> Vec<Path> {
    let Some((table, name)) = path.split_last() else { return Vec::new() };
    let known: Vec<&str> = record.keys(&table).iter().map(|key| key.name.as_str()).collect();
    if let Some(near) = nearest(name, &known) {
        return vec![table.key(near)];
    }
    let homes = homes(&table, record);
    if let Some(meant) = elsewhere(name) {
        let here = meant.rsplit('.').next().filter(|last| known.contains(last));
        return match here {
            Some(last) => vec![table.key(last)],
            None => homes.iter().map(|home| below(home, meant)).find(|path| record.has(path)).into_iter().collect(),
        };
    }
    homes.iter().map(|home| same_name(name, home, record)).find(|found| !found.is_empty()).unwrap_or_default()
}

/// Returns ` (did you mean "bucket.rate"?)` for the unknown key at `path`, or an empty text. Keys
/// outside of its table are shown with their whole path.
pub(super) fn suggestion(path: &Path, meant: &[Path]) -> String {
    let table = path.parent().unwrap_or_default();
    let name = |meant: &Path| match meant.0.get(table.0.len()..) {
        Some(rest) if meant.starts_with(&table) => rest.iter().cloned().collect::<Path>().to_string(),
        _ => meant.to_string(),
    };
    let names: Vec<String> = meant.iter().map(name).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(" (did you mean {}?)", alternatives(&names.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// A known environment variable, suggested in place of an unknown one.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    /// The key set by the variable; `None` for the variable naming the file.
    pub(super) key: Option<Path>,
}

/// Returns the known variable with the most similar name, as a suggestion.
pub(super) fn by_variable(name: &str, record: &Record) -> Option<Variable> {
    let word = squeezed(name);
    let word = word.strip_prefix("TIDEGATE").filter(|word| !word.is_empty())?;
    let mut known: Vec<(String, Variable)> =
        record.settable().into_iter().map(|key| (squeezed(&key.0.concat()), Variable::of(key))).collect();
    known.push((squeezed("config"), Variable { name: FILE.to_owned(), key: None }));
    let by = |fits: &dyn Fn(&str) -> bool| {
        let found = known.iter().filter(|(letters, _)| fits(letters)).min_by_key(|(letters, _)| letters.len());
        found.map(|(_, variable)| variable.clone())
    };
    let of_others = || {
        let last = name.to_lowercase().rsplit('_').next().and_then(elsewhere)?;
        Some(below(&record.first_gate()?, last)).filter(|key| record.has(key)).map(Variable::of)
    };
    let near = || {
        let letters: Vec<&str> = known.iter().map(|(letters, _)| letters.as_str()).collect();
        nearest(word, &letters)
    };
    by(&|letters| letters == word)
        .or_else(of_others)
        .or_else(|| by(&|letters| letters.ends_with(word)))
        .or_else(|| near().and_then(|near| by(&|letters| letters == near)))
        .or_else(|| by(&|letters| word.starts_with(letters)))
        .or_else(|| by(&|letters| letters.starts_with(word)))
}

impl Variable {
    fn of(key: Path) -> Self {
        Self { name: name_of(&key), key: Some(key) }
    }
}

/// Returns the places to search for a misplaced key of `table`, nearest first: its class, its gate
/// (the first gate if it is in none), the whole configuration.
fn homes(table: &Path, record: &Record) -> Vec<Path> {
    let upto = |steps: usize| table.0.get(..steps).map(|steps| steps.iter().cloned().collect::<Path>());
    let is_in = |place: usize, name: &str| table.0.get(place).is_some_and(|step| step == name);
    let class = upto(4).filter(|_| is_in(2, "classes"));
    let gate = upto(2).filter(|_| is_in(0, "gates")).or_else(|| record.first_gate());
    class.into_iter().chain(gate).chain([Path::default()]).collect()
}

/// Returns the known keys of this name in tables below `home`: those with the shortest paths.
fn same_name(name: &str, home: &Path, record: &Record) -> Vec<Path> {
    let is_class = home.0.len() == 4;
    let found: Vec<Path> = record
        .all()
        .filter(|path| path.starts_with(home) && path.split_last().is_some_and(|(_, last)| last == name))
        .filter(|path| is_class || !path.0.iter().any(|step| step.starts_with('[')))
        .filter(|path| !home.0.is_empty() || path.0.first().is_none_or(|first| first != "gates"))
        .collect();
    let least = found.iter().map(|path| path.0.len()).min();
    found.into_iter().filter(|path| Some(path.0.len()) == least).collect()
}

fn below(home: &Path, steps: &str) -> Path {
    steps.split('.').fold(home.clone(), |path, step| path.key(step))
}

/// Returns the key equivalent to a name from another tool, if it is known.
fn elsewhere(name: &str) -> Option<&'static str> {
    ELSEWHERE.iter().find(|(names, _)| names.contains(&name)).map(|(_, key)| *key)
}

/// Names used by client-go, Envoy, nginx and others, with the equivalent key.
const ELSEWHERE: [(&[&str], &str); 7] = [
    (&["qps", "rps", "limit", "rate_limit", "requests_per_second", "calls_per_second"], "bucket.rate"),
    (&["max_in_flight", "max_inflight", "max_concurrent", "concurrency"], "in_flight.max"),
    (&["url", "server", "endpoint", "base_url", "target", "backend"], "upstream"),
    (&["port", "address", "bind"], "listen"),
    (&["token", "token_file", "secret"], "credential.file"),
    (&["base_delay", "initial_interval"], "backoff.base"),
    (&["max_delay", "max_interval"], "backoff.max"),
];

impl Record {
    /// Returns the keys environment variables can set.
    fn settable(&self) -> Vec<Path> {
        let is_value = |shape: Shape| {
            !matches!(
                shape,
                Shape::Table | Shape::TablesByName | Shape::ListOfTables | Shape::List(_) | Shape::TextByName
            )
        };
        let keys = self.tables().flat_map(|(table, keys)| keys.iter().map(move |key| (table, key)));
        let fits = |table: &Path| !table.0.iter().any(|step| step.starts_with('['));
        keys.filter(|(table, key)| is_value(key.shape) && fits(table))
            .map(|(table, key)| table.key(&key.name))
            .collect()
    }

    /// Returns the path of every known key.
    fn all(&self) -> impl Iterator<Item = Path> {
        self.tables().flat_map(|(table, keys)| keys.iter().map(|key| table.key(&key.name)))
    }

    fn has(&self, path: &Path) -> bool {
        path.split_last().is_some_and(|(table, name)| self.keys(&table).iter().any(|key| key.name == name))
    }

    fn first_gate(&self) -> Option<Path> {
        let gates = Path::default().key("gates");
        self.keys(&gates).first().map(|gate| gates.key(&gate.name))
    }
}
