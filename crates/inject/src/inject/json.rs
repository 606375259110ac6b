//! Writes a tree as JSON, for documents that were JSON: in their order, with their indentation.
//!
//! YAML readers read a stream of JSON documents too, so only the writing differs.

use std::borrow::Cow;

use granit_parser::ScalarStyle;
use serde::{Serialize, Serializer};
use serde_json::ser::PrettyFormatter;
use serde_json::value::RawValue;

use crate::yaml::{Node, Scalar};

/// How a JSON document was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// The spaces of each level; `None` if everything is on one line.
    indent: Option<usize>,
    ends_line: bool,
}

/// A node to be written as JSON.
struct JsonNode<'a>(&'a Node);

// === impl Form ===

impl Form {
    /// Returns how a document was written; `None` if it is not JSON.
    pub(super) fn of(text: &str) -> Option<Self> {
        let bare = text.trim();
        if !bare.starts_with('{') || serde_json::from_str::<serde::de::IgnoredAny>(bare).is_err() {
            return None;
        }
        let indent = bare.split_once('\n').map(|(_, rest)| rest.len() - rest.trim_start_matches(' ').len());
        Some(Self { indent, ends_line: text.ends_with('\n') })
    }

    /// Returns the same form with a line break at the end.
    pub(super) fn with_line_end(self) -> Self {
        Self { ends_line: true, ..self }
    }

    /// Writes a document.
    pub(super) fn document(self, root: &Node) -> String {
        let mut out = Vec::new();
        let written = match self.indent.map(|spaces| " ".repeat(spaces)) {
            None => serde_json::to_writer(&mut out, &JsonNode(root)),
            Some(indent) => {
                let form = PrettyFormatter::with_indent(indent.as_bytes());
                JsonNode(root).serialize(&mut serde_json::Serializer::with_formatter(&mut out, form))
            }
        };
        written.expect("a tree whose keys are strings can be written");
        if self.ends_line {
            out.push(b'\n');
        }
        String::from_utf8(out).expect("JSON is UTF-8")
    }
}

// === impl JsonNode ===

impl Serialize for JsonNode<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Node::Scalar(scalar) => scalar_value(scalar, serializer),
            Node::List(items, _) => serializer.collect_seq(items.iter().map(JsonNode)),
            Node::Map(entries, _) => serializer
                .collect_map(entries.iter().map(|(name, value)| (name.text().unwrap_or_default(), JsonNode(value)))),
        }
    }
}

/// Writes a scalar. Plain text becomes a number or a word of JSON if it is one, or else a string.
fn scalar_value<S: Serializer>(scalar: &Scalar, serializer: S) -> Result<S::Ok, S::Error> {
    let text = &*scalar.text;
    if scalar.style != ScalarStyle::Plain {
        return serializer.serialize_str(text);
    }
    match RawValue::from_string(text.to_owned()) {
        Ok(value) if !text.starts_with('"') => value.serialize(serializer),
        _ if text.is_empty() => serializer.serialize_unit(),
        _ => serializer.serialize_str(text),
    }
}

/// Escapes characters that JSON allows and YAML forbids. Only documents in JSON change.
pub(super) fn for_yaml(text: &str) -> Cow<'_, str> {
    if !text.contains(is_json_only) || Form::of(text).is_none() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(escaped(text)) // such characters occur only in strings
}

/// Returns a string in double quotes, for JSON and for YAML.
pub(super) fn quoted(text: &str) -> String {
    escaped(&serde_json::Value::from(text).to_string())
}

fn escaped(text: &str) -> String {
    // All of these characters have four digits.
    let escaped = |c| if is_json_only(c) { format!("\\u{:04x}", u32::from(c)) } else { String::from(c) };
    text.chars().map(escaped).collect()
}

/// Returns true for characters allowed in JSON strings and not in YAML.
fn is_json_only(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}
