//! The record of what was read: the keys of every table in the order of the documentation, and the
//! values in force. The effective configuration is printed from it.

use std::collections::BTreeMap;

use toml::Value;

use super::path::Path;
use super::shape::Shape;

/// The known keys of each table.
#[derive(Debug, Default)]
pub(super) struct Record(BTreeMap<Path, Vec<RecordKey>>);

/// The part of a table that stands below its key `name`, too: these keys. Of their tables the
/// `hidden` keys are not in force there.
#[derive(Debug)]
pub(super) struct Grafted<'a> {
    pub(super) name: &'a str,
    pub(super) keys: &'a [&'a str],
    pub(super) hidden: &'a [[&'a str; 2]],
}

/// A known key.
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

    /// Records the value in force of a key.
    pub(super) fn set(&mut self, table: &Path, name: &str, shape: Shape, value: Value) {
        self.key(table, name, shape).in_force = InForce::Value(value);
    }

    /// Records a key, and returns its record.
    pub(super) fn key(&mut self, table: &Path, name: &str, shape: Shape) -> &mut RecordKey {
        let keys = self.0.entry(table.clone()).or_default();
        let index = keys.iter().position(|key| key.name == name).unwrap_or_else(|| {
            keys.push(RecordKey { name: name.to_owned(), shape, in_force: InForce::Nothing });
            keys.len() - 1
        });
        &mut keys[index]
    }

    /// Adds a part of another record's `table`.
    pub(super) fn graft(&mut self, other: &Self, table: &Path, part: &Grafted<'_>) {
        self.open(table, part.name, Shape::Table, true);
        let place = table.key(part.name);
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
                self.0.insert(place.join(&rest), keys);
            }
        }
    }

    /// Returns the keys of a table, in the order of reading.
    pub(super) fn keys(&self, table: &Path) -> &[RecordKey] {
        self.0.get(table).map_or(&[], Vec::as_slice)
    }

    /// Returns all tables with their keys.
    pub(super) fn tables(&self) -> impl Iterator<Item = (&Path, &[RecordKey])> {
        self.0.iter().map(|(path, keys)| (path, keys.as_slice()))
    }

    /// Returns the keys of `root` that were never read, and so do not exist.
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

    /// Prints what is in force as TOML: every key with its value, as in a file saying the same.
    ///
    /// Secrets appear only as names of files. Built-in classes appear by name, without what they
    /// match: that cannot be written as patterns.
    pub(super) fn effective(&self) -> String {
        let mut out = String::new();
        self.print_tables(&Path::default(), &mut out);
        out
    }

    /// Prints a table under its header. Inside a list, everything is printed inline.
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

    /// Returns what is in force for a key, if it fits on its line.
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

    /// Returns a table as `{ key = value, ... }`, if anything of it is in force.
    fn inline(&self, table: &Path) -> Option<String> {
        let text = |key: &RecordKey| Some(format!("{} = {}", key.name, self.text(key, table, true)?));
        let texts: Vec<String> = self.keys(table).iter().filter_map(text).collect();
        (!texts.is_empty()).then(|| format!("{{ {} }}", texts.join(", ")))
    }
}
