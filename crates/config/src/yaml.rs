//! YAML as a tree preserving order, quoting and the text of plain scalars (`0644` stays octal).
//!
//! Aliases become copies of their anchors, and merge keys (`<<`) become the entries that they
//! bring. The size is limited: otherwise a few lines of nested anchors could expand to more than
//! fits in memory.

mod typed;

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Span, StructureStyle, Tag};

pub use self::typed::from_str;

/// A node of a YAML document.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A scalar: a single value.
    Scalar(Scalar),
    /// A list.
    List(Vec<Self>, Shape),
    /// A map: its entries, in order.
    Map(Vec<(Self, Self)>, Shape),
}

/// A scalar: its text, and how it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// The text itself.
    pub text: String,
    /// The kind of quotation marks, if any.
    pub style: ScalarStyle,
    /// The tag as written, such as `!!binary`.
    pub tag: Option<String>,
}

/// How a list or map was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shape {
    /// True for the inline form, such as `[a, b]`; false if every item is on a line of its own.
    pub flow: bool,
    /// The tag as written, such as `!!set`.
    pub tag: Option<String>,
}

/// An error in YAML.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of the YAML: {what}")]
pub struct YamlError {
    /// The line in the stream, counted from 1.
    pub line: usize,
    /// A description of the error.
    pub what: String,
}

/// The most nodes of a document, far more than any manifest has.
const MOST_NODES: usize = 1_000_000;
/// The deepest nesting of a document, far deeper than in any manifest.
const MOST_DEPTH: usize = 100;

/// Reads the first document; `None` if it is empty. `line` is the text's first line in the stream.
pub fn read(text: &str, line: usize) -> Result<Option<Node>, YamlError> {
    TreeReader::new(text, line).root()
}

/// Reads a text of only one document; anything after it is an error.
pub fn read_only(text: &str, line: usize) -> Result<Option<Node>, YamlError> {
    let mut reader = TreeReader::new(text, line);
    let root = reader.root()?;
    match reader.next()? {
        Some((Event::DocumentEnd, _)) if root.is_some() => match reader.next()? {
            Some((event, at)) if event != Event::StreamEnd => {
                Err(reader.wrong(at, "another document begins here, expected a line with --- before it"))
            }
            _ => Ok(root),
        },
        _ => Ok(root),
    }
}

/// Builds nodes from the parser's events.
struct TreeReader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    /// The nodes with an anchor, each with the number of nodes in it.
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
    line: usize,
}

// === impl TreeReader ===

impl<'a> TreeReader<'a> {
    fn new(text: &'a str, line: usize) -> Self {
        Self { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0, line }
    }

    /// Reads the root of the first document; `None` if it is empty.
    fn root(&mut self) -> Result<Option<Node>, YamlError> {
        loop {
            match self.next()? {
                Some((Event::StreamEnd | Event::DocumentEnd, _)) | None => return Ok(None),
                Some((Event::StreamStart | Event::DocumentStart(..), _)) => {}
                Some((event, at)) => return self.node(event, at, 0).map(Some),
            }
        }
    }

    /// Returns the parser's next event, skipping comments.
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, YamlError> {
        loop {
            match self.parser.next() {
                None => return Ok(None),
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok((event, span))) => return Ok(Some((event, span))),
                Some(Err(error)) => return Err(self.wrong_on(error.marker().line(), error.info())),
            }
        }
    }

    fn wrong(&self, at: Span, what: impl Into<String>) -> YamlError {
        self.wrong_on(at.start.line(), what)
    }

    fn wrong_on(&self, line: usize, what: impl Into<String>) -> YamlError {
        YamlError { line: self.line + line, what: what.into() }
    }

    /// Returns the next event within a document; the end of the stream is an error.
    fn inner(&mut self, at: Span) -> Result<(Event<'a>, Span), YamlError> {
        let found = self.next()?.filter(|(event, _)| *event != Event::StreamEnd);
        found.ok_or_else(|| self.wrong(at, "the document ends too early"))
    }

    fn node(&mut self, event: Event<'a>, at: Span, depth: usize) -> Result<Node, YamlError> {
        let before = self.nodes;
        self.grow(1, at)?;
        if depth > MOST_DEPTH {
            return Err(self.wrong(at, format!("values are nested deeper than {MOST_DEPTH} levels")));
        }
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = Scalar { text: text.into_owned(), style, tag: tag.as_deref().map(written) };
                (Node::Scalar(scalar), anchor)
            }
            Event::SequenceStart(style, anchor, tag) => {
                (Node::List(self.list(at, depth)?, shape(style, tag.as_deref())), anchor)
            }
            Event::MappingStart(style, anchor, tag) => {
                (Node::Map(self.map(at, depth)?, shape(style, tag.as_deref())), anchor)
            }
            Event::Alias(id) => {
                let Some((node, size)) = self.anchors.get(&id).cloned() else {
                    return Err(self.wrong(at, "an alias (*) is inside the anchor (&) that it names"));
                };
                self.grow(size, at)?;
                return Ok(node);
            }
            other => return Err(self.wrong(at, format!("expected a scalar, a list or a mapping, found {other:?}"))),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), self.nodes - before));
        }
        Ok(node)
    }

    fn list(&mut self, at: Span, depth: usize) -> Result<Vec<Node>, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.inner(at)? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, at) => items.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn map(&mut self, at: Span, depth: usize) -> Result<Vec<(Node, Node)>, YamlError> {
        let mut entries = Vec::new();
        let mut merged = Vec::new();
        loop {
            let (event, at) = self.inner(at)?;
            if event == Event::MappingEnd {
                break;
            }
            let key = self.node(event, at, depth + 1)?;
            let (event, at) = self.inner(at)?;
            let value = self.node(event, at, depth + 1)?;
            let is_merge =
                matches!(&key, Node::Scalar(scalar) if scalar.style == ScalarStyle::Plain && scalar.text == "<<");
            match (is_merge, value) {
                (true, Node::Map(brought, _)) => merged.push(brought),
                (true, Node::List(several, _)) => {
                    merged.extend(several.into_iter().filter_map(|node| match node {
                        Node::Map(brought, _) => Some(brought),
                        Node::List(..) | Node::Scalar(_) => None,
                    }));
                }
                (_, value) => entries.push((key, value)),
            }
        }
        // A key of the map itself wins; then the map that was merged first.
        for (key, value) in merged.into_iter().flatten() {
            if !entries.iter().any(|(own, _): &(Node, Node)| own.text().is_some() && own.text() == key.text()) {
                entries.push((key, value));
            }
        }
        Ok(entries)
    }

    fn grow(&mut self, nodes: usize, at: Span) -> Result<(), YamlError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MOST_NODES {
            return Err(self.wrong(at, format!("the document has more than {MOST_NODES} values with its aliases")));
        }
        Ok(())
    }
}

