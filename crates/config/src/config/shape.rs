//! The forms of values in TOML, and how messages show values.

use toml::Value;

/// The form of a key's value in TOML. The JSON Schema is made from these forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    Truth,
    /// A whole number not below this one.
    Whole(u32),
    /// A whole number of at most 32 bits, not below this one.
    Whole32(u32),
    Number,
    /// A rate: a number per second, or text such as `"5000/h"`.
    Rate,
    Duration,
    /// A value of this form, or this word.
    Or(&'static Self, &'static str),
    Size,
    Word(&'static [&'static str]),
    /// One of these words, or the path of a TOML file.
    WordOrFile(&'static [&'static str]),
    /// A whole number of at least one, or one of these words.
    WholeOr(&'static [&'static str]),
    List(&'static Self),
    /// A listener's address, or a list of them.
    Addresses,
    TextByName,
    Any,
    Table,
    /// A table, or `off`.
    TableOrOff,
    /// A table, or a text in place of a table with only its first key.
    TableOrText,
    /// A limit: a table or `off`. The effective configuration shows it on one line.
    Limit,
    TablesByName,
    ListOfTables,
}

/// Formats a value for a message: short, and on one line.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let short: String = text.chars().take(60).collect();
            if short.len() < text.len() { format!("{short:?}...") } else { format!("{short:?}") }
        }
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(truth) => truth.to_string(),
        Value::Datetime(_) => "a date".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    }
}
