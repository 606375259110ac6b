//! Reads the configuration key by key: name, type and default of each key are in one place.
//!
//! Reading never stops at a problem: it is reported, and the wrong value counts as absent. Each key
//! that was read is noted in the [`Record`](super::record::Record). So all other keys of the file
//! are known to be mistakes.

mod reports;
mod under;

use std::fmt::Debug;
use std::path::PathBuf;

use toml::Value;

use super::files::FileContent;
use super::path::Path;
use super::report::Report;
use super::shape::Shape;

/// A position in the configuration (the path of a key), with the value there, if any.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    value: Option<&'a Value>,
    /// The preset's value for this position.
    preset: Option<&'a Value>,
    pub(super) path: Path,
    report: &'a Report<'a>,
    effect: Effect,
    /// A word that may stand in place of the value.
    or: Option<&'static str>,
    /// Keys on which problems reported here depend: if one of them is wrong, the problem is
    /// dropped.
    given: Vec<Path>,
}

/// Whether the keys at and below a position take effect.
#[derive(Clone, Debug)]
enum Effect {
    /// The keys take effect.
    Full,
    /// The keys are useless because of the setting at `because`; `why` is the text for the report.
    None { why: String, because: Path },
    /// The keys are useless, and this was reported already.
    NoneAsReported,
}

/// The type of a key's value.
pub(super) trait TomlValue: Sized {
    /// The form of these values in TOML.
    const SHAPE: Shape;

    /// Reads `value`. Reports what is wrong with it and returns `None`.
    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self>;

    /// Returns the value as a configuration file would have it.
    fn write(&self) -> Value;
}

/// The type of a value written as text.
pub(super) trait TextValue: Sized {
    /// Reads the text. The error describes what is wrong with the text.
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
    /// Returns the position of the whole configuration.
    pub(super) fn root(value: &'a Value, report: &'a Report<'a>) -> Self {
        let value = Some(value);
        Self { value, preset: None, path: Path::default(), report, effect: Effect::Full, or: None, given: Vec::new() }
    }

    /// Returns this position with the values of a preset, for keys not set in the configuration.
    pub(super) fn with_preset(&self, preset: &'a Value) -> Self {
        Self { preset: Some(preset), ..self.clone() }
    }

    /// Returns the position of the key `name` in this table.
    pub(super) fn at(&self, name: &str) -> Self {
        let below = |value: Option<&'a Value>| value.and_then(|value| value.get(name));
        Self {
            value: below(self.value),
            preset: below(self.preset),
            path: self.path.key(name),
            or: None,
            ..self.clone()
        }
    }

    /// Returns the position of an element of this list.
    pub(super) fn item(&self, index: usize) -> Self {
        let value = self.value.and_then(|value| value.get(index));
        Self { value, preset: None, path: self.path.index(index), or: None, ..self.clone() }
    }

    /// Returns the position of the table with this `name` in a list of tables.
    pub(super) fn named(&self, name: &str) -> Option<Self> {
        let length = self.value.and_then(Value::as_array).map_or(0, Vec::len);
        (0..length).map(|index| self.item(index)).find(|item| item.text("name") == Some(name))
    }

    /// Returns true if the configuration has a value here, whether valid or not.
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

    /// Returns true if the value is this word.
    pub(super) fn is_word(&self, word: &str) -> bool {
        self.value.and_then(Value::as_str) == Some(word)
    }

    /// Returns true if a value here switches something on: any but `off`, `false`, `auto` and "".
    pub(super) fn is_asked_for(&self) -> bool {
        let idle = |value: &Value| {
            value.as_bool() == Some(false) || matches!(value.as_str(), Some("off" | "auto" | "false" | ""))
        };
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

    /// Returns true if this table has the key, whether its value is valid or not.
    pub(super) fn has(&self, name: &str) -> bool {
        self.at(name).is_present()
    }

    /// Returns true if nothing was reported anywhere in the configuration so far, and all keys are
    /// known.
    pub(super) fn is_right(&self) -> bool {
        !self.report.has_problems() && self.value.is_none_or(|root| self.report.record().unknown(root).is_empty())
    }

    /// Returns this position with its keys marked as useless if `condition` is true.
    ///
    /// `why` is the reason for the report, and `because` the key that makes them useless.
    pub(super) fn unused_if(&self, condition: bool, why: impl Into<String>, because: &Self) -> Self {
        let none = Effect::None { why: why.into(), because: because.path.clone() };
        let effect = if condition { none } else { self.effect.clone() };
        Self { effect, ..self.clone() }
    }

    /// Returns this position, where `word` may stand in place of the value. Messages name it.
    pub(super) fn or(&self, word: &'static str) -> Self {
        Self { or: Some(word), ..self.clone() }
    }

    /// Returns this position, for problems depending on `keys`.
    ///
    /// If one of these keys is wrong itself, the problem is dropped, so that one mistake is
    /// reported once.
    pub(super) fn given(&self, keys: &[&Self]) -> Self {
        Self { given: keys.iter().map(|key| key.path.clone()).collect(), ..self.clone() }
    }

    pub(super) fn has_effect(&self) -> bool {
        matches!(self.effect, Effect::Full)
    }
}

// === Values ===

impl<'a> Cursor<'a> {
    /// Reads a key. If it is not set or wrong, returns the preset's value, or else `None`.
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

    /// Reads a key; if it is not set or wrong, returns the preset's value, or else `default`.
    pub(super) fn get<T: TomlValue>(&self, name: &str, default: T) -> T {
        let value = self.read(name).unwrap_or(default);
        self.in_force(name, &value);
        value
    }