fn shape(style: StructureStyle, tag: Option<&Tag>) -> Shape {
    Shape { flow: style == StructureStyle::Flow, tag: tag.map(written) }
}

/// Writes a tag in a form independent of the document's tag directives.
fn written(tag: &Tag) -> String {
    match (tag.handle(), tag.suffix()) {
        ("tag:yaml.org,2002:", suffix) => format!("!!{suffix}"),
        ("!", suffix) => format!("!{suffix}"),
        (handle, suffix) => format!("!<{handle}{suffix}>"),
    }
}

// === impl Node ===

impl Node {
    /// Creates a scalar without quotes.
    pub fn plain(text: impl Into<String>) -> Self {
        Self::Scalar(Scalar { text: text.into(), style: ScalarStyle::Plain, tag: None })
    }

    /// Makes a quoted scalar; it stays text whatever it looks like.
    pub fn quoted(text: impl Into<String>) -> Self {
        Self::Scalar(Scalar { text: text.into(), style: ScalarStyle::DoubleQuoted, tag: None })
    }

    /// Creates a map of keys without quotes.
    pub fn map<const N: usize>(entries: [(&str, Self); N]) -> Self {
        Self::Map(entries.into_iter().map(|(key, value)| (Self::plain(key), value)).collect(), Shape::default())
    }

    /// Creates a list.
    pub fn list(items: impl IntoIterator<Item = Self>) -> Self {
        Self::List(items.into_iter().collect(), Shape::default())
    }

    /// Returns the text of a scalar; `None` for another node.
    pub fn text(&self) -> Option<&str> {
        let Self::Scalar(scalar) = self else { return None };
        Some(&scalar.text)
    }

    /// Returns true for an empty value: `key:`, `~` or `null`.
    pub fn is_null(&self) -> bool {
        let Self::Scalar(scalar) = self else { return false };
        scalar.style == ScalarStyle::Plain && matches!(&*scalar.text, "" | "~" | "null" | "Null" | "NULL")
    }

    /// Returns the value of a key in this map.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries, _) = self else { return None };
        entries.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
    }

    /// Returns the value of a key in this map, to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Self::Map(entries, _) = self else { return None };
        entries.iter_mut().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
    }

    /// Returns the value at a path of keys through nested maps.
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// Returns the value at a path of keys through nested maps, to be changed.
    pub fn at_mut(&mut self, path: &[&str]) -> Option<&mut Self> {
        path.iter().try_fold(self, |node, key| node.get_mut(key))
    }

    /// Returns the text at a path of keys through nested maps.
    pub fn text_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path)?.text()
    }

    /// Returns the list under a key; an empty one if there is none.
    pub fn list_of(&self, key: &str) -> &[Self] {
        self.get(key).map_or(&[], Self::items)
    }

    /// Returns the list under a key, to be changed.
    pub fn list_of_mut(&mut self, key: &str) -> Option<&mut Vec<Self>> {
        self.get_mut(key)?.items_mut()
    }

    /// Sets a key: in place if it exists, or else at the end of the map. Does nothing if this node
    /// is not a map.
    pub fn set(&mut self, key: &str, value: Self) {
        if let Some(old) = self.get_mut(key) {
            *old = value;
        } else if let Self::Map(entries, _) = self {
            entries.push((Self::plain(key), value));
        }
    }

    /// Removes a key and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<Self> {
        let Self::Map(entries, _) = self else { return None };
        let index = entries.iter().position(|(name, _)| name.text() == Some(key))?;
        Some(entries.remove(index).1)
    }

    /// Returns the items of a list; an empty slice for any other node.
    pub fn items(&self) -> &[Self] {
        let Self::List(items, _) = self else { return &[] };
        items
    }

    /// Returns the items of a list, to be changed.
    pub fn items_mut(&mut self) -> Option<&mut Vec<Self>> {
        let Self::List(items, _) = self else { return None };
        Some(items)
    }

    /// Returns true for a map without entries, and for a list without items.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::List(items, _) => items.is_empty(),
            Self::Map(entries, _) => entries.is_empty(),
            Self::Scalar(_) => false,
        }
    }
}
