//! Writes an edit into the text of its document, so that the rest stays as it was written: comments,
//! blank lines, indentation, quoting.
//!
//! The trees before and after are walked together, and text is cut out or put in only where they
//! differ. The result is parsed and compared with the tree after. If it differs (an anchor stands for
//! several places, a key is in an unknown style), the document is written from the tree.

use std::ops::Range;

use granit_parser::ScalarStyle;

use super::emit::{self, Indent};
use crate::yaml::{self, Node, NodePlace, Parts};

/// Returns the text with `before` changed to `after`; `None` if that is impossible in place.
pub(super) fn splice(text: &str, before: &(Node, NodePlace), after: &Node) -> Option<String> {
    let (node, place) = before;
    let mut splice = Splice { text, list: 0, edits: Vec::new() };
    splice.list = splice.list_indent(node, place).unwrap_or(0);
    splice.change(node, place, after)?;
    let spliced = splice.applied();
    let (read, _) = yaml::read_placed(&spliced, 0).ok()??;
    same(&read, after).then_some(spliced)
}

/// True if two nodes mean the same, however they are written.
pub(super) fn same(one: &Node, other: &Node) -> bool {
    match (one, other) {
        (Node::Scalar(one), Node::Scalar(other)) => {
            let is_plain = |style| style == ScalarStyle::Plain;
            one.text == other.text && one.tag == other.tag && is_plain(one.style) == is_plain(other.style)
        }
        (Node::List(one, a), Node::List(other, b)) => {
            a.tag == b.tag && one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Node::Map(one, a), Node::Map(other, b)) => {
            let mut entries = one.iter().zip(other);
            a.tag == b.tag
                && one.len() == other.len()
                && entries.all(|(one, other)| same(&one.0, &other.0) && same(&one.1, &other.1))
        }
        _ => false,
    }
}

/// The edits of a text so far.
struct Splice<'a> {
    text: &'a str,
    /// The spaces before the dashes of the document's own lists.
    list: usize,
    /// The ranges cut out, and the text put in their place.
    edits: Vec<(Range<usize>, String)>,
}

// === impl Splice ===

