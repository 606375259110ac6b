//! The building blocks of the file's shape: leaves and sections that never fail to deserialize.
//!
//! serde stops at the first problem. So a [`Field`] keeps its value *or* what is wrong with it, a [`Section`] keeps unknown keys, and `check`
//! reports them all. Types are strict: no text for a number, no number for text, no fraction for a whole.

use std::marker::PhantomData;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, Visitor, value},
};

use super::{
    path::Path,
    problems::{Report, did_you_mean},
};

/// A value as one type of the schema.
pub(super) trait Leaf: Sized {
    /// The value, or what is wrong with it.
    fn read(value: &toml::Value) -> Result<Self, Vec<Complaint>>;
}

/// What is wrong with a value, or with an element of it.
#[derive(Clone, Debug)]
pub(super) struct Complaint {
    index: Option<usize>,
    message: String,
    /// Text was found where a number or truth value was expected.
    untyped: bool,
}

/// A key that is absent, right or wrong.
#[derive(Clone, Debug)]
pub(super) struct Field<T>(Option<Result<T, Vec<Complaint>>>);

/// A table, or a word such as `off` in its place.
#[derive(Clone, Debug, Default)]
pub(super) struct Section<T> {
    table: Box<T>,
    unknown: Vec<String>,
    other: Option<toml::Value>,
    is_present: bool,
}

// === impl Complaint ===

impl Complaint {
    /// `value` is not what was expected.
    pub(super) fn expected(value: &toml::Value, expected: &str) -> Vec<Self> {
        Self::say(format!("is {}, expected {expected}", shown(value)))
    }

    /// The same, where text in an environment variable may still turn out to be it.
    pub(super) fn expected_untyped(value: &toml::Value, expected: &str) -> Vec<Self> {
        let mut complaints = Self::expected(value, expected);
        complaints.iter_mut().for_each(|complaint| complaint.untyped = value.is_str());
        complaints
    }

    pub(super) fn say(message: String) -> Vec<Self> {
        vec![Self { index: None, message, untyped: false }]
    }

    pub(super) fn at(mut self, index: usize) -> Self {
        self.index = Some(index);
        self
    }
}

/// A value for a message: short, on one line.
pub(super) fn shown(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => {
            let short: String = text.chars().take(60).collect();
            if short.len() < text.len() { format!("{short:?}...") } else { format!("{short:?}") }
        }
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => format!("{number:?}"),
        toml::Value::Boolean(truth) => truth.to_string(),
        toml::Value::Datetime(_) => "a date".to_owned(),
        toml::Value::Array(_) => "a list".to_owned(),
        toml::Value::Table(_) => "a table".to_owned(),
    }
}

// === impl Field ===

impl<T> Default for Field<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Leaf> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Some(T::read(&toml::Value::deserialize(deserializer)?))))
    }
}

impl<T: Clone> Field<T> {
    /// The value; reports what is wrong with it, and then it is as if absent.
    pub(super) fn get(&self, path: &Path, report: &mut Report<'_>) -> Option<T> {
        match self.0.as_ref()? {
            Ok(value) => Some(value.clone()),
            Err(complaints) => {
                for complaint in complaints {
                    let path = complaint.index.map_or_else(|| path.clone(), |index| path.index(index));
                    if complaint.untyped {
                        report.untyped.push(path.clone());
                    }
                    report.problem(&path, complaint.message.clone());
                }
                None
            }
        }
    }

    /// Whether the key is there, right or wrong.
    pub(super) fn is_present(&self) -> bool {
        self.0.is_some()
    }
}

// === impl Section ===

impl<'de, T: DeserializeOwned + Default> Deserialize<'de> for Section<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        let toml::Value::Table(mut table) = value else {
            return Ok(Self { other: Some(value), is_present: true, ..Self::default() });
        };
        let known = keys_of::<T>();
        let unknown: Vec<String> = table.keys().filter(|key| !known.contains(&key.as_str())).cloned().collect();
        unknown.iter().for_each(|key| {
            table.remove(key);
        });
        // All that is left are fields and sections, which cannot fail.
        let table = T::deserialize(toml::Value::Table(table)).map_err(D::Error::custom)?;
        Ok(Self { table: Box::new(table), unknown, other: None, is_present: true })
    }
}