    /// Reads a key like [`get`](Self::get). Reports the value if `fits` returns false.
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

    /// Reads a key with an optional default; `None` if there is neither a value nor a default.
    pub(super) fn option<T: TomlValue>(&self, name: &str, default: Option<T>) -> Option<T> {
        let value = self.read(name).or(default);
        if let Some(value) = &value {
            self.in_force(name, value);
        }
        value
    }

    /// Reads a key without a default, and reports it if it is missing.
    pub(super) fn required<T: TomlValue>(&self, name: &str, expected: &str) -> Option<T> {
        let value = self.option(name, None);
        if !self.has(name) {
            self.at(name).missing(format_args!(", expected {expected}"));
        }
        value
    }

    /// Reads a key, and reports it as missing if it has no default; `need` is the reason in the
    /// report.
    pub(super) fn needed<T: TomlValue>(&self, name: &str, default: Option<T>, need: &str) -> Option<T> {
        let value = self.option(name, default);
        if value.is_none() && !self.has(name) && self.has_effect() {
            self.at(name).missing(format!(", and the preset gives none: {need}"));
        }
        value
    }

    /// Reads the path of a file; "" stands for no file. Records the content to expect, `holds`.
    pub(super) fn file(&self, name: &str, holds: FileContent) -> Option<PathBuf> {
        let path = self.get::<Option<PathBuf>>(name, None)?;
        self.report.file(path.clone(), holds, &self.at(name).path);
        Some(path)
    }

    /// Records the value in force for a key, such as a default.
    pub(super) fn in_force<T: TomlValue>(&self, name: &str, value: &T) {
        if self.has_effect() {
            self.report.record().set(&self.path, name, T::SHAPE, value.write());
        }
    }
}

// === Tables ===

impl<'a> Cursor<'a> {
    /// Opens the table `name`. If it is absent, its keys have their defaults.
    pub(super) fn table(&self, name: &str) -> Self {
        self.open(name, Shape::Table)
    }

    /// Opens the table `name`; the file may have the word `off` in its place.
    pub(super) fn table_or_off(&self, name: &str) -> Self {
        self.open(name, Shape::TableOrOff)
    }

    /// Opens the table of an optional limit; the file may have the word `off` in its place. Without
    /// a table in file or preset there is no limit, and its keys are not in force.
    pub(super) fn limit(&self, name: &str) -> Self {
        self.limit_over(name, false)
    }

    /// Opens the table of a limit, as [`limit`](Self::limit) does. If `is_there`, the limit exists
    /// also without a table.
    pub(super) fn limit_over(&self, name: &str, is_there: bool) -> Self {
        let at = self.open(name, Shape::Limit);
        let is_there = at.is_table() || (is_there || at.has_preset_table()) && !at.is_off();
        at.unused_if(!is_there, "", &at)
    }

    /// Opens a table without defaults for its keys; the file may have a text in its place.
    pub(super) fn table_or_text(&self, name: &str) -> Self {
        self.open(name, Shape::TableOrText)
    }

    /// Reads a key of this table. The file may have only the key's value in place of the table.
    pub(super) fn name_or_text(&self, name: &str) -> Option<String> {
        let read = self.read(name);
        let text = self.value.and_then(Value::as_str).filter(|_| self.has_effect()).map(str::to_owned);
        if self.is_table() && !self.has(name) && self.has_effect() {
            self.at(name)
                .problem("is missing, expected the name that gates share it by, or members alone for a fixed part");
        }
        let value = read.or(text);
        value.iter().for_each(|value| self.in_force(name, value));
        value
    }

    /// Returns the text of a key, without recording that it was read.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.value.and_then(|value| value.get(name)).and_then(Value::as_str)
    }

    /// Opens a table without defaults for its keys; `None` if the table is absent.
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

    /// Opens all tables below `name`, such as every `[gates.NAME]`, in the order of the file.
    pub(super) fn tables(&self, name: &str) -> Vec<(&'a str, Self)> {
        self.report.record().open(&self.path, name, Shape::TablesByName, true);
        let at = self.at(name);
        at.must_be_table("tables with names, such as [gates.NAME]");
        let mut names: Vec<_> = at.value.and_then(Value::as_table).into_iter().flat_map(toml::Table::keys).collect();
        names.sort_by_key(|name| self.report.place(&at.path.key(name)).unwrap_or(usize::MAX));
        let names = names.into_iter();
        names.map(|name| (name.as_str(), at.table(name))).filter(|(_, table)| table.is_table()).collect()
    }

    /// Returns the tables of a list, such as every `[[classes]]`. A table is shown in the effective
    /// configuration only once it is [entered](Self::enter).
    pub(super) fn list(&self, name: &str) -> Vec<Self> {
        self.report.record().open(&self.path, name, Shape::ListOfTables, true);
        let at = self.at(name);
        let Some(value) = at.value else { return Vec::new() };
        let items = at.expect(value.as_array(), value, "a list of tables, which only the file can set");
        let tables = items.into_iter().flatten().enumerate().map(|(index, _)| at.item(index));
        tables.inspect(|table| table.must_be_table("a table")).collect()
    }

    /// Records this table of a list as part of the effective configuration.
    pub(super) fn enter(&self) {
        if let Some((list, name)) = self.path.split_last() {
            self.report.record().open(&list, name, Shape::Table, true);
        }
    }
}
