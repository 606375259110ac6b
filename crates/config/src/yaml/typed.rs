//! Reads a YAML document into a Rust type, as kubectl does.
//!
//! Null counts as absent, unknown keys are ignored, and the last of two equal keys wins. Text that
//! looks like a number or boolean must be quoted (`token: 123` is an error).
//!
//! An error shows the place, but never the content: these files contain secrets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use granit_parser::ScalarStyle;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};

use super::{Node, Scalar, read};

/// What is wrong with a document, and where. Its content is not shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The document is not YAML, from this line on.
    #[error("line {0} is not valid YAML")]
    Line(usize),
    /// The type is wrong at this key, outermost first; the whole document if there is none.
    #[error("it is not a mapping of keys to values")]
    Whole,
    /// The type is wrong at this key; outer keys come first.
    #[error("the value at `{0}` has the wrong type")]
    Key(String),
    /// Text belongs there, and it is a number or a truth value.
    #[error("the value at `{0}` is not text; put a number, or a word such as yes, in quotes")]
    Unquoted(String),
}

/// Reads a document. An empty document gives the default.
pub fn from_str<T: Default + DeserializeOwned>(text: &str) -> Result<T, Misfit> {
    let root = read(text, 0).map_err(|unreadable| Misfit::Line(unreadable.line))?;
    let Some(node) = root.filter(|node| !node.is_null()) else { return Ok(T::default()) };
    // A type takes a list for its fields.
    if !matches!(node, Node::Map(..)) {
        return Err(Misfit::Whole);
    }
    serde_path_to_error::deserialize(json(&node)?).map_err(|error| match error.path() {
        path if path.iter().len() == 0 => Misfit::Whole,
        path if is_unquoted(error.inner()) => Misfit::Unquoted(path.to_string()),
        path => Misfit::Key(path.to_string()),
    })
}

/// Returns true for the error of a number or boolean in place of text.
fn is_unquoted(error: &serde_json::Error) -> bool {
    let message = error.to_string();
    let found =
        ["boolean", "integer", "floating point"].iter().any(|it| message.starts_with(&format!("invalid type: {it}")));
    found && message.contains("expected a string")
}

fn json(node: &Node) -> Result<Value, Misfit> {
    match node {
        Node::Scalar(scalar) => Ok(looks(scalar)),
        Node::List(items, _) => items.iter().map(json).collect(),
        Node::Map(entries, _) => {
            let entry = |(key, value): &(Node, Node)| Ok((key.text().ok_or(Misfit::Whole)?.to_owned(), json(value)?));
            let mut map: Map<_, _> = entries.iter().map(entry).collect::<Result<_, _>>()?;
            map.retain(|_, value| !value.is_null());
            Ok(map.into())
        }
    }
}

/// Returns the value of a scalar. Without quotes or a tag, its text determines whether it is a
/// number, boolean or text, by the rules of YAML 1.1 as kubectl has them.
fn looks(scalar: &Scalar) -> Value {
    let text = &*scalar.text;
    if scalar.tag.as_deref() == Some("!!binary") {
        // Nothing fits an object, so that the place is reported.
        return binary(text).map_or_else(|| Map::new().into(), Value::from);
    }
    if scalar.style != ScalarStyle::Plain || scalar.tag.is_some() {
        return text.into();
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => return true.into(),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => return false.into(),
        _ if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) => return text.into(),
        _ => {}
    }
    let digits = text.replace('_', "");
    // `inf` and `nan` are numbers to Rust, and words to YAML
    let number = || digits.parse().ok().filter(|_| digits.contains(|byte: char| byte.is_ascii_digit()));
    let number = whole(&digits).map(Number::from).or_else(|| Number::from_f64(number()?));
    number.map_or_else(|| text.into(), Value::Number)
}

/// Reads a whole number in any notation of YAML 1.1, such as octal.
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

/// Decodes the text of a `!!binary` scalar.
fn binary(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|byte| !byte.is_ascii_whitespace()).collect();
    String::from_utf8(STANDARD.decode(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use serde::Deserialize;

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
        let read = wanted("name: '123'\ninner: {text: !!str true}\nlist: ['1', a, 2020-01-01, 1.2.3]\nmore: {1: [-x]}");
        let read = read.unwrap();
        assert_eq!(read.name, "123");
        assert_eq!(read.inner.text.as_deref(), Some("true"));
        assert_eq!(read.list.unwrap(), ["1", "a", "2020-01-01", "1.2.3"]);
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
            ("name: [a]", "the value at `name` has the wrong type"),
            ("inner: hunter2", "the value at `inner` has the wrong type"),
            ("inner: {text: [hunter2]}", "the value at `inner.text` has the wrong type"),
            ("list: [a, {hunter2: b}]", "the value at `list[1]` has the wrong type"),
            ("more: {a: [b, [c]]}", "the value at `more.a[1]` has the wrong type"),
            ("flag: hunter2", "the value at `flag` has the wrong type"),
            ("[a, b]", "it is not a mapping of keys to values"),
            ("hunter2", "it is not a mapping of keys to values"),
            ("{[a]: b}", "it is not a mapping of keys to values"),
            ("name: a\nlist: [b\nflag: c: d", "line 3 is not valid YAML"),
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
