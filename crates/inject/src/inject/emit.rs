//! Writes a tree as YAML: indented by two spaces, lists not indented, as `kubectl` and `kustomize`
//! do.
//!
//! Scalars keep their style of quotes if it can express the value. Double quotes can express every
//! value, and are used otherwise: for control characters, and for block scalars inside of `[...]`.

use granit_parser::ScalarStyle;

use super::json;
use crate::yaml::{Node, Scalar};

/// Formats a tree as a YAML document.
pub(super) fn document(root: &Node) -> String {
    let mut out = String::new();
    if is_block(root) {
        block(root, 0, &mut out);
    } else {
        flow(root, &mut out);
        out.push('\n');
    }
    out
}

/// Returns true if a node is written on lines of its own.
fn is_block(node: &Node) -> bool {
    match node {
        Node::Scalar(_) => false,
        Node::List(_, shape) | Node::Map(_, shape) => !shape.flow && !node.is_empty(),
    }
}

/// Writes the entries of a map or the items of a list, each on a line of its own.
fn block(node: &Node, indent: usize, out: &mut String) {
    match node {
        Node::Scalar(scalar) => value(scalar, indent, out),
        Node::Map(entries, _) => entries.iter().for_each(|(name, value)| entry(name, value, indent, out)),
        Node::List(items, _) => items.iter().for_each(|each| item(each, indent, out)),
    }
}

/// Writes an item of a list after its dash.
fn item(item: &Node, indent: usize, out: &mut String) {
    if matches!(item, Node::Map(..)) && is_block(item) && tag(item).is_none() {
        // The first entry is on the dash's line: the dash replaces a space of its indent.
        let dash = out.len() + indent;
        block(item, indent + 2, out);
        out.replace_range(dash..=dash, "-");
    } else {
        pad(indent, out);
        out.push('-');
        under(item, indent, 2, out);
    }
}

/// Writes an entry of a map: its key, a colon and its value.
fn entry(name: &Node, value: &Node, indent: usize, out: &mut String) {
    pad(indent, out);
    flow(name, out);
    out.push(':');
    under(value, indent, 0, out);
}

/// Writes the value of a key, or the item after a dash: on the same line, or on lines below it.
fn under(node: &Node, indent: usize, list: usize, out: &mut String) {
    if let Some(tag) = tag(node) {
        out.push(' ');
        out.push_str(tag);
    }
    match node {
        Node::Scalar(scalar) => value(scalar, indent, out),
        Node::List(..) | Node::Map(..) if is_block(node) => {
            out.push('\n');
            block(node, indent + if matches!(node, Node::List(..)) { list } else { 2 }, out);
        }
        Node::List(..) | Node::Map(..) => {
            out.push(' ');
            untagged(node, out);
            out.push('\n');
        }
    }
}

/// Writes a scalar after its key or dash, and ends the line.
fn value(scalar: &Scalar, indent: usize, out: &mut String) {
    match scalar.style {
        ScalarStyle::Literal | ScalarStyle::Folded if lines_can_say(&scalar.text) => {
            // Folding again could break lines in other places; literal style says the same value.
            out.push_str(" |");
            if scalar.text.starts_with([' ', '\n']) {
                out.push('2');
            }
            out.push_str(match scalar.text.strip_suffix('\n') {
                None => "-",
                Some(rest) if rest.ends_with('\n') || rest.is_empty() => "+",
                Some(_) => "",
            });
            out.push('\n');
            for line in scalar.text.strip_suffix('\n').unwrap_or(&scalar.text).split('\n') {
                if !line.is_empty() {
                    pad(indent + 2, out);
                    out.push_str(line);
                }
                out.push('\n');
            }
        }
        _ => {
            let start = out.len();
            out.push(' ');
            scalar_text(scalar, false, out);
            if out.len() == start + 1 {
                out.pop(); // nothing after `key:`
            }
            out.push('\n');
        }
    }
}

fn lines_can_say(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(|c| c != '\n' && c != '\t' && (c.is_control() || is_break(c)))
}

/// Returns true for the byte order mark, and for characters that only some readers take for a line
/// break.
fn is_break(c: char) -> bool {
    matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Writes a node in the inline form, such as `[a, b]`.
fn flow(node: &Node, out: &mut String) {
    if let Some(tag) = tag(node) {
        out.push_str(tag);
        out.push(' ');
    }
    untagged(node, out);
}

fn untagged(node: &Node, out: &mut String) {
    match node {
        Node::Scalar(scalar) => {
            let start = out.len();
            scalar_text(scalar, true, out);
            if out.len() == start {
                out.push_str("null");
            }
        }
        Node::List(items, _) => {
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "[" } else { ", " });
                flow(item, out);
            }
            out.push_str(if items.is_empty() { "[]" } else { "]" });
        }
        Node::Map(entries, _) => {
            for (index, (name, value)) in entries.iter().enumerate() {
                out.push_str(if index == 0 { "{" } else { ", " });
                flow(name, out);
                out.push_str(": ");
                flow(value, out);
            }
            out.push_str(if entries.is_empty() { "{}" } else { "}" });
        }
    }
}

fn scalar_text(scalar: &Scalar, in_flow: bool, out: &mut String) {
    let text = &scalar.text;
    // It was plain before, so only its new place can make a difference.
    let needs_quotes = |c: char| c.is_control() || is_break(c) || in_flow && matches!(c, ',' | '[' | ']' | '{' | '}');
    match scalar.style {
        ScalarStyle::Plain if !text.contains(needs_quotes) => out.push_str(text),
        ScalarStyle::SingleQuoted if !text.contains(|c: char| c.is_control() || is_break(c)) => {
            out.push_str(&format!("'{}'", text.replace('\'', "''")));
        }
        _ => out.push_str(&json::quoted(text)),
    }
}

fn tag(node: &Node) -> Option<&str> {
    match node {
        Node::Scalar(scalar) => scalar.tag.as_deref(),
        Node::List(_, shape) | Node::Map(_, shape) => shape.tag.as_deref(),
    }
}

fn pad(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}
