//! The types of single values: text, numbers, durations, sizes, words.

use std::{collections::BTreeMap, time::Duration};

use toml::Value;

use super::{
    field::{Complaint, Leaf},
    problems::did_you_mean,
};
use crate::api::duration;

/// A duration with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

/// A number of bytes with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) usize);

/// `off`, `auto` or the like, or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Or<T> {
    /// The word.
    Word,
    /// The value.
    Value(T),
}

/// `"off"` or a duration.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrOff(pub(super) Or<Duration>);

/// `"auto"` or a duration.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrAuto(pub(super) Or<Duration>);

/// One word of a closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<T>(pub(super) T);

/// A closed list of words.
pub(super) trait Words: Copy + 'static {
    /// Each with what it means.
    const WORDS: &'static [(&'static str, Self)];
}

/// A list of texts.
#[derive(Clone, Debug, Default)]
pub(super) struct List(pub(super) Vec<String>);

/// A text, or a list of texts.
#[derive(Clone, Debug)]
pub(super) struct OneOrMore(pub(super) Vec<String>);

/// Texts by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts(pub(super) BTreeMap<String, String>);

/// Whatever stands there: for keys that take more than one kind of value.
#[derive(Clone, Debug)]
pub(super) struct Anything(pub(super) Value);

impl Leaf for String {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        value.as_str().map(str::to_owned).ok_or_else(|| Complaint::expected(value, "text in quotes"))
    }
}

impl Leaf for bool {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        value.as_bool().ok_or_else(|| Complaint::expected_untyped(value, "true or false"))
    }
}

impl Leaf for u64 {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        let number = value.as_integer().and_then(|number| Self::try_from(number).ok());
        number.ok_or_else(|| Complaint::expected_untyped(value, "a whole number, 0 or more"))
    }
}

impl Leaf for u32 {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        let number = value.as_integer().and_then(|number| Self::try_from(number).ok());
        number.ok_or_else(|| Complaint::expected_untyped(value, "a whole number from 0 to 4294967295"))
    }
}

impl Leaf for f64 {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        match value {
            Value::Float(number) => Ok(*number),
            // A rate with more than 2^53 whole tokens is far past every bound.
            Value::Integer(number) => {
                i32::try_from(*number).map(Self::from).map_err(|_| Complaint::expected(value, "a number that fits"))
            }
            _ => Err(Complaint::expected_untyped(value, "a number")),
        }
    }
}

impl Leaf for Span {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        value.as_str().and_then(span).map(Self).ok_or_else(|| Complaint::expected(value, A_DURATION))
    }
}

impl Leaf for OrOff {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        span_or(value, "off").map(Self)
    }
}

impl Leaf for OrAuto {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        span_or(value, "auto").map(Self)
    }
}

/// A duration that has its unit, even if it is zero.
fn span(text: &str) -> Option<Duration> {
    duration::read(text).filter(|_| text.ends_with(|c: char| c.is_ascii_lowercase()))
}

fn span_or(value: &Value, word: &str) -> Result<Or<Duration>, Vec<Complaint>> {
    match value.as_str() {
        Some(text) if text == word => Ok(Or::Word),
        text => text
            .and_then(span)
            .map(Or::Value)
            .ok_or_else(|| Complaint::expected(value, &format!("\"{word}\" or {A_DURATION}"))),
    }
}

impl Leaf for Bytes {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        value.as_str().and_then(bytes).map(Self).ok_or_else(|| Complaint::expected(value, "a size such as \"16MiB\""))
    }
}

/// Whole bytes, binary or decimal units.
fn bytes(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(end)?;
    let unit: usize = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

impl<T: Words> Leaf for Word<T> {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
        let found = value.as_str().and_then(|text| T::WORDS.iter().find(|(word, _)| *word == text));
        found.map(|(_, meaning)| Self(*meaning)).ok_or_else(|| {
            let near = value.as_str().map(|text| did_you_mean(text, &words)).unwrap_or_default();
            Complaint::expected(value, &format!("{}{near}", one_of(&words)))
        })
    }
}

/// `"a", "b" or "c"`.
pub(super) fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "nothing".to_owned(),
    }
}

impl Leaf for List {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        let Some(items) = value.as_array() else {
            return Err(Complaint::expected(value, "a list of texts, which only the file can give"));
        };
        let mut texts = Vec::new();
        let mut complaints = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match item.as_str() {
                Some(text) => texts.push(text.to_owned()),
                None => complaints.extend(Complaint::expected(item, "text in quotes").into_iter().map(|c| c.at(index))),
            }
        }
        if complaints.is_empty() { Ok(Self(texts)) } else { Err(complaints) }
    }
}

impl Leaf for OneOrMore {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        match value {
            Value::String(text) => Ok(Self(vec![text.clone()])),
            Value::Array(_) => List::read(value).map(|list| Self(list.0)),
            _ => Err(Complaint::expected(value, "text in quotes, or a list of such")),
        }
    }
}

impl Leaf for Texts {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        let Some(table) = value.as_table() else { return Err(Complaint::expected(value, "a table of texts")) };
        let mut texts = BTreeMap::new();
        for (name, value) in table {
            let Some(text) = value.as_str() else {
                return Err(Complaint::say(format!(
                    "{name:?} is {}, expected text in quotes",
                    super::field::shown(value)
                )));
            };
            texts.insert(name.clone(), text.to_owned());
        }
        Ok(Self(texts))
    }
}

impl Leaf for Anything {
    fn read(value: &Value) -> Result<Self, Vec<Complaint>> {
        Ok(Self(value.clone()))
    }
}

const A_DURATION: &str = "a duration with a unit, such as \"500ms\", \"8s\" or \"1m30s\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("16MiB", Some(16 << 20)),
            ("0B", Some(0)),
            ("2KB", Some(2_000)),
            ("1GiB", Some(1 << 30)),
            ("16", None),
            ("MiB", None),
            ("1.5MiB", None),
            ("-1B", None),
            ("16 MiB", None),
            ("99999999999999999999GiB", None),
            ("18446744073709551615GiB", None),
            ("", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
