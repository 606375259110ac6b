//! Reads a document into a Rust type, as kubectl reads it: null counts as absent, unknown keys are
//! ignored, the last of two equal keys wins, and text that looks like a number or a truth value
//! must be quoted where text belongs (`token: 123` is an error).
//!
//! An error gives the place, but never the content: the files that are read this way hold secrets.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use granit_parser::ScalarStyle;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, IntoDeserializer, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};

use super::{Node, Scalar, read};

/// The place of a wrong type in a document; its text can follow the name of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The document is not YAML, at this line.
    #[error(":{0}")]
    Line(usize),
    /// The type is wrong at this key, outermost first; the whole document if there is none.
    #[default]
    #[error("")]
    Whole,
    /// See [`Self::Whole`].
    #[error(", at `{0}`,")]
    Key(String),
    /// Text belongs there, and it is a number or a truth value; without a key until the key is
    /// known.
    #[error(", at `{0}`, where text belongs (put a number, or a word such as yes, in quotes),")]
    Unquoted(String),
}

/// What a scalar is if its type is not given.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ScalarType {
    Null,
    Bool(bool),
    Whole(i64),
    Number(f64),
    Text,
}

/// Reads a document; a document without content gives the default.
pub fn from_str<T: Default + for<'de> Deserialize<'de>>(text: &str) -> Result<T, Misfit> {
    let root = read(text, 0).map_err(|unreadable| Misfit::Line(unreadable.line))?;
    let Some(node) = root.filter(|node| !node.is_null()) else { return Ok(T::default()) };
    serde_path_to_error::deserialize(&node).map_err(|error| match (error.path(), error.inner()) {
        (path, _) if path.iter().len() == 0 => Misfit::Whole,
        (path, Misfit::Unquoted(_)) => Misfit::Unquoted(path.to_string()),
        (path, _) => Misfit::Key(path.to_string()),
    })
}

// === impl Misfit ===

impl de::Error for Misfit {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Whole // the message may quote the value
    }
}

// === impl Deserializer for Node ===

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self {
            Node::Scalar(scalar) => untyped(scalar, visitor),
            Node::List(..) => self.deserialize_seq(visitor),
            Node::Map(..) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let Node::Scalar(scalar) = self else { return Err(Misfit::Whole) };
        match looks(scalar) {
            ScalarType::Null => visitor.visit_borrowed_str(""),
            ScalarType::Text if scalar.tag.as_deref() == Some("!!binary") => {
                visitor.visit_string(binary(&scalar.text)?)
            }
            ScalarType::Text => visitor.visit_borrowed_str(&scalar.text),
            ScalarType::Bool(_) | ScalarType::Whole(_) | ScalarType::Number(_) => Err(Misfit::Unquoted(String::new())),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let Node::Scalar(scalar) = self else { return Err(Misfit::Whole) };
        match looks(scalar) {
            ScalarType::Bool(value) => visitor.visit_bool(value),
            ScalarType::Null => visitor.visit_bool(false),
            ScalarType::Whole(_) | ScalarType::Number(_) | ScalarType::Text => Err(Misfit::Whole),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self {
            Node::Map(..) => Err(Misfit::Whole),
            Node::Scalar(_) if !self.is_null() => Err(Misfit::Whole),
            Node::List(..) | Node::Scalar(_) => visitor.visit_seq(SeqDeserializer::new(self.items().iter())),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let entries = match self {
            Node::Map(entries, _) => &**entries,
            _ if self.is_null() => &[],
            Node::List(..) | Node::Scalar(_) => return Err(Misfit::Whole),
        };
        // a key is text whatever it looks like, and may have been given again
        let mut last: Vec<(&str, &Node)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let Some(key) = key.text() else { return Err(Misfit::Whole) };
            match last.iter_mut().find(|(known, _)| *known == key) {
                Some((_, earlier)) => *earlier = value,
                None => last.push((key, value)),
            }
        }
        visitor.visit_map(MapDeserializer::new(last.into_iter()))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct enum
    }
}

impl<'de> IntoDeserializer<'de, Misfit> for &'de Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Visits a scalar if no type is required.
fn untyped<'de, V: Visitor<'de>>(scalar: &'de Scalar, visitor: V) -> Result<V::Value, Misfit> {
    match looks(scalar) {
        ScalarType::Null => visitor.visit_unit(),
        ScalarType::Bool(value) => visitor.visit_bool(value),
        ScalarType::Whole(whole) => visitor.visit_i64(whole),
        ScalarType::Number(number) => visitor.visit_f64(number),
        ScalarType::Text => visitor.visit_borrowed_str(&scalar.text),
    }
}

/// Returns the type of a scalar by its looks, unless it is quoted or tagged: by YAML 1.1, which
/// kubectl reads.
fn looks(scalar: &Scalar) -> ScalarType {
    let text = &*scalar.text;
    if scalar.style != ScalarStyle::Plain || scalar.tag.is_some() {
        return ScalarType::Text;
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarType::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            return ScalarType::Bool(true);
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            return ScalarType::Bool(false);
        }
        _ if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) => {
            return ScalarType::Text;
        }
        _ => {}
    }
    let text = text.replace('_', "");
    match (whole(&text), text.parse::<f64>()) {
        (Some(whole), _) => ScalarType::Whole(whole),
        // `inf` and `nan` are numbers to Rust, and words to YAML
        (None, Ok(number)) if text.contains(|byte: char| byte.is_ascii_digit()) => ScalarType::Number(number),
        (None, _) => ScalarType::Text,
    }
}

