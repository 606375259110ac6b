//! Collects the problems and warnings found while a configuration is read.

use std::cell::{RefCell, RefMut};
use std::path::PathBuf;

use toml::Value;

use super::files::{FileContent, NamedFile};
use super::layers::name_of;
use super::meant;
use super::path::Path;
use super::problems::{Problem, Text, Variable};
use super::record::Record;
use super::shape::Shape;

/// The findings of reading a configuration so far: problems, warnings, the files it names, and the
/// record of keys.
#[derive(Debug)]
pub(super) struct Report<'a> {
    text: &'a Text,
    variables: &'a [Variable],
    /// Each problem, with the keys it depends on.
    problems: RefCell<Vec<(Problem, Vec<Path>)>>,
    findings: RefCell<Findings>,
}

/// The findings of reading a configuration without problems.
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

    /// Returns an empty report about the same text, with other environment variables.
    pub(super) fn beside<'b>(&self, variables: &'b [Variable]) -> Report<'b>
    where
        'a: 'b,
    {
        Report::new(self.text, variables)
    }

    pub(super) fn variables(&self) -> &'a [Variable] {
        self.variables
    }

    /// Returns true if a problem with the same key and message was reported already.
    pub(super) fn has(&self, problem: &Problem) -> bool {
        let is_same = |known: &Problem| known.path() == problem.path() && known.message() == problem.message();
        self.problems.borrow().iter().any(|(known, _)| is_same(known))
    }

    pub(super) fn has_problems(&self) -> bool {
        !self.problems.borrow().is_empty()
    }

    /// Reports a problem at `path`: with the key itself if `at_key`, otherwise with its value.
    ///
    /// The problem is dropped if one of the keys `given` has a problem of its own.
    pub(super) fn problem(&self, path: &Path, message: impl Into<String>, at_key: bool, given: &[Path]) {
        self.problems.borrow_mut().push((self.locate(path, message.into(), at_key), given.to_vec()));
    }

    /// Adds problems of another file.
    pub(super) fn add(&self, problems: Vec<Problem>) {
        self.problems.borrow_mut().extend(problems.into_iter().map(|problem| (problem, Vec::new())));
    }

    /// Returns the folder of the text's file.
    pub(super) fn folder(&self) -> &std::path::Path {
        std::path::Path::new(&self.text.name).parent().unwrap_or_else(|| std::path::Path::new(""))
    }

    /// Returns the position of a table or key in the text; `None` if only variables set it.
    pub(super) fn place(&self, path: &Path) -> Option<usize> {
        self.text.place(path)
    }

    /// Reports a warning: the configuration works, but the user should know of this.
    pub(super) fn warn(&self, path: &Path, message: impl Into<String>) {
        self.findings.borrow_mut().warnings.push(self.locate(path, message.into(), true).to_string());
    }

    /// Records a file to be checked later. `path` is its key, `holds` its expected content.
    pub(super) fn file(&self, file: PathBuf, holds: FileContent, path: &Path) {
        let problem = self.locate(path, String::new(), false);
        self.findings.borrow_mut().files.push(NamedFile { path: file, holds, problem });
    }

    /// Converts the text of an environment variable to the number or boolean needed by its key.
    ///
    /// Returns `None` for values from the file, and for text that is neither: it is reported later.
    pub(super) fn scalar(&self, path: &Path, value: &Value, shape: Shape) -> Option<Value> {
        let shape = if let Shape::Or(shape, _) = shape { *shape } else { shape };
        let is_wanted =
            matches!(shape, Shape::Truth | Shape::Number | Shape::Rate | Shape::Whole(_) | Shape::Whole32(_));
        let text = value.as_str().filter(|_| is_wanted && self.variables.iter().any(|one| one.path == *path))?;
        match text {
            "true" => Some(Value::Boolean(true)),
            "false" => Some(Value::Boolean(false)),
            _ => text.parse().map(Value::Integer).ok().or_else(|| text.parse().map(Value::Float).ok()),
        }
    }

    /// Reports the unknown keys of `root`. Returns known keys as suggestions.
    fn check_unknown(&self, root: &Value) -> Vec<Path> {
        let mut all_meant = Vec::new();
        let unknown = self.record().unknown(root);
        for path in unknown {
            let meant = meant::by_key(&path, &self.record());
            let table = path.parent().unwrap_or_default();
            let known: Vec<String> = self.record().keys(&table).iter().map(|key| key.name.clone()).collect();
            let expected =
                if known.len() <= 16 { format!(", expected one of {}", known.join(", ")) } else { String::new() };
            let message = format!("is not a valid key{expected}{}", meant::suggestion(&path, &meant));
            self.problem(&path, message, true, &[]);
            all_meant.extend(meant);
        }
        all_meant
    }

    /// Returns a problem for each of these unknown variables, and the keys the user may have meant.
    fn check_strays(&self, strays: &[String]) -> (Vec<Problem>, Vec<Path>) {
        let record = self.record();
        let found: Vec<_> = strays.iter().map(|name| (name, meant::by_variable(name, &record))).collect();
        let problem = |(name, meant): &(&String, Option<Path>)| {
            let near = meant.as_ref().map_or_else(
                || "; a variable that sets a key looks like TIDEGATE__LOG__LEVEL".to_owned(),
                |key| format!(" (did you mean {}?)", name_of(key)),
            );
            Problem::of_variable(name, Path::default(), format!("nothing reads this variable{near}"))
        };
        let problems = found.iter().map(problem).collect();
        (problems, found.into_iter().filter_map(|(_, meant)| meant).collect())
    }

    /// Ends the reading of `root`. Returns the findings, or all problems.
    ///
    /// `strays` are variables that look like tidegate's but set nothing. If nothing else is wrong,
    /// they are only warnings.
    ///
    /// # Errors
    /// All problems: first of the whole file, then of variables by name, then from the top of the
    /// file.
    pub(super) fn finish(
        self,
        root: &Value,
        mut problems: Vec<Problem>,
        strays: &[String],
    ) -> Result<Findings, Vec<Problem>> {
        let mut meant = self.check_unknown(root);
        let is_right = problems.is_empty() && !self.has_problems();
        let (strays, meant_by_strays) = self.check_strays(strays);
        meant.extend(meant_by_strays);
        let found = causes(self.problems.into_inner(), &meant);
        if is_right {
            let mut findings = self.findings.into_inner();
            findings.warnings.splice(..0, strays.iter().map(Problem::to_string));
            return Ok(findings);
        }
        problems.extend(found.into_iter().chain(strays));
        problems.sort_by(|one, other| one.location.cmp(&other.location));
        Err(problems)
    }

    /// Returns a problem with `path` and its location, without reporting it.
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

/// Drops consequences of other problems: problems depending on a wrong key, or on a key misspelt as
/// one of `meant`.
fn causes(found: Vec<(Problem, Vec<Path>)>, meant: &[Path]) -> Vec<Problem> {
    let (mut causes, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, given)| given.is_empty());
    for (problem, given) in others {
        let is_meant = |given: &Path| meant.iter().any(|meant| meant.starts_with(given) || given.starts_with(meant));
        let is_wrong = |given: &Path| causes.iter().any(|(cause, _)| cause.path().starts_with(given));
        if !given.iter().any(|given| is_meant(given) || is_wrong(given)) {
            causes.push((problem, given));
        }
    }
    causes.into_iter().map(|(problem, _)| problem).collect()
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
