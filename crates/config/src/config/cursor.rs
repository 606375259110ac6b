//! Reads the configuration key by key: name, type and default of each key are in one place.
//!
//! Reading never stops at the first problem: what is wrong is reported and counts as absent. The
//! [`Record`](super::record::Record) notes each key that was read with its value in force, so that
//! all other keys are known to be mistakes.

mod reports;
mod under;

use std::fmt::Debug;
use std::path::PathBuf;

use toml::Value;

use super::files::FileContent;
use super::path::Path;
use super::report::Report;
use super::shape::Shape;

/// A place in the configuration, and the value there, if any.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    value: Option<&'a Value>,
    /// The value the preset sets here.
    preset: Option<&'a Value>,
    pub(super) path: Path,
    report: &'a Report<'a>,
    effect: Effect,
    /// Keys a report depends on: if one of them is wrong, the report is dropped.
    given: Vec<Path>,
}

/// Whether the keys below a place have any effect.
#[derive(Clone, Debug)]
enum Effect {
    /// The keys have their effect.
    Full,
    /// The keys have no effect, because of what another key says.
    None { why: String, because: Path },
    /// The keys have no effect, and that was reported already.
    NoneAsReported,
}

/// A type a key's value can have.
pub(super) trait TomlValue: Sized {
    /// The form of such values in TOML.
    const SHAPE: Shape;

    /// Reads `value`. Reports what is wrong with it and returns `None`.
    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self>;

    /// Returns the value as a configuration file would have it.
    fn write(&self) -> Value;
}

/// A type of key with a value written as text.
pub(super) trait TextValue: Sized {
    /// Reads the text. The error says what is wrong with it.
    fn parse(text: &str) -> Result<Self, String>;

    fn text(&self) -> String;
}

impl<T: TextValue> TomlValue for T {
    const SHAPE: Shape = Shape::Text;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        at.accept(T::parse(at.expect(value.as_str(), value, "text in quotes")?))
    }

    fn write(&self) -> Value {
        self.text().into()
    }
}

// === Places ===

impl<'a> Cursor<'a> {
    /// Starts at the whole configuration.
    pub(super) fn root(value: &'a Value, report: &'a Report<'a>) -> Self {
        let value = Some(value);
        Self { value, preset: None, path: Path::default(), report, effect: Effect::Full, given: Vec::new() }
    }

    /// Adds the values of a preset, for keys that are not set.
    pub(super) fn with_preset(&self, preset: &'a Value) -> Self {
        Self { preset: Some(preset), ..self.clone() }
    }

    /// Moves to the key `name` of this table.
    pub(super) fn at(&self, name: &str) -> Self {
        let below = |value: Option<&'a Value>| value.and_then(|value| value.get(name));
        Self { value: below(self.value), preset: below(self.preset), path: self.path.key(name), ..self.clone() }
    }

    /// Moves to an element of this list.
    pub(super) fn item(&self, index: usize) -> Self {
        let value = self.value.and_then(|value| value.get(index));
        Self { value, preset: None, path: self.path.index(index), ..self.clone() }
    }

    /// Moves to the table of this name in a list of tables.
    pub(super) fn named(&self, name: &str) -> Option<Self> {
        let length = self.value.and_then(Value::as_array).map_or(0, Vec::len);
        (0..length).map(|index| self.item(index)).find(|item| item.text("name") == Some(name))
    }

    /// Returns true if there is a value here, right or wrong.
    pub(super) fn is_present(&self) -> bool {
        self.value.is_some()
    }

    pub(super) fn is_table(&self) -> bool {
        self.value.is_some_and(Value::is_table)
    }

    /// Returns true if the value is the word `off`.
    pub(super) fn is_off(&self) -> bool {
        self.is_word("off")
    }

    /// Returns true if the value is `true`.
    pub(super) fn is_true(&self) -> bool {
        self.value.and_then(Value::as_bool) == Some(true)
    }

    /// Returns true if the value is this word.
    pub(super) fn is_word(&self, word: &str) -> bool {
        self.value.and_then(Value::as_str) == Some(word)
    }