impl<T: DeserializeOwned> Section<T> {
    /// The table, all defaults where it is absent; reports unknown keys and what is no table.
    pub(super) fn open(&self, path: &Path, report: &mut Report<'_>) -> &T {
        self.open_or_off(path, report, false)
    }

    /// The same for a table in whose place `"off"` may stand; see [`Section::is_off`].
    pub(super) fn open_or_off(&self, path: &Path, report: &mut Report<'_>, may_be_off: bool) -> &T {
        if let Some(other) = self.other.as_ref().filter(|_| !(may_be_off && self.is_off())) {
            let off = if may_be_off { ", or \"off\"" } else { "" };
            report.problem(path, format!("is {}, expected a table{off}", shown(other)));
        }
        let known = keys_of::<T>();
        for key in &self.unknown {
            let known_here =
                if known.len() <= 14 { format!(", expected one of {}", known.join(", ")) } else { String::new() };
            report.key_problem(&path.key(key), format!("is no key{known_here}{}", did_you_mean(key, known)));
        }
        &self.table
    }

    /// The table without a look at what is wrong with it.
    pub(super) fn keys(&self) -> &T {
        &self.table
    }

    /// Whether the word `off` stands here.
    pub(super) fn is_off(&self) -> bool {
        self.other.as_ref().and_then(toml::Value::as_str) == Some("off")
    }

    /// Whether a table stands here.
    pub(super) fn is_table(&self) -> bool {
        self.is_present && self.other.is_none()
    }

    /// Whether anything stands here.
    pub(super) fn is_present(&self) -> bool {
        self.is_present
    }
}

/// The keys of a derived struct, as serde knows them: the schema is written down once.
pub(super) fn keys_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut keys: &'static [&'static str] = &[];
    // Always an error: the point is what it asked for.
    match T::deserialize(Keys { keys: &mut keys, lifetime: PhantomData }) {
        Ok(_) | Err(_) => keys,
    }
}

/// A deserializer that has nothing to give, and only writes down what a struct asks for.
struct Keys<'a> {
    keys: &'a mut &'static [&'static str],
    lifetime: PhantomData<&'a ()>,
}

impl<'de> Deserializer<'de> for Keys<'_> {
    type Error = value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(value::Error::custom("only structs have keys"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.keys = fields;
        Err(value::Error::custom("these are the keys"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq
        tuple tuple_struct map enum identifier ignored_any
    }
}

/// Sections by name (`[gates.NAME]`).
#[derive(Clone, Debug, Default)]
pub(super) struct Named<T> {
    sections: Vec<(String, Section<T>)>,
    wrong: Option<toml::Value>,
}

/// Sections in order (`[[classes]]`).
#[derive(Clone, Debug, Default)]
pub(super) struct Listed<T> {
    sections: Vec<Section<T>>,
    wrong: Option<toml::Value>,
}

// === impl Named ===

impl<'de, T: DeserializeOwned + Default> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        let toml::Value::Table(table) = value else { return Ok(Self { sections: Vec::new(), wrong: Some(value) }) };
        let read = |(name, value)| Ok((name, Section::deserialize::<toml::Value>(value).map_err(D::Error::custom)?));
        let sections = table.into_iter().map(read).collect::<Result<_, D::Error>>()?;
        Ok(Self { sections, wrong: None })
    }
}

impl<T> Named<T> {
    pub(super) fn open(&self, path: &Path, report: &mut Report<'_>) -> &[(String, Section<T>)] {
        if let Some(wrong) = &self.wrong {
            report.problem(path, format!("is {}, expected tables by name", shown(wrong)));
        }
        &self.sections
    }
}

// === impl Listed ===

impl<'de, T: DeserializeOwned + Default> Deserialize<'de> for Listed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        let toml::Value::Array(items) = value else { return Ok(Self { sections: Vec::new(), wrong: Some(value) }) };
        let read = |value| Section::deserialize::<toml::Value>(value).map_err(D::Error::custom);
        let sections = items.into_iter().map(read).collect::<Result<_, D::Error>>()?;
        Ok(Self { sections, wrong: None })
    }
}

impl<T> Listed<T> {
    pub(super) fn open(&self, path: &Path, report: &mut Report<'_>) -> &[Section<T>] {
        if let Some(wrong) = &self.wrong {
            report
                .problem(path, format!("is {}, expected a list of tables, which only the file can give", shown(wrong)));
        }
        &self.sections
    }
}
