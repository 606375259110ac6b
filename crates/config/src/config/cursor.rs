//! Reads a configuration key by key: the name, the type and the default of each stand in one place.
//!
//! Reading never stops at the first problem: what is wrong is reported and counts as absent. The
//! [`Record`](super::record::Record) notes each key that was asked for, so that all others are
//! known to be mistakes, and the value in force.

use std::path::PathBuf;

use toml::Value;

use super::files::Holds;
use super::path::Path;
use super::report::Report;
use super::shape::{Shape, describe};

/// A place in the configuration, and the value there, if there is one.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    value: Option<&'a Value>,
    pub(super) path: Path,
    report: &'a Report<'a>,
    effect: Effect,
    /// The keys that what is reported here depends on.
    given: Vec<Path>,
}

/// The effect that the keys below a place have.
#[derive(Clone, Debug)]
enum Effect {
    /// Their own.
    Full,
    /// None, because of what another key says.
    None { why: String, because: Path },
    /// None, which is reported already.
    NoneAsReported,
}

/// A type that a key can have.
pub(super) trait TomlValue: Sized {
    /// The form of its values in TOML.
    const SHAPE: Shape;

    /// Reads `value`, which stands at `at`. Reports what is wrong with it and returns `None`.
    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self>;

    /// Returns the value as a configuration would say it.
    fn write(&self) -> Value;
}

// === Places ===

impl<'a> Cursor<'a> {
    /// Starts at the whole configuration.
    pub(super) fn root(value: &'a Value, report: &'a Report<'a>) -> Self {
        Self { value: Some(value), path: Path::default(), report, effect: Effect::Full, given: Vec::new() }
    }

    /// Goes to the key `name` of this table.
    pub(super) fn at(&self, name: &str) -> Self {
        Self { value: self.value.and_then(|value| value.get(name)), path: self.path.key(name), ..self.clone() }
    }

    /// Goes to an element of this list.
    pub(super) fn item(&self, index: usize) -> Self {
        Self { value: self.value.and_then(|value| value.get(index)), path: self.path.index(index), ..self.clone() }
    }

    /// True if something is here, right or wrong.
    pub(super) fn is_present(&self) -> bool {
        self.value.is_some()
    }

    pub(super) fn is_table(&self) -> bool {
        self.value.is_some_and(Value::is_table)
    }

    /// True if the word `off` is here.
    pub(super) fn is_off(&self) -> bool {
        self.is_word("off")
    }

    /// True if `true` is here.
    pub(super) fn is_true(&self) -> bool {
        self.value.and_then(Value::as_bool) == Some(true)
    }

    /// True if this word is here.
    pub(super) fn is_word(&self, word: &str) -> bool {
        self.value.and_then(Value::as_str) == Some(word)
    }

    /// True if something is here that asks for more than `off`, `false` and `auto` do.
    pub(super) fn is_asked_for(&self) -> bool {
        let idle =
            |value: &Value| value.as_bool() == Some(false) || matches!(value.as_str(), Some("off" | "auto" | ""));
        self.value.is_some_and(|value| !idle(value))
    }

    /// True if nothing is here, or the empty text.
    pub(super) fn is_absent_or_empty(&self) -> bool {
        self.value.is_none_or(|value| value.as_str() == Some(""))
    }

    /// True if this table has the key, right or wrong.
    pub(super) fn has(&self, name: &str) -> bool {
        self.at(name).is_present()
    }

    /// True if nothing has been reported of this whole configuration, and all of its keys exist.
    pub(super) fn is_right(&self) -> bool {
        !self.report.has_problems() && self.value.is_none_or(|root| self.report.record().unknown(root).is_empty())
    }

    /// Reads on for keys that have no effect if `condition` holds, because of `why`, which the key
    /// `because` says.
    pub(super) fn unused_if(&self, condition: bool, why: impl Into<String>, because: &Self) -> Self {
        let none = Effect::None { why: why.into(), because: because.path.clone() };
        let effect = if condition { none } else { self.effect.clone() };
        Self { effect, ..self.clone() }
    }

    /// Returns this place for a report that only holds if nothing is wrong with these keys: one
    /// mistake is one problem.
    pub(super) fn given(&self, keys: &[&Self]) -> Self {
        Self { given: keys.iter().map(|key| key.path.clone()).collect(), ..self.clone() }
    }

    fn has_effect(&self) -> bool {
        matches!(self.effect, Effect::Full)
    }
}

