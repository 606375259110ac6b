//! What is wrong with a configuration, and where: every problem is collected, none stops the search for the next.

use std::{collections::BTreeMap, fmt, ops::Range};

use toml::de::{DeTable, DeValue};

use super::path::Path;

/// One problem: `FILE:LINE:COL: key.path: what is wrong, what was expected`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    place: Place,
    path: Path,
    message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A position in the file.
    At { file: String, line: usize, column: usize },
    /// The file, or the defaults where there is none.
    Whole(String),
    /// An environment variable.
    Variable(String),
}

/// The configuration file as text, with the place of every key.
#[derive(Debug)]
pub(super) struct Text {
    name: String,
    text: String,
    places: BTreeMap<Path, Spans>,
}

#[derive(Clone, Debug)]
struct Spans {
    key: Range<usize>,
    value: Range<usize>,
}

/// An environment variable that sets a key.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) path: Path,
    pub(super) value: String,
}

/// Collects problems and warnings, and knows where keys come from.
#[derive(Debug)]
pub(super) struct Report<'a> {
    text: &'a Text,
    variables: &'a [Variable],
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<String>,
    /// Where a number or truth value was expected and text was found: a variable's text may still be one.
    pub(super) untyped: Vec<Path>,
}

// === impl Problem ===

impl Problem {
    /// A problem with the environment itself.
    pub(super) fn of_variable(name: &str, path: Path, message: impl Into<String>) -> Self {
        Self { place: Place::Variable(name.to_owned()), path, message: message.into() }
    }

    /// A problem with the file as a whole.
    pub(super) fn of_file(name: &str, message: impl Into<String>) -> Self {
        Self { place: Place::Whole(name.to_owned()), path: Path::default(), message: message.into() }
    }

    /// The order for reading: what concerns everything, variables by name, then the file from its top.
    pub(super) fn order(&self) -> (u8, &str, usize, usize) {
        match &self.place {
            Place::Whole(name) => (0, name, 0, 0),
            Place::Variable(name) => (1, name, 0, 0),
            Place::At { file, line, column } => (2, file, *line, *column),
        }
    }

    /// The same place with another message.
    pub(super) fn with_message(&self, message: String) -> Self {
        Self { message, ..self.clone() }
    }

    /// Whether it is a problem of the key at `path`.
    pub(super) fn is_about(&self, path: &Path) -> bool {
        self.path == *path
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::At { file, line, column } => write!(f, "{file}:{line}:{column}: ")?,
            Place::Whole(name) | Place::Variable(name) => write!(f, "{name}: ")?,
        }
        if self.path != Path::default() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

// === impl Text ===

impl Text {
    /// Reads the text as far as it is TOML, and what is wrong with it as such.
    pub(super) fn new(name: String, text: String) -> (Self, Vec<Problem>) {
        let mut places = BTreeMap::new();
        let (table, errors) = DeTable::parse_recoverable(&text);
        walk(&Path::default(), table.get_ref(), &mut places);
        drop(table);
        let new = Self { name, text, places };
        let problems = errors.iter().map(|error| new.problem_of(error)).collect();
        (new, problems)
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// `FILE:LINE:COL` of a key, if it is there.
    pub(super) fn place(&self, path: &Path) -> Option<String> {
        let start = self.places.get(path)?.key.start;
        match self.problem_at(start, Path::default(), String::new()).place {
            Place::At { file, line, column } => Some(format!("{file}:{line}:{column}")),
            Place::Whole(_) | Place::Variable(_) => None,
        }
    }

    /// The text of a value that is a string, without its quotes.
    pub(super) fn value(&self, path: &Path) -> Option<&str> {
        let value = self.text.get(self.places.get(path)?.value.clone())?;
        Some(value.trim_matches(|c| c == '"' || c == '\''))
    }

    /// What the parser says.
    pub(super) fn problem_of(&self, error: &toml::de::Error) -> Problem {
        self.problem_at(error.span().unwrap_or(0..0).start, Path::default(), one_line(error.message()))
    }

    fn problem_at(&self, offset: usize, path: Path, message: String) -> Problem {
        let before = self.text.get(..offset).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Problem { place: Place::At { file: self.name.clone(), line, column }, path, message }
    }
}

/// Notes the place of every key and element.
fn walk(at: &Path, table: &DeTable<'_>, places: &mut BTreeMap<Path, Spans>) {
    for (key, value) in table {
        let path = at.key(key.get_ref());
        walk_value(&path, value.get_ref(), places);
        places.insert(path, Spans { key: key.span(), value: value.span() });
    }
}

fn walk_value(path: &Path, value: &DeValue<'_>, places: &mut BTreeMap<Path, Spans>) {
    match value {
        DeValue::Table(table) => walk(path, table, places),
        DeValue::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = path.index(index);
                walk_value(&path, item.get_ref(), places);
                places.insert(path, Spans { key: item.span(), value: item.span() });
            }
        }
        _ => {}
    }
}

