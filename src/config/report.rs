//! Collects what reading a configuration finds out. No problem stops the search for the next.

use std::cell::{RefCell, RefMut};
use std::path::PathBuf;

use toml::Value;

use super::files::{Holds, NamedFile};
use super::path::Path;
use super::problems::{Problem, Text, Variable, did_you_mean};
use super::record::Record;
use super::shape::Shape;

/// Collects what reading finds out: problems, warnings, the files that will be read, and the record
/// of keys.
#[derive(Debug)]
pub(super) struct Report<'a> {
    text: &'a Text,
    variables: &'a [Variable],
    problems: RefCell<Vec<Problem>>,
    findings: RefCell<Findings>,
}

/// The findings of a reading without problems.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) warnings: Vec<String>,
    pub(super) files: Vec<NamedFile>,
    pub(super) record: Record,
}

// === impl Report ===

impl<'a> Report<'a> {
    pub(super) fn new(text: &'a Text, variables: &'a [Variable]) -> Self {
        Self { text, variables, problems: RefCell::default(), findings: RefCell::default() }
    }

    pub(super) fn record(&self) -> RefMut<'_, Record> {
        RefMut::map(self.findings.borrow_mut(), |findings| &mut findings.record)
    }

    pub(super) fn has_problems(&self) -> bool {
        !self.problems.borrow().is_empty()
    }

    /// Reports that the value at `path` is wrong, or `at_key` the key, whatever its value.
    pub(super) fn problem(&self, path: &Path, message: impl Into<String>, at_key: bool) {
        self.problems.borrow_mut().push(self.locate(path, message.into(), at_key));
    }

    /// Reports something that works, but should be known.
    pub(super) fn warn(&self, path: &Path, message: impl Into<String>) {
        self.findings.borrow_mut().warnings.push(self.locate(path, message.into(), true).to_string());
    }

    /// Notes a file that will be read, named at `path`.
    pub(super) fn file(&self, file: PathBuf, holds: Holds, path: &Path) {
        let problem = self.locate(path, String::new(), false);
        self.findings.borrow_mut().files.push(NamedFile { path: file, holds, problem });
    }

    /// Returns the text of a variable as the number or truth value that its key wants. Text that is
    /// neither stays text and is a problem, and so is `2.5` for a whole number.
    pub(super) fn scalar(&self, path: &Path, value: &Value, shape: Shape) -> Option<Value> {
        let is_wanted =
            matches!(shape, Shape::Truth | Shape::Number | Shape::NumberOr(_) | Shape::Whole(_) | Shape::Whole32(_));
        let text = value.as_str().filter(|_| is_wanted && self.variables.iter().any(|one| one.path == *path))?;
        match text {
            "true" => Some(Value::Boolean(true)),
            "false" => Some(Value::Boolean(false)),
            _ => text.parse().map(Value::Integer).ok().or_else(|| text.parse().map(Value::Float).ok()),
        }
    }

    /// Reports the keys of `root` that do not exist.
    fn check_unknown(&self, root: &Value) {
        for (path, known) in self.record().unknown(root) {
            let name = path.0.last().map_or("", String::as_str);
            let expected =
                if known.len() <= 16 { format!(", expected one of {}", known.join(", ")) } else { String::new() };
            self.problem(&path, format!("is not a valid key{expected}{}", did_you_mean(name, &known)), true);
        }
    }

    /// Ends the reading of `root`.
    ///
    /// # Errors
    /// All problems: those of the whole, then of variables by name, then from the top of the file.
    pub(super) fn finish(self, root: &Value, mut problems: Vec<Problem>) -> Result<Findings, Vec<Problem>> {
        self.check_unknown(root);
        problems.extend(self.problems.into_inner());
        problems.sort_by(|one, other| one.order().cmp(&other.order()));
        if problems.is_empty() { Ok(self.findings.into_inner()) } else { Err(problems) }
    }

    /// Returns a problem with `path` without reporting it.
    fn locate(&self, path: &Path, message: String, at_key: bool) -> Problem {
        let of = |variable: &Variable| Problem::of_variable(&variable.name, path.clone(), message.as_str());
        let setting = self.variables.iter().find(|variable| path.starts_with(&variable.path)).map(of);
        if let Some(problem) = setting.or_else(|| self.text.problem_with(path, path, at_key, &message)) {
            return problem;
        }
        // What is missing is missing in the nearest thing that is there.
        let mut above = Some(path.clone());
        while let Some(at) = above.filter(|at| !at.0.is_empty()) {
            let inside = || self.variables.iter().find(|variable| variable.path.starts_with(&at)).map(of);
            if let Some(problem) = self.text.problem_with(path, &at, true, &message).or_else(inside) {
                return problem;
            }
            above = at.parent();
        }
        Problem::of_file(&self.text.name, path.clone(), message)
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
}
