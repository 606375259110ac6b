//! Writes a tree as JSON, for documents that were JSON: in their order.
//!
//! Such documents are read as YAML, because JSON is valid YAML, so only writing differs.

use std::borrow::Cow;

use granit_parser::ScalarStyle;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::yaml::{Node, Scalar};

/// A node to be written as JSON.
struct JsonNode<'a>(&'a Node);

/// Returns true for a document in JSON.
pub(super) fn is_json(text: &str) -> bool {
    let text = text.trim();
    text.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Writes a document.
pub(super) fn document(root: &Node) -> String {
    serde_json::to_string_pretty(&JsonNode(root)).expect("a tree whose keys are strings can be written") + "\n"
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

/// Writes a scalar. Without quotes, it becomes a JSON number or word if it is one; otherwise a
/// string.
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

/// Escapes characters allowed in JSON but not in YAML. Only JSON documents are changed.
pub(super) fn for_yaml(text: &str) -> Cow<'_, str> {
    if !text.contains(is_json_only) || !is_json(text) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(escaped(text)) // such characters occur only in strings
}

/// Returns a text in double quotes, valid in JSON and in YAML.
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