/// A problem is one line, whatever the parser says.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

// === impl Report ===

impl<'a> Report<'a> {
    pub(super) fn new(text: &'a Text, variables: &'a [Variable]) -> Self {
        Self { text, variables, problems: Vec::new(), warnings: Vec::new(), untyped: Vec::new() }
    }

    /// The value at `path` is wrong.
    pub(super) fn problem(&mut self, path: &Path, message: impl Into<String>) {
        let problem = self.locate(path, message.into(), false);
        self.problems.push(problem);
    }

    /// The key at `path` is wrong, whatever its value.
    pub(super) fn key_problem(&mut self, path: &Path, message: impl Into<String>) {
        let problem = self.locate(path, message.into(), true);
        self.problems.push(problem);
    }

    /// Something that works, but should be known.
    pub(super) fn warn(&mut self, path: &Path, message: impl Into<String>) {
        let warning = self.locate(path, message.into(), true);
        self.warnings.push(warning.to_string());
    }

    /// A problem at `path` without reporting it.
    pub(super) fn locate(&self, path: &Path, message: String, at_key: bool) -> Problem {
        let set = |variable: &&Variable| path.starts_with(&variable.path);
        if let Some(variable) = self.variables.iter().find(set) {
            return Problem::of_variable(&variable.name, path.clone(), message);
        }
        if let Some(spans) = self.text.places.get(path) {
            let span = if at_key { &spans.key } else { &spans.value };
            return self.text.problem_at(span.start, path.clone(), message);
        }
        // What is missing is missing in the nearest thing that is there.
        let mut above = Some(path.clone());
        while let Some(at) = above.filter(|at| !at.steps().is_empty()) {
            if let Some(spans) = self.text.places.get(&at) {
                return self.text.problem_at(spans.key.start, path.clone(), message);
            }
            if let Some(variable) = self.variables.iter().find(|variable| variable.path.starts_with(&at)) {
                return Problem::of_variable(&variable.name, path.clone(), message);
            }
            above = at.parent();
        }
        Problem { place: Place::Whole(self.text.name.clone()), path: path.clone(), message }
    }
}

/// ` (did you mean "x"?)` where something near is known, else nothing.
pub(super) fn did_you_mean(word: &str, known: &[&str]) -> String {
    let distance = |candidate: &&&str| strsim::damerau_levenshtein(word, candidate);
    match known.iter().min_by_key(distance) {
        // A third of the letters wrong is still a typing mistake; more is another word.
        Some(near) if strsim::damerau_levenshtein(word, near) <= (near.chars().count() / 3).max(1) => {
            format!(" (did you mean \"{near}\"?)")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_say_where() {
        let (text, problems) = Text::new("f.toml".into(), "[a]\n  b = 5 # é\n  c = [1,\n 2]\n".into());
        assert!(problems.is_empty());
        let variables =
            [Variable { name: "TIDEGATE__X__Y".into(), path: Path::default().key("x").key("y"), value: "1".into() }];
        let report = Report::new(&text, &variables);
        let at = |path: &Path, at_key| report.locate(path, "no".into(), at_key).to_string();
        let root = Path::default();
        assert_eq!(at(&root.key("a").key("b"), false), "f.toml:2:7: a.b: no");
        assert_eq!(at(&root.key("a").key("b"), true), "f.toml:2:3: a.b: no");
        assert_eq!(at(&root.key("a").key("c").index(1), false), "f.toml:4:2: a.c[1]: no");
        assert_eq!(at(&root.key("a").key("missing"), false), "f.toml:1:2: a.missing: no");
        assert_eq!(at(&root.key("x").key("y"), false), "TIDEGATE__X__Y: x.y: no");
        assert_eq!(at(&root.key("x"), false), "TIDEGATE__X__Y: x: no");
        assert_eq!(at(&root.key("z"), false), "f.toml: z: no");
    }

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        assert_eq!(did_you_mean("brust", &["burst", "rate"]), " (did you mean \"burst\"?)");
        assert_eq!(did_you_mean("colour", &["burst", "rate"]), "");
        assert_eq!(did_you_mean("x", &[]), "");
    }
}
