//! Writes a tree as JSON, for documents that were JSON: in their order, and with their indentation.
//!
//! A stream of JSON documents is one for YAML readers too, so only what is written differs.

use std::borrow::Cow;

use granit_parser::ScalarStyle;

use crate::yaml::{Node, Scalar};

/// The form in which a JSON document was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// The spaces of a level; `None` if everything is on one line.
    indent: Option<usize>,
    ends_line: bool,
}

// === impl Form ===

impl Form {
    /// Returns the form of a document; `None` if it is not JSON.
    pub(super) fn of(text: &str) -> Option<Self> {
        let bare = text.trim();
        if !bare.starts_with('{') || serde_json::from_str::<serde::de::IgnoredAny>(bare).is_err() {
            return None;
        }
        let indent = bare.split_once('\n').map(|(_, rest)| rest.len() - rest.trim_start_matches(' ').len());
        Some(Self { indent, ends_line: text.ends_with('\n') })
    }

    /// The same form for a document that ends its line.
    pub(super) fn with_line_end(self) -> Self {
        Self { ends_line: true, ..self }
    }

    /// Writes a document.
    pub(super) fn document(self, root: &Node) -> String {
        let mut out = String::new();
        self.node(root, 0, &mut out);
        if self.ends_line {
            out.push('\n');
        }
        out
    }

    fn node(self, node: &Node, depth: usize, out: &mut String) {
        match node {
            Node::Scalar(scalar) => out.push_str(&value(scalar)),
            Node::List(items, _) => {
                self.all(items, ['[', ']'], depth, out, |item, out| self.node(item, depth + 1, out))
            }
            Node::Map(entries, _) => self.all(entries, ['{', '}'], depth, out, |(name, value), out| {
                out.push_str(&quoted(name.text().unwrap_or_default()));
                out.push_str(if self.indent.is_some() { ": " } else { ":" });
                self.node(value, depth + 1, out);
            }),
        }
    }

    /// Writes items between brackets.
    fn all<T>(
        self,
        items: &[T],
        [open, close]: [char; 2],
        depth: usize,
        out: &mut String,
        write: impl Fn(&T, &mut String),
    ) {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            self.next_line(depth + 1, out);
            write(item, out);
        }
        if !items.is_empty() {
            self.next_line(depth, out);
        }
        out.push(close);
    }

    fn next_line(self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}

/// Returns a document in which a YAML reader reads what a JSON reader does: JSON lets characters
/// stand in its strings that YAML wants written out. Another document is left as it is.
pub(super) fn for_yaml(text: &str) -> Cow<'_, str> {
    if !text.contains(is_json_only) || Form::of(text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_json_only(c) {
            // All of them have four digits, and stand nowhere but in strings.
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// True for what is no character of YAML's, ends a line there, or marks the order of bytes.
fn is_json_only(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// Writes a scalar. Plain text is a number or a word of JSON, or else a string.
fn value(scalar: &Scalar) -> String {
    let text = &*scalar.text;
    if scalar.style != ScalarStyle::Plain {
        return quoted(text);
    }
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(value) if !value.is_string() => text.to_owned(),
        _ if text.is_empty() => "null".to_owned(),
        _ => quoted(text),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
