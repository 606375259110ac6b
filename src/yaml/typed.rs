//! Reads a document into a Rust type, as kubectl reads it: a text field accepts any scalar (`name:
//! 123`), null counts as absent, unknown keys are ignored.
//!
//! An error gives the place, but never the content: the files that are read this way hold secrets.

use std::fmt;

use granit_parser::ScalarStyle;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, IntoDeserializer, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};

use super::{Node, Scalar, read};

/// The place where a document has the wrong type; its text can follow the name of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misfit {
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
}

/// Reads a document; a document without content gives the default.
pub(crate) fn from_str<T: Default + for<'de> Deserialize<'de>>(text: &str) -> Result<T, Misfit> {
    let root = read(text, 0).map_err(|unreadable| Misfit::Line(unreadable.line))?;
    let Some(node) = root.filter(|node| !node.is_null()) else { return Ok(T::default()) };
    serde_path_to_error::deserialize(&node).map_err(|error| match error.path() {
        path if path.iter().len() == 0 => Misfit::Whole,
        path => Misfit::Key(path.to_string()),
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
        match self {
            _ if self.is_null() => visitor.visit_borrowed_str(""),
            Node::Scalar(scalar) => visitor.visit_borrowed_str(&scalar.text),
            Node::List(..) | Node::Map(..) => Err(Misfit::Whole),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_str(visitor)
    }

    /// Accepts the words of YAML 1.1, which kubectl reads.
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.text().map(str::to_ascii_lowercase).as_deref() {
            Some("true" | "yes" | "on" | "y") => visitor.visit_bool(true),
            Some("false" | "no" | "off" | "n" | "" | "~" | "null") => visitor.visit_bool(false),
            _ => Err(Misfit::Whole),
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
        visitor.visit_map(MapDeserializer::new(entries.iter().map(|(key, value)| (key, value))))
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

/// Visits a scalar if no type is required: by its looks, unless it is quoted or tagged.
fn untyped<'de, V: Visitor<'de>>(scalar: &'de Scalar, visitor: V) -> Result<V::Value, Misfit> {
    let text = &*scalar.text;
    if scalar.style != ScalarStyle::Plain || scalar.tag.is_some() {
        return visitor.visit_borrowed_str(text);
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => visitor.visit_unit(),
        "true" | "True" | "TRUE" => visitor.visit_bool(true),
        "false" | "False" | "FALSE" => visitor.visit_bool(false),
        _ => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(whole), _) => visitor.visit_i64(whole),
            // `inf` and `nan` are numbers to Rust, and words to YAML.
            (_, Ok(number)) if text.contains(|byte: char| byte.is_ascii_digit()) => visitor.visit_f64(number),
            _ => visitor.visit_borrowed_str(text),
        },
    }
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
        let read = wanted("name: 123\ninner: {text: true}\nlist: [1, 'a', 0x1f, ~]\nmore: {a: [yes]}").unwrap();
        assert_eq!(read.name, "123");
        assert_eq!(read.inner.text.as_deref(), Some("true"));
        assert_eq!(read.list.unwrap(), ["1", "a", "0x1f", ""]);
        assert_eq!(read.more["a"], ["yes"]);
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
            ("name: a\nname: b", ""),
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