    /// Returns true for any value except `off`, `false`, `auto` and the empty text.
    pub(super) fn is_asked_for(&self) -> bool {
        let idle =
            |value: &Value| value.as_bool() == Some(false) || matches!(value.as_str(), Some("off" | "auto" | ""));
        self.value.is_some_and(|value| !idle(value))
    }

    /// Returns true if there is no value here, or the empty text.
    pub(super) fn is_absent_or_empty(&self) -> bool {
        self.value.is_none_or(|value| value.as_str() == Some(""))
    }

    pub(super) fn without_preset(&self) -> Self {
        Self { preset: None, ..self.clone() }
    }

    /// Returns true if the preset has a table here.
    pub(super) fn has_preset_table(&self) -> bool {
        self.preset.is_some_and(Value::is_table)
    }

    /// Returns true if this table has the key, right or wrong.
    pub(super) fn has(&self, name: &str) -> bool {
        self.at(name).is_present()
    }

    /// Returns true if nothing in the whole configuration was reported, and all of its keys exist.
    pub(super) fn is_right(&self) -> bool {
        !self.report.has_problems() && self.value.is_none_or(|root| self.report.record().unknown(root).is_empty())
    }

    /// Marks the keys below as having no effect if `condition` is true: because of `why`, which the
    /// key `because` says.
    pub(super) fn unused_if(&self, condition: bool, why: impl Into<String>, because: &Self) -> Self {
        let none = Effect::None { why: why.into(), because: because.path.clone() };
        let effect = if condition { none } else { self.effect.clone() };
        Self { effect, ..self.clone() }
    }

    /// Returns this place for reports that are dropped if one of these keys is wrong: one mistake
    /// is reported once.
    pub(super) fn given(&self, keys: &[&Self]) -> Self {
        Self { given: keys.iter().map(|key| key.path.clone()).collect(), ..self.clone() }
    }

    pub(super) fn has_effect(&self) -> bool {
        matches!(self.effect, Effect::Full)
    }
}

// === Values ===

impl<'a> Cursor<'a> {
    /// Reads a key, or the preset's value for it; `None` if it is absent or wrong.
    pub(super) fn read<T: TomlValue>(&self, name: &str) -> Option<T> {
        self.report.record().key(&self.path, name, T::SHAPE);
        let at = self.at(name);
        if !self.has_effect() {
            // An empty text is as good as none.
            if at.is_present() && !(T::SHAPE == Shape::Text && at.is_absent_or_empty()) {
                at.has_no_effect();
            }
            return None;
        }
        let own = at.value.and_then(|value| match at.report.scalar(&at.path, value, T::SHAPE) {
            Some(scalar) => T::read(&scalar, &at),
            None => T::read(value, &at),
        });
        own.or_else(|| T::read(at.preset?, &at))
    }

    /// Reads a key with a default.
    pub(super) fn get<T: TomlValue>(&self, name: &str, default: T) -> T {
        let value = self.read(name).unwrap_or(default);
        self.in_force(name, &value);
        value
    }

    /// Reads a key with a default, and reports a value unless `fits` returns true for it.
    pub(super) fn get_if<T: TomlValue + Debug>(
        &self,
        name: &str,
        default: T,
        fits: impl FnOnce(&T) -> bool,
        expected: &str,
    ) -> T {
        let value = self.get(name, default);
        if !fits(&value) {
            self.at(name).problem(format!("is {value:?}, expected {expected}"));
        }
        value
    }

    /// Reads a key that may be absent, or have a default.
    pub(super) fn option<T: TomlValue>(&self, name: &str, default: Option<T>) -> Option<T> {
        let value = self.read(name).or(default);
        if let Some(value) = &value {
            self.in_force(name, value);
        }
        value
    }

    /// Reads a key that must be set unless it has a default; `need` says what it is needed for.
    pub(super) fn needed<T: TomlValue>(&self, name: &str, default: Option<T>, need: &str) -> Option<T> {
        let value = self.option(name, default);
        if value.is_none() && !self.has(name) && self.has_effect() {
            self.at(name).missing(format!(", and the preset gives none: {need}"));
        }
        value
    }