impl Splice<'_> {
    /// Changes a node in its place; `None` if only its parent can be changed.
    fn change(&mut self, before: &Node, place: &NodePlace, after: &Node) -> Option<()> {
        if same(before, after) {
            return Some(());
        }
        match (before, after, &place.parts) {
            (Node::Map(old, shape), Node::Map(new, to), Parts::Entries(places)) if !shape.flow && !to.flow => {
                self.change_map(old, places, new)
            }
            (Node::List(old, shape), Node::List(new, to), Parts::Items(places)) if !shape.flow && !to.flow => {
                self.change_list(old, places, new)
            }
            // A node on one line is replaced by another on one line.
            _ => {
                let on_one_line = |node: &Node| match node {
                    Node::Scalar(scalar) => !matches!(scalar.style, ScalarStyle::Literal | ScalarStyle::Folded),
                    Node::List(_, shape) | Node::Map(_, shape) => shape.flow,
                };
                if !on_one_line(before) || !on_one_line(after) || place.bytes.is_empty() {
                    return None;
                }
                let mut line = String::new();
                emit::flow(after, &mut line);
                self.edits.push((place.bytes.clone(), line));
                Some(())
            }
        }
    }

    fn change_map(
        &mut self,
        old: &[(Node, Node)],
        places: &[(NodePlace, NodePlace)],
        new: &[(Node, Node)],
    ) -> Option<()> {
        let column = places.first()?.0.column;
        let mut rest = new;
        let mut last = None;
        for ((key, value), (key_place, value_place)) in old.iter().zip(places) {
            let end = self.end_of_entry(key_place, value, value_place)?;
            match rest.split_first() {
                Some(((name, changed), others)) if same(name, key) => {
                    let so_far = self.edits.len();
                    if self.change(value, value_place, changed).is_none() {
                        self.edits.truncate(so_far);
                        let mut lines = String::new();
                        emit::entry(name, changed, self.indent(column), &mut lines);
                        self.replace(key_place.bytes.start..end, &lines);
                    }
                    (rest, last) = (others, Some(end));
                }
                // It is gone. The first of a list's item stands on the line of the dash.
                _ => self.cut_lines(key_place.bytes.start, end)?,
            }
        }
        let mut lines = String::new();
        rest.iter().for_each(|(name, value)| emit::entry(name, value, self.indent(column), &mut lines));
        self.put_after(last?, lines);
        Some(())
    }

    fn change_list(&mut self, old: &[Node], places: &[NodePlace], new: &[Node]) -> Option<()> {
        let column = self.dash(places.first()?)?.1;
        let mut rest = new;
        let mut last = None;
        for (number, (item, place)) in old.iter().zip(places).enumerate() {
            let (dash, _) = self.dash(place)?;
            let end = self.end(item, place)?;
            match rest.split_first() {
                Some((changed, others)) if is_counterpart(item, changed) || others.len() + number + 1 == old.len() => {
                    let so_far = self.edits.len();
                    if self.change(item, place, changed).is_none() {
                        self.edits.truncate(so_far);
                        let mut lines = String::new();
                        emit::item(changed, self.indent(column), &mut lines);
                        self.replace(dash..end, &lines);
                    }
                    (rest, last) = (others, Some(end));
                }
                _ => self.cut_lines(dash, end)?,
            }
        }
        let mut lines = String::new();
        rest.iter().for_each(|item| emit::item(item, self.indent(column), &mut lines));
        self.put_after(last?, lines);
        Some(())
    }

    const fn indent(&self, at: usize) -> Indent {
        Indent { at, list: self.list }
    }

    /// Replaces a text, from behind its indentation, by indented lines.
    fn replace(&mut self, bytes: Range<usize>, lines: &str) {
        self.edits.push((bytes, lines.trim_start_matches(' ').trim_end_matches('\n').to_owned()));
    }

    /// Cuts out whole lines; `None` if something else begins on the first.
    fn cut_lines(&mut self, start: usize, end: usize) -> Option<()> {
        let line = self.text.get(..start)?.rfind('\n').map_or(0, |at| at + 1);
        if !self.text.get(line..start)?.bytes().all(|byte| byte == b' ') {
            return None;
        }
        self.edits.push((line..self.end_of_line(end), String::new()));
        Some(())
    }

    /// Puts lines behind the line of `end`.
    fn put_after(&mut self, end: usize, mut lines: String) {
        if lines.is_empty() {
            return;
        }
        let at = self.end_of_line(end);
        if !self.text.get(..at).is_some_and(|before| before.ends_with('\n')) {
            lines.pop();
            lines.insert(0, '\n');
        }
        self.edits.push((at..at, lines));
    }

    /// Returns the beginning of the next line.
    fn end_of_line(&self, at: usize) -> usize {
        self.text.get(at..).and_then(|rest| rest.find('\n')).map_or(self.text.len(), |length| at + length + 1)
    }

    /// Returns the position and the column of the dash before an item.
    fn dash(&self, item: &NodePlace) -> Option<(usize, usize)> {
        let before = self.text.get(..item.bytes.start)?.trim_end();
        let dash = before.strip_suffix('-')?.len();
        let line = before.rfind('\n').map_or(0, |at| at + 1);
        Some((dash, self.text.get(line..dash)?.chars().count()))
    }

    /// Returns the spaces between a key and the dashes of the first list below one.
    fn list_indent(&self, node: &Node, place: &NodePlace) -> Option<usize> {
        match (node, &place.parts) {
            (Node::Map(entries, _), Parts::Entries(places)) => {
                entries.iter().zip(places).find_map(|((_, value), (key, at))| match (value, &at.parts) {
                    (Node::List(_, shape), Parts::Items(items)) if !shape.flow && !items.is_empty() => {
                        Some(self.dash(items.first()?)?.1.saturating_sub(key.column))
                    }
                    _ => self.list_indent(value, at),
                })
            }
            (Node::List(items, _), Parts::Items(places)) => {
                items.iter().zip(places).find_map(|(item, at)| self.list_indent(item, at))
            }
            _ => None,
        }
    }

    /// Returns the end of an entry's text, without the comments after it.
    fn end_of_entry(&self, key: &NodePlace, value: &Node, place: &NodePlace) -> Option<usize> {
        let colon = key.bytes.end + self.text.get(key.bytes.end..)?.find(':')? + 1;
        Some(if value.is_null() && place.bytes.is_empty() { colon } else { self.end(value, place)?.max(colon) })
    }

    /// Returns the end of a node's text, without the comments after it.
    fn end(&self, node: &Node, place: &NodePlace) -> Option<usize> {
        match (node, &place.parts) {
            (Node::Map(entries, shape), Parts::Entries(places)) if !shape.flow => {
                let (key, value) = places.last()?;
                self.end_of_entry(key, &entries.get(places.len() - 1)?.1, value)
            }
            (Node::List(items, shape), Parts::Items(places)) if !shape.flow => self
                .end(items.last()?, places.last()?)
                .map(|end| end.max(places.last().map_or(0, |last| last.bytes.start))),
            _ => Some(place.bytes.start + self.text.get(place.bytes.clone())?.trim_end().len()),
        }
    }

    /// Returns the text with all edits, with its own line ends.
    fn applied(mut self) -> String {
        self.edits.sort_by_key(|(bytes, _)| bytes.start);
        let returns = self.text.contains("\r\n");
        let mut out = String::with_capacity(self.text.len() * 2);
        let mut done = 0;
        for (bytes, lines) in self.edits {
            out.push_str(self.text.get(done..bytes.start).unwrap_or_default());
            out.push_str(&if returns { lines.replace('\n', "\r\n") } else { lines });
            done = bytes.end.max(done);
        }
        out.push_str(self.text.get(done..).unwrap_or_default());
        out
    }
}

/// True if two items of a list are the same object: Kubernetes' lists are by name.
fn is_counterpart(one: &Node, other: &Node) -> bool {
    same(one, other)
        || one.get("name").is_some_and(|name| name.text().is_some() && name.text() == other.text_at(&["name"]))
}
