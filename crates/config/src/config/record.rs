//! The record of all keys read so far, in the order of the documentation, with the values in force.
//!
//! The effective configuration is printed from it, and any other key in the file is a mistake.

use std::collections::BTreeMap;

use toml::Value;

use super::path::Path;
use super::shape::Shape;

/// The known keys of each table.
#[derive(Debug, Default)]
pub(super) struct Record(BTreeMap<Path, Vec<RecordKey>>);

/// A part of a table to record a second time, at the path `place` in the table.
///
/// The part consists of `keys`. Each of `hidden` is a table and its key that is not in force there.
#[derive(Debug)]
pub(super) struct Grafted<'a> {
    pub(super) place: &'a Path,
    pub(super) keys: &'a [&'a str],
    pub(super) hidden: &'a [[&'a str; 2]],
}

/// A known key of a table.
#[derive(Clone, Debug)]
pub(super) struct RecordKey {
    pub(super) name: String,
    pub(super) shape: Shape,
    in_force: InForce,
}

#[derive(Clone, Debug)]
enum InForce {
    Nothing,
    Value(Value),
    Table,
}

// === impl Record ===

impl Record {
    /// Records that a table was read.
    pub(super) fn open(&mut self, table: &Path, name: &str, shape: Shape, in_force: bool) {
        self.key(table, name, shape).in_force = if in_force { InForce::Table } else { InForce::Nothing };
        self.0.entry(table.key(name)).or_default();
    }

    /// Records the value in force for a key.
    pub(super) fn set(&mut self, table: &Path, name: &str, shape: Shape, value: Value) {
        self.key(table, name, shape).in_force = InForce::Value(value);
    }

    /// Returns the record of a key, and adds it if it is new.
    pub(super) fn key(&mut self, table: &Path, name: &str, shape: Shape) -> &mut RecordKey {
        let keys = self.0.entry(table.clone()).or_default();
        let index = keys.iter().position(|key| key.name == name).unwrap_or_else(|| {
            keys.push(RecordKey { name: name.to_owned(), shape, in_force: InForce::Nothing });
            keys.len() - 1
        });
        &mut keys[index]
    }

    /// Copies a part of `table` from another record into this one.
    pub(super) fn graft(&mut self, other: &Self, table: &Path, part: &Grafted<'_>) {
        if let Some((above, name)) = part.place.split_last() {
            self.open(&above, name, Shape::Table, true);
        }
        for (path, keys) in other.tables() {
            let Some(rest) = path.below(table) else { continue };
            let first = rest.0.first().map(|first| &**first);
            let is_part = |key: &&RecordKey| part.keys.contains(&first.unwrap_or(&key.name));
            let is_hidden = |key: &RecordKey| first.is_some_and(|first| part.hidden.contains(&[first, &key.name]));
            let shown = |key: &RecordKey| match is_hidden(key) {
                true => RecordKey { in_force: InForce::Nothing, ..key.clone() },
                false => key.clone(),
            };
            let keys: Vec<RecordKey> = keys.iter().filter(is_part).map(shown).collect();
            if !keys.is_empty() {
                let all = self.0.entry(part.place.join(&rest)).or_default();
                all.retain(|known| keys.iter().all(|key| key.name != known.name));
                all.extend(keys);
            }
        }
    }

    /// Returns the keys of a table, in the order of reading.
    pub(super) fn keys(&self, table: &Path) -> &[RecordKey] {
        self.0.get(table).map_or(&[], Vec::as_slice)
    }

    /// Returns the path of every key.
    pub(super) fn all(&self) -> impl Iterator<Item = Path> {
        self.tables().flat_map(|(table, keys)| keys.iter().map(|key| table.key(&key.name)))
    }

    /// Returns all tables with their keys.
    pub(super) fn tables(&self) -> impl Iterator<Item = (&Path, &[RecordKey])> {
        self.0.iter().map(|(path, keys)| (path, keys.as_slice()))
    }

    /// Returns the unknown keys in `root`: those never read.
    pub(super) fn unknown(&self, root: &Value) -> Vec<Path> {
        let mut unknown = Vec::new();
        for (path, known) in &self.0 {
            for name in path.find(root).and_then(Value::as_table).into_iter().flat_map(toml::Table::keys) {
                if !known.iter().any(|key| key.name == *name) {
                    unknown.push(path.key(name));
                }
            }
        }
        unknown
    }

    /// Formats the configuration in force as a TOML file with every key.
    ///
    /// Instead of secrets it has the names of their files. Built-in classes appear without the
    /// calls that they match, because patterns cannot express these.
    pub(super) fn effective(&self) -> String {
        let mut out = String::new();
        self.print_tables(&Path::default(), &mut out);
        out
    }

    /// Writes a table under its header. Tables in a list are written inline, each on one line.
    fn print(&self, header: &str, table: &Path, is_inline: bool, out: &mut String) {
        let gap = if out.is_empty() { "" } else { "\n" };
        *out += &format!("{gap}{header}\n");
        for key in self.keys(table) {
            if let Some(text) = self.text(key, table, is_inline) {
                *out += &format!("{} = {text}\n", key.name);
            }
        }
        if !is_inline {
            self.print_tables(table, out);
        }
    }

    fn print_tables(&self, table: &Path, out: &mut String) {
        for key in self.keys(table).iter().filter(|key| matches!(key.in_force, InForce::Table)) {
            let at = table.key(&key.name);
            let below = self.keys(&at).iter().map(|below| at.key(&below.name));
            match key.shape {
                Shape::Table | Shape::TableOrOff => self.print(&format!("[{at}]"), &at, false, out),
                Shape::TablesByName => self.print_tables(&at, out),
                Shape::ListOfTables => below.for_each(|item| self.print(&format!("[[{at}]]"), &item, true, out)),
                _ => {}
            }
        }
    }

    /// Returns the value in force of a key as TOML, if it can be written on one line.
    fn text(&self, key: &RecordKey, table: &Path, is_inline: bool) -> Option<String> {
        let at = table.key(&key.name);
        match (&key.in_force, key.shape) {
            (InForce::Nothing, _) => None,
            (InForce::Value(value), _) => Some(value.to_string()),
            (InForce::Table, Shape::TableOrText) => self.inline(&at),
            (InForce::Table, Shape::Limit) => Some(self.inline(&at).unwrap_or_else(|| "\"off\"".to_owned())),
            (InForce::Table, _) => is_inline.then(|| self.inline(&at).unwrap_or_else(|| "{}".to_owned())),
        }
    }

    /// Returns a table as `{ key = value, ... }`, if any of its keys is in force.
    fn inline(&self, table: &Path) -> Option<String> {
        let text = |key: &RecordKey| Some(format!("{} = {}", key.name, self.text(key, table, true)?));
        let texts: Vec<String> = self.keys(table).iter().filter_map(text).collect();
        (!texts.is_empty()).then(|| format!("{{ {} }}", texts.join(", ")))
    }
}