/// Reads a whole number in any base of YAML 1.1.
fn whole(text: &str) -> Option<i64> {
    let (sign, digits) = match text.split_at_checked(1) {
        Some((sign @ ("+" | "-"), digits)) => (sign, digits),
        _ => ("", text),
    };
    let (base, digits) = match digits.split_at_checked(2) {
        Some(("0x" | "0X", digits)) => (16, digits),
        Some(("0o" | "0O", digits)) => (8, digits),
        Some(("0b" | "0B", digits)) => (2, digits),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, digits),
        _ => (10, digits),
    };
    if !digits.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{digits}"), base).ok()
}

/// Reads the text in a `!!binary`.
fn binary(text: &str) -> Result<String, Misfit> {
    let text: String = text.chars().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or(Misfit::Whole)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "kebab-case", default)]
    struct Wanted {
        name: String,
        flag: Option<bool>,
        list: Option<Vec<String>>,
        inner: Inner,
        more: BTreeMap<String, Vec<String>>,
        any: Value,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Inner {
        text: Option<String>,
    }

    fn wanted(text: &str) -> Result<Wanted, Misfit> {
        from_str(text)
    }

    #[test]
    fn text_is_text_where_text_is_wanted() {
        let read =
            wanted("name: '123'\ninner: {text: !!str true}\nlist: ['1', a, 2020-01-01, ~, 1.2.3]\nmore: {1: [-x]}");
        let read = read.unwrap();
        assert_eq!(read.name, "123");
        assert_eq!(read.inner.text.as_deref(), Some("true"));
        assert_eq!(read.list.unwrap(), ["1", "a", "2020-01-01", "", "1.2.3"]);
        assert_eq!(read.more["1"], ["-x"]);
    }

    #[test]
    fn what_kubectl_takes_for_a_number_is_no_text() {
        for number in ["1", "-1", "+1", "007", "0x1f", "0b1", "1_000", "1.5", ".5", "1e3", "yes", "Off", "true"] {
            let misfit = wanted(&format!("inner: {{text: {number}}}")).unwrap_err();
            assert_eq!(misfit, Misfit::Unquoted("inner.text".to_owned()), "{number}");
        }
    }

    #[test]
    fn binary_is_what_it_stands_for() {
        assert_eq!(wanted("name: !!binary |\n  aHVu\n  dGVyMg==\n").unwrap().name, "hunter2");
        assert_eq!(wanted("name: !!binary '?'").unwrap_err(), Misfit::Key("name".to_owned()));
    }

    #[test]
    fn the_last_of_two_equal_keys_wins() {
        assert_eq!(wanted("name: a\nname: b").unwrap().name, "b");
    }

    #[test]
    fn null_is_as_good_as_absent() {
        assert_eq!(wanted("").unwrap(), Wanted::default());
        assert_eq!(wanted("# nothing\n").unwrap(), Wanted::default());
        assert_eq!(wanted("null").unwrap(), Wanted::default());
        assert_eq!(wanted("name:\nflag: ~\nlist:\ninner:\nmore: null\nany:\n").unwrap(), Wanted::default());
    }

    #[test]
    fn what_no_type_is_wanted_of_is_what_it_looks_like() {
        let read = wanted("any: [1, -2, 1.5, 1e3, true, null, '1', !!str 2, .inf, nan, {a: &a [b], c: *a}]").unwrap();
        let expected = json!([1, -2, 1.5, 1000.0, true, null, "1", "2", ".inf", "nan", {"a": ["b"], "c": ["b"]}]);
        assert_eq!(read.any, expected);
    }

    #[test]
    fn a_misfit_says_where_and_never_what() {
        for (text, says) in [
            ("name: [a]", ", at `name`,"),
            ("inner: hunter2", ", at `inner`,"),
            ("inner: {text: [hunter2]}", ", at `inner.text`,"),
            ("list: [a, {hunter2: b}]", ", at `list[1]`,"),
            ("more: {a: [b, [c]]}", ", at `more.a[1]`,"),
            ("flag: hunter2", ", at `flag`,"),
            ("[a, b]", ""),
            ("hunter2", ""),
            ("{[a]: b}", ""),
            ("name: a\nlist: [b\nflag: c: d", ":3"),
        ] {
            assert_eq!(wanted(text).unwrap_err().to_string(), says, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_as_json_is_read_as_json(value in json_value()) {
            let text = format!("any: {value}");
            prop_assert_eq!(wanted(&text).unwrap().any, value, "{}", text);
        }
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{1,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }
}