    /// Reads the name of a file, and notes that it must contain `holds`. The empty name means no
    /// file.
    pub(super) fn file(&self, name: &str, holds: FileContent) -> Option<PathBuf> {
        let path = self.get::<Option<PathBuf>>(name, None)?;
        self.report.file(path.clone(), holds, &self.at(name).path);
        Some(path)
    }

    /// Records the value in force of a key, if it is not the value read.
    pub(super) fn in_force<T: TomlValue>(&self, name: &str, value: &T) {
        if self.has_effect() {
            self.report.record().set(&self.path, name, T::SHAPE, value.write());
        }
    }
}

// === Tables ===

impl<'a> Cursor<'a> {
    /// Opens a table. If it is absent, its keys have their defaults.
    pub(super) fn table(&self, name: &str) -> Self {
        self.open(name, Shape::Table)
    }

    /// Opens a table; `off` may stand instead of it.
    pub(super) fn table_or_off(&self, name: &str) -> Self {
        self.open(name, Shape::TableOrOff)
    }

    /// Opens the table of a limit; `off` may stand instead of it. Without it there is no such
    /// limit.
    pub(super) fn limit(&self, name: &str) -> Self {
        self.limit_over(name, false)
    }

    /// Opens the table of a limit; `is_there` if the limit exists even without the table.
    pub(super) fn limit_over(&self, name: &str, is_there: bool) -> Self {
        let at = self.open(name, Shape::Limit);
        let is_there = at.is_table() || (is_there || at.has_preset_table()) && !at.is_off();
        at.unused_if(!is_there, "", &at)
    }

    /// Opens a table without defaults; text may stand instead of it.
    pub(super) fn table_or_text(&self, name: &str) -> Self {
        self.open(name, Shape::TableOrText)
    }

    /// Reads a key, or the text that stands instead of its table.
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

    /// Returns the text of a key, without recording that it was read.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.value.and_then(|value| value.get(name)).and_then(Value::as_str)
    }

    /// Opens a table without defaults: `None` if it is absent.
    pub(super) fn optional(&self, name: &str) -> Option<Self> {
        self.report.record().key(&self.path, name, Shape::Table);
        self.has(name).then(|| self.table(name)).filter(Self::is_present)
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

    /// Opens all tables of a kind with their names (`[gates.NAME]`), in the order of the file.
    pub(super) fn tables(&self, name: &str) -> Vec<(&'a str, Self)> {
        self.report.record().open(&self.path, name, Shape::TablesByName, true);
        let at = self.at(name);
        at.must_be_table("tables with names, such as [gates.NAME]");
        let mut names: Vec<_> = at.value.and_then(Value::as_table).into_iter().flat_map(toml::Table::keys).collect();
        names.sort_by_key(|name| self.report.place(&at.path.key(name)).unwrap_or(usize::MAX));
        let names = names.into_iter();
        names.map(|name| (name.as_str(), at.table(name))).filter(|(_, table)| table.is_table()).collect()
    }

    /// Returns the tables of a list (`[[classes]]`). Each counts as part of the configuration once
    /// it is [entered](Self::enter).
    pub(super) fn list(&self, name: &str) -> Vec<Self> {
        self.report.record().open(&self.path, name, Shape::ListOfTables, true);
        let at = self.at(name);
        let Some(value) = at.value else { return Vec::new() };
        let items = at.expect(value.as_array(), value, "a list of tables, which only the file can set");
        let tables = items.into_iter().flatten().enumerate().map(|(index, _)| at.item(index));
        tables.inspect(|table| table.must_be_table("a table")).collect()
    }

    /// Records this element of a list as part of the configuration in force.
    pub(super) fn enter(&self) {
        if let Some((list, name)) = self.path.split_last() {
            self.report.record().open(&list, name, Shape::Table, true);
        }
    }
}
