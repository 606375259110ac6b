//! The types of single values: text, numbers, durations, sizes, words and lists of these.
//!
//! Types are strict: a number in quotes is not a number, and a whole number has no fraction.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use toml::Value;

use super::cursor::{Cursor, TomlValue};
use super::problems::{alternatives, did_you_mean};
use super::shape::{Shape, describe};
use crate::api::duration;

/// A number of bytes, written with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) usize);

/// Implements [`TomlValue`] for types with one expression to read and one to write a value.
macro_rules! values {
    ($($type:ty: $shape:expr, $expected:expr, |$value:ident| $read:expr, |$this:ident| $write:expr;)+) => {
        $(impl TomlValue for $type {
            const SHAPE: Shape = $shape;

            fn read($value: &Value, at: &Cursor<'_>) -> Option<Self> {
                at.expect($read, $value, $expected)
            }

            fn write(&self) -> Value {
                let $this = self;
                Value::from($write)
            }
        })+
    };
}

values! {
    String: Shape::Text, "text in quotes",
        |value| value.as_str().map(str::to_owned), |this| this.as_str();
    bool: Shape::Truth, "true or false",
        |value| value.as_bool(), |this| *this;
    u64: Shape::Whole(0), "a whole number, 0 or more",
        |value| value.as_integer().and_then(|number| Self::try_from(number).ok()),
        |this| i64::try_from(*this).unwrap_or(i64::MAX);
    u32: Shape::Whole32(0), "a whole number from 0 to 4294967295",
        |value| value.as_integer().and_then(|number| Self::try_from(number).ok()), |this| *this;
    usize: Shape::Whole(0), "a whole number, 0 or more",
        |value| value.as_integer().and_then(|number| Self::try_from(number).ok()),
        |this| i64::try_from(*this).unwrap_or(i64::MAX);
    // The empty text stands for none.
    Option<String>: Shape::Text, "text in quotes",
        |value| value.as_str().map(|text| Some(text.to_owned()).filter(|text| !text.is_empty())),
        |this| this.as_deref().unwrap_or_default();
    Option<PathBuf>: Shape::Text, "text in quotes",
        |value| value.as_str().map(|path| Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty())),
        |this| this.as_ref().map_or_else(String::new, |path| path.display().to_string());
    // For keys that take more than one form.
    Value: Shape::Any, "a value", |value| Some(value.clone()), |this| this.clone();
    Duration: Shape::Duration, A_DURATION,
        |value| value.as_str().and_then(with_unit), |this| duration::write(*this);
    Bytes: Shape::Size, "a size such as \"16MiB\"",
        |value| value.as_str().and_then(bytes).map(Self), |this| in_largest_unit(this.0);
}

/// Declares types with a value, or a word in its place.
macro_rules! or_word {
    ($($(#[$doc:meta])* $type:ident: $word:literal;)+) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(super) struct $type<T>(pub(super) Option<T>);

        impl<T: TomlValue> TomlValue for $type<T> {
            const SHAPE: Shape = Shape::Or(&T::SHAPE, $word);

            fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
                let is_word = value.as_str() == Some($word);
                if is_word { Some(Self(None)) } else { T::read(value, &at.or($word)).map(Some).map(Self) }
            }

            fn write(&self) -> Value {
                self.0.as_ref().map_or_else(|| $word.into(), T::write)
            }
        })+
    };
}

or_word! {
    /// A value, or `off`.
    OrOff: "off";
    /// A value, or `auto`.
    OrAuto: "auto";
}

/// Reads a duration; it must have a unit, even if it is zero.
pub(super) fn with_unit(text: &str) -> Option<Duration> {
    duration::read(text).filter(|_| text.ends_with(|c: char| c.is_ascii_lowercase()))
}

/// Reads a whole number with a binary or decimal unit of bytes.
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

/// Formats a size in the largest unit giving a whole number.
fn in_largest_unit(bytes: usize) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let exact = units.iter().find(|(bits, _)| bytes != 0 && bytes.trailing_zeros() >= *bits);
    exact.map_or_else(|| format!("{bytes}B"), |(bits, unit)| format!("{}{unit}", bytes >> bits))
}

impl TomlValue for NonZeroU32 {
    const SHAPE: Shape = Shape::Whole32(1);

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        at.expect(Self::new(u32::read(value, at)?), value, "at least 1")
    }

    fn write(&self) -> Value {
        self.get().write()
    }
}

impl TomlValue for f64 {
    const SHAPE: Shape = Shape::Number;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        match value {
            Value::Float(number) => Some(*number),
            // A rate with more than 2^53 whole tokens is far past every bound.
            Value::Integer(number) => {
                at.expect(i32::try_from(*number).ok(), value, "a number that fits").map(Self::from)
            }
            _ => at.expect(None, value, "a number"),
        }
    }

    fn write(&self) -> Value {
        (*self).into()
    }
}

impl<T: TomlValue> TomlValue for Vec<T> {
    const SHAPE: Shape = Shape::List(&T::SHAPE);

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        let items = at.expect(value.as_array(), value, "a list of texts, which only the file can set")?;
        let read: Vec<_> = items.iter().enumerate().map(|(index, item)| T::read(item, &at.item(index))).collect();
        read.into_iter().collect()
    }

    fn write(&self) -> Value {
        Value::Array(self.iter().map(TomlValue::write).collect())
    }
}

impl TomlValue for BTreeMap<String, String> {
    const SHAPE: Shape = Shape::TextByName;

    fn read(value: &Value, at: &Cursor<'_>) -> Option<Self> {
        let table = at.expect(value.as_table(), value, "a table of texts")?;
        let text = |(name, value): (&String, &Value)| match value.as_str() {
            Some(text) => Some((name.clone(), text.to_owned())),
            None => {
                at.problem(format!("{name:?} is {}, expected text in quotes", describe(value)));
                None
            }
        };
        table.iter().map(text).collect()
    }

    fn write(&self) -> Value {
        Value::Table(self.iter().map(|(name, text)| (name.clone(), text.as_str().into())).collect())
    }
}

/// Reads one of these words.
pub(super) fn one_of(words: &[&'static str], value: &Value, at: &Cursor<'_>) -> Option<&'static str> {
    let text = value.as_str();
    let found = words.iter().copied().find(|word| text == Some(word));
    if found.is_none() {
        let near = text.map(|text| did_you_mean(text, words)).unwrap_or_default();
        at.problem(format!("is {}, expected {}{near}", describe(value), alternatives(words)));
    }
    found
}

pub(super) const A_DURATION: &str = "a duration with a unit, such as \"500ms\", \"8s\" or \"1m30s\"";

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