// === Values ===

impl<'a> Cursor<'a> {
    /// Reads a key; `None` if it is absent or wrong.
    pub(super) fn read<T: TomlValue>(&self, name: &str) -> Option<T> {
        self.report.record().key(&self.path, name, T::SHAPE);
        let at = self.at(name);
        let value = at.value?;
        if !self.has_effect() {
            // An empty text is as good as none.
            if !(T::SHAPE == Shape::Text && at.is_absent_or_empty()) {
                at.has_no_effect();
            }
            return None;
        }
        match at.report.scalar(&at.path, value, T::SHAPE) {
            Some(scalar) => T::read(&scalar, &at),
            None => T::read(value, &at),
        }
    }

    /// Reads a key that has a default.
    pub(super) fn get<T: TomlValue>(&self, name: &str, default: T) -> T {
        let value = self.read(name).unwrap_or(default);
        self.in_force(name, &value);
        value
    }

    /// Reads a key that may have a default.
    pub(super) fn option<T: TomlValue>(&self, name: &str, default: Option<T>) -> Option<T> {
        let value = self.read(name).or(default);
        if let Some(value) = &value {
            self.in_force(name, value);
        }
        value
    }

    /// Reads a key that must be there unless it has a default; `need` says what for.
    pub(super) fn needed<T: TomlValue>(&self, name: &str, default: Option<T>, need: &str) -> Option<T> {
        let value = self.option(name, default);
        if value.is_none() && !self.has(name) && self.has_effect() {
            self.at(name).missing(format!(", and the preset gives none: {need}"));
        }
        value
    }

    /// Reads the name of a file that will be read; the empty name is none.
    pub(super) fn file(&self, name: &str, holds: Holds) -> Option<PathBuf> {
        let path = self.get::<Option<PathBuf>>(name, None)?;
        self.report.file(path.clone(), holds, &self.at(name).path);
        Some(path)
    }

    /// Records the value in force of a key that was read, where reading alone does not tell it.
    pub(super) fn in_force<T: TomlValue>(&self, name: &str, value: &T) {
        if self.has_effect() {
            self.report.record().set(&self.path, name, T::SHAPE, value.write());
        }
    }
}

// === Tables ===

impl<'a> Cursor<'a> {
    /// Opens a table; an absent one has the defaults.
    pub(super) fn table(&self, name: &str) -> Self {
        self.open(name, Shape::Table)
    }

    /// Opens a table in whose place `off` may stand.
    pub(super) fn table_or_off(&self, name: &str) -> Self {
        self.open(name, Shape::TableOrOff)
    }

    /// Opens the table of a limit, which `off` removes.
    pub(super) fn limit(&self, name: &str) -> Self {
        self.open(name, Shape::Limit)
    }

    /// Opens a table in whose place text may stand, and that has no defaults.
    pub(super) fn table_or_text(&self, name: &str) -> Self {
        self.open(name, Shape::TableOrText)
    }

    /// Reads the key that the text stands for.
    pub(super) fn name_or_text(&self, name: &str) -> Option<String> {
        let read = self.read(name);
        let text = self.value.and_then(Value::as_str).filter(|_| self.has_effect()).map(str::to_owned);
        if self.is_table() && !self.has(name) {
            self.at(name).problem("is missing");
        }
        let value = read.or(text);
        value.iter().for_each(|value| self.in_force(name, value));
        value
    }

