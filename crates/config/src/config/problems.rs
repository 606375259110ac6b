//! The problems of a configuration, each with its location, and the file's text to locate them in.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::path::Path;

/// One problem: `FILE:LINE:COL: key.path: what is wrong, what was expected`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(super) location: Location,
    path: Path,
    message: String,
}

/// Where a problem is. Problems are listed in the order of these variants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Location {
    /// The whole file, or the defaults if there is no file.
    Whole(String),
    /// An environment variable.
    Variable(String),
    /// A position in the file.
    At { file: String, line: usize, column: usize },
}

/// The configuration file as text, with the position of every key.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) name: String,
    pub(super) text: String,
    spans: BTreeMap<Path, Spans>,
}

#[derive(Clone, Debug)]
struct Spans {
    key: Range<usize>,
    value: Range<usize>,
}

/// An environment variable for a key.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) path: Path,
    pub(super) value: String,
}

// === impl Problem ===

impl Problem {
    /// Creates a problem with an environment variable.
    pub(super) fn of_variable(name: &str, path: Path, message: impl Into<String>) -> Self {
        Self { location: Location::Variable(name.to_owned()), path, message: message.into() }
    }

    /// Creates a problem with the file as a whole.
    pub(super) fn of_file(name: &str, path: Path, message: impl Into<String>) -> Self {
        Self { location: Location::Whole(name.to_owned()), path, message: message.into() }
    }

    /// Returns the path of the key the problem is about.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Returns this problem with another message.
    pub(super) fn with_message(&self, message: String) -> Self {
        Self { message, ..self.clone() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.location)?;
        if self.path != Path::default() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(name) | Self::Variable(name) => f.write_str(name),
            Self::At { file, line, column } => write!(f, "{file}:{line}:{column}"),
        }
    }
}

// === impl Text ===

impl Text {
    /// Parses the text as far as it is TOML. Also returns its syntax errors.
    pub(super) fn new(name: String, text: String) -> (Self, Vec<Problem>) {
        let mut spans = BTreeMap::new();
        let (table, errors) = DeTable::parse_recoverable(&text);
        walk(&Path::default(), table.get_ref(), &mut spans);
        drop(table);
        let new = Self { name, text, spans };
        let problems = new.mistakes(&errors);
        (new, problems)
    }

    /// Returns one problem for each mistake in the syntax.
    ///
    /// After one mistake the parser also reports the rest of the line and, after an unclosed
    /// bracket, everything that follows. These reports are dropped.
    fn mistakes(&self, errors: &[toml::de::Error]) -> Vec<Problem> {
        let open = errors.iter().map(toml::de::Error::message).find(|message| {
            ["unclosed array", "unclosed inline table"].iter().any(|unclosed| message.starts_with(unclosed))
        });
        let mut lines = BTreeMap::new();
        for problem in errors.iter().map(|error| self.problem_of(error)) {
            let Location::At { line, .. } = problem.location else { continue };
            lines.entry(line).or_insert(problem);
        }
        let mut problems: Vec<Problem> = lines.into_values().collect();
        let inside = |problem: &Problem| INSIDE.iter().any(|begins| problem.message.starts_with(begins));
        if let (Some(open), Some(first)) = (open, problems.iter().position(inside)) {
            problems.truncate(first + 1);
            problems[first].message = format!("{} before this", open.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        problems
    }

    /// Returns `FILE:LINE:COL` of a key, if the file has it.
    pub(super) fn location(&self, path: &Path) -> Option<String> {
        Some(self.location_at(self.place(path)?).to_string())
    }

    /// Returns the offset of a table or key in the text, in bytes.
    pub(super) fn place(&self, path: &Path) -> Option<usize> {
        Some(self.spans.get(path)?.key.start)
    }

    /// Returns the text of a string value, without its quotes.
    pub(super) fn value(&self, path: &Path) -> Option<&str> {
        let value = self.text.get(self.spans.get(path)?.value.clone())?;
        Some(value.trim_matches(|c| c == '"' || c == '\''))
    }

    /// Returns a problem with `path`, located at the key `at` or, unless `is_key`, at its value.
    /// `None` if the file does not have that key.
    pub(super) fn problem_with(&self, path: &Path, at: &Path, is_key: bool, message: &str) -> Option<Problem> {
        let spans = self.spans.get(at)?;
        let span = if is_key { &spans.key } else { &spans.value };
        Some(self.problem_at(span.start, path.clone(), message.to_owned()))
    }

    /// Converts a parser's error to a problem.
    pub(super) fn problem_of(&self, error: &toml::de::Error) -> Problem {
        let offset = error.span().unwrap_or(0..0).start;
        // The parser tells what its own types are, or that one overflowed.
        let is_too_large = ["as i128", "as u128", "number overflowed"].iter().any(|it| error.message().contains(it));
        if is_too_large {
            let message = "is too large a number, expected at most 18 digits";
            return self.problem_at(offset, Path::default(), message.to_owned());
        }
        // A problem is one line, whatever the parser says.
        let mut message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        // A word such as `none`, without quotes.
        if matches!(&*message, "invalid float, expected `nan`" | "invalid float, expected `inf`") {
            message = "string values must be quoted".to_owned();
        }
        self.problem_at(offset, Path::default(), message)
    }

    fn problem_at(&self, offset: usize, path: Path, message: String) -> Problem {
        Problem { location: self.location_at(offset), path, message }
    }

    fn location_at(&self, offset: usize) -> Location {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Location::At { file: self.name.clone(), line, column }
    }
}

/// Records the position of every key and list element in the file.
fn walk(at: &Path, table: &DeTable<'_>, spans: &mut BTreeMap<Path, Spans>) {
    for (key, value) in table {
        let path = at.key(key.get_ref());
        walk_value(&path, value.get_ref(), spans);
        spans.insert(path, Spans { key: key.span(), value: value.span() });
    }
}

fn walk_value(path: &Path, value: &DeValue<'_>, spans: &mut BTreeMap<Path, Spans>) {
    match value {
        DeValue::Table(table) => walk(path, table, spans),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = path.index(index);
                walk_value(&path, item.get_ref(), spans);
                spans.insert(path, Spans { key: item.span(), value: item.span() });
            }
        }
        _ => {}
    }
}

/// Returns ` (did you mean "x"?)` if a known word is similar, or else nothing.
pub fn did_you_mean(word: &str, known: &[&str]) -> String {
    nearest(word, known).map_or_else(String::new, |near| format!(" (did you mean \"{near}\"?)"))
}

/// Returns the known word of the most similar spelling. At most a third of its letters may differ.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |candidate: &str| strsim::damerau_levenshtein(word, candidate);
    let near = known.iter().copied().min_by_key(|candidate| distance(candidate))?;
    (distance(near) <= (near.chars().count() / 3).max(1)).then_some(near)
}

/// Formats a list of words: `"a", "b" or "c"`.
pub(super) fn alternatives(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "nothing".to_owned(),
    }
}

/// The beginnings of the parser's error messages inside an unclosed list or table.
const INSIDE: [&str; 5] =
    ["unclosed array", "unclosed inline", "missing comma", "missing key for inline", "unexpected `=` in"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        assert_eq!(did_you_mean("brust", &["burst", "rate"]), " (did you mean \"burst\"?)");
        assert_eq!(did_you_mean("colour", &["burst", "rate"]), "");
        assert_eq!(did_you_mean("x", &[]), "");
    }
}