    /// Returns the text of a key, without reading it.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.value.and_then(|value| value.get(name)).and_then(Value::as_str)
    }

    /// Opens a table that has no defaults: `None` if it is absent.
    pub(super) fn optional(&self, name: &str) -> Option<Self> {
        self.report.record().key(&self.path, name, Shape::Table);
        self.has(name).then(|| self.table(name)).filter(Self::is_present)
    }

    /// Goes on in the table of a limit that starts from `base`. Where there is no limit, because of
    /// `off` or because neither table nor base gives one, nothing of it is in force.
    pub(super) fn over<T>(&self, base: Option<T>) -> (Self, Option<T>) {
        let base = base.filter(|_| !self.is_off());
        (self.unused_if(base.is_none() && !self.is_table(), "", self), base)
    }

    fn open(&self, name: &str, shape: Shape) -> Self {
        let mut at = self.at(name);
        let is_there = shape != Shape::TableOrText || at.is_present();
        self.report.record().open(&self.path, name, shape, self.has_effect() && is_there);
        if !self.has_effect() && at.is_present() {
            at.has_no_effect();
            at.effect = Effect::NoneAsReported;
        }
        let or_off = matches!(shape, Shape::TableOrOff | Shape::Limit);
        let may_be_text = shape == Shape::TableOrText && at.value.is_some_and(Value::is_str);
        if !(or_off && at.is_off() || may_be_text) {
            at.must_be_table(match shape {
                Shape::TableOrText => "text in quotes, or a table",
                _ if or_off => "a table, or \"off\"",
                _ => "a table",
            });
        }
        at
    }

    fn must_be_table(&self, expected: &str) {
        if let Some(value) = self.value.filter(|value| !value.is_table()) {
            self.problem(format!("is {}, expected {expected}", self.describe(value)));
        }
    }

    /// Opens tables by name (`[gates.NAME]`), in the order of the file.
    pub(super) fn tables(&self, name: &str) -> Vec<(&'a str, Self)> {
        self.report.record().open(&self.path, name, Shape::TablesByName, true);
        let at = self.at(name);
        at.must_be_table("tables by name");
        let mut names: Vec<_> = at.value.and_then(Value::as_table).into_iter().flat_map(toml::Table::keys).collect();
        names.sort_by_key(|name| self.report.place(&at.path.key(name)).unwrap_or(usize::MAX));
        let names = names.into_iter();
        names.map(|name| (name.as_str(), at.table(name))).filter(|(_, table)| table.is_table()).collect()
    }

    /// Returns the tables of a list (`[[classes]]`), which come into force as they are
    /// [entered](Self::enter).
    pub(super) fn list(&self, name: &str) -> Vec<Self> {
        self.report.record().open(&self.path, name, Shape::ListOfTables, true);
        let at = self.at(name);
        let Some(value) = at.value else { return Vec::new() };
        let items = at.expect(value.as_array(), value, "a list of tables, which only the file can give");
        let tables = items.into_iter().flatten().enumerate().map(|(index, _)| at.item(index));
        tables.inspect(|table| table.must_be_table("a table")).collect()
    }

    /// Adds this element of a list to what is in force.
    pub(super) fn enter(&self) {
        if let Some((list, name)) = self.path.split_last() {
            self.report.record().open(&list, name, Shape::Table, true);
        }
    }
}

// === Reports ===

impl<'a> Cursor<'a> {
    /// Reports that the value here is wrong.
    pub(super) fn problem(&self, message: impl Into<String>) {
        self.tell(message.into(), false);
    }

    /// Reports that the key here is wrong, whatever its value.
    pub(super) fn key_problem(&self, message: impl Into<String>) {
        self.tell(message.into(), true);
    }

    /// Reports that the key here is missing; `rest` follows the word.
    pub(super) fn missing(&self, rest: impl std::fmt::Display) {
        self.given(&[self]).problem(format!("is missing{rest}"));
    }

    fn has_no_effect(&self) {
        if let Effect::None { why, because } = &self.effect {
            let at = Self { given: vec![because.clone()], ..self.clone() };
            at.key_problem(format!("has no effect: {why}"));
        }
    }

    fn tell(&self, message: String, at_key: bool) {
        if !matches!(self.effect, Effect::NoneAsReported) {
            self.report.problem(&self.path, message, at_key, &self.given);
        }
    }

    /// Reports something that works, but should be known.
    pub(super) fn warn(&self, message: impl Into<String>) {
        self.report.warn(&self.path, message);
    }

    /// Reports that `value` is not what was expected, unless it was `found` to be that.
    pub(super) fn expect<T>(&self, found: Option<T>, value: &Value, expected: &str) -> Option<T> {
        if found.is_none() {
            self.problem(format!("is {}, expected {expected}", self.describe(value)));
        }
        found
    }

    /// Returns a value for a message; where a secret may have been put by mistake only its kind.
    fn describe(&self, value: &Value) -> String {
        if value.is_str() && self.path.may_hold_a_secret() { "text".to_owned() } else { describe(value) }
    }

    /// Reports each text of the list `name` of which `fault` finds one.
    pub(super) fn check_each(&self, name: &str, texts: &[String], fault: impl Fn(&str) -> Option<String>) {
        for (index, text) in texts.iter().enumerate() {
            if let Some(fault) = fault(text) {
                self.at(name).item(index).problem(format!("is {text:?}, {fault}"));
            }
        }
    }
}
