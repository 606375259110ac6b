//! The layers of a configuration: the file, and the environment over it.
//!
//! Variables look like `TIDEGATE__GATES__KUBERNETES__BUCKET__RATE`; the double underscore keeps Kubernetes' own service variables
//! (`TIDEGATE_PORT_...` of a Service named tidegate) out.

use std::collections::HashMap;

use serde::Deserialize;
use toml::{Table, Value};

use super::{
    file::File,
    path::Path,
    problems::{Problem, Text, Variable},
};

/// The variables that set keys, in order of their names; and those that cannot.
pub(super) fn variables(env: &[(String, String)]) -> (Vec<Variable>, Vec<Problem>) {
    let (mut variables, mut problems) = (Vec::new(), Vec::new());
    for (name, value) in env {
        let Some(rest) = strip_prefix(name) else { continue };
        let path: Path = rest.to_lowercase().split(SEPARATOR).map(str::to_owned).collect();
        match fault(&path) {
            Some(fault) => problems.push(Problem::of_variable(name, path, fault)),
            None => variables.push(Variable { name: name.clone(), path, value: value.clone() }),
        }
    }
    variables.sort_by(|a: &Variable, b| a.path.cmp(&b.path));
    clashes(&variables, &mut problems);
    (variables, problems)
}

fn strip_prefix(name: &str) -> Option<&str> {
    let (head, rest) = name.split_at_checked(PREFIX.len() + SEPARATOR.len())?;
    head.to_lowercase().strip_prefix(PREFIX)?.strip_prefix(SEPARATOR)?;
    Some(rest)
}

/// Why a variable's name cannot be a key, if it cannot.
fn fault(path: &Path) -> Option<&'static str> {
    let steps = path.steps();
    let is_word = |step: &String| {
        !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    if !steps.iter().all(is_word) {
        return Some("is no key, expected words of letters, digits and single underscores between double ones");
    }
    if steps.get(2).is_some_and(|step| step == "classes") && steps.len() > 3 {
        return Some("cannot be set by a variable: lists are only in the file");
    }
    None
}

/// One variable cannot set a table of which another sets a key.
fn clashes(variables: &[Variable], problems: &mut Vec<Problem>) {
    for pair in variables.windows(2) {
        let [one, other] = pair else { continue };
        if other.path.starts_with(&one.path) {
            let message = format!("is set here and by {} at once, expected one of them", other.name);
            problems.push(Problem::of_variable(&one.name, one.path.clone(), message));
        }
    }
}

/// The file alone, strictly typed.
pub(super) fn of_file(text: &Text) -> Result<Table, Vec<Problem>> {
    toml::from_str(text.text()).map_err(|error| vec![text.problem_of(&error)])
}

/// Where dates stand.
pub(super) fn dates(file: &Table) -> Vec<Path> {
    fn look(value: &Value, at: &Path, found: &mut Vec<Path>) {
        match value {
            Value::Datetime(_) => found.push(at.clone()),
            Value::Table(table) => table.iter().for_each(|(key, value)| look(value, &at.key(key), found)),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(index, value)| look(value, &at.index(index), found));
            }
            Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => {}
        }
    }
    let mut found = Vec::new();
    file.iter().for_each(|(key, value)| look(value, &Path::default().key(key), &mut found));
    found
}

/// The file with the environment over it.
pub(super) fn merged(text: &Text, variables: &[Variable]) -> Result<Table, Vec<Problem>> {
    let values: HashMap<String, String> =
        variables.iter().map(|variable| (variable.name.clone(), variable.value.clone())).collect();
    let environment = ::config::Environment::with_prefix(PREFIX)
        .prefix_separator(SEPARATOR)
        .separator(SEPARATOR)
        .source(Some(values));
    let layered = ::config::Config::builder()
        .add_source(::config::File::from_str(text.text(), ::config::FileFormat::Toml))
        .add_source(environment)
        .build()
        .and_then(::config::Config::try_deserialize::<Table>);
    layered.map_err(|error| vec![Problem::of_file(text.name(), error.to_string().replace('\n', " "))])
}

/// The file's shape. Cannot fail on any table, but a problem is better than a panic.
pub(super) fn shape(table: Table, text: &Text) -> Result<Shape, Vec<Problem>> {
    let unknown: Vec<String> =
        table.keys().filter(|key| !super::field::keys_of::<File>().contains(&key.as_str())).cloned().collect();
    let file = File::deserialize(Value::Table(table))
        .map_err(|error| vec![Problem::of_file(text.name(), error.message().replace('\n', " "))])?;
    Ok(Shape { file, unknown })
}

/// What stands in a configuration, typed but not yet understood.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) file: File,
    /// Keys at the top that are none.
    pub(super) unknown: Vec<String>,
}

/// Gives the text of variables the type that its key wants, where it can be read as such: `"50"` where a number is expected is 50. What
/// cannot stays text and is a problem, and so is `2.5` for a whole number.
pub(super) fn retype(table: &mut Table, paths: &[Path]) {
    for path in paths {
        if let Some(place) = find(table, path.steps())
            && let Some(text) = place.as_str()
            && let Some(typed) = scalar(text)
        {
            *place = typed;
        }
    }
}

fn find<'a>(table: &'a mut Table, steps: &[String]) -> Option<&'a mut Value> {
    let (first, rest) = steps.split_first()?;
    let value = table.get_mut(first)?;
    if rest.is_empty() { Some(value) } else { find(value.as_table_mut()?, rest) }
}

fn scalar(text: &str) -> Option<Value> {
    match text {
        "true" => Some(Value::Boolean(true)),
        "false" => Some(Value::Boolean(false)),
        _ => text.parse().map(Value::Integer).ok().or_else(|| text.parse().map(Value::Float).ok()),
    }
}

const PREFIX: &str = "tidegate";
const SEPARATOR: &str = "__";

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_our_own_variables_are_looked_at() {
        let (variables, problems) = variables(&env(&[
            ("TIDEGATE_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("TIDEGATE_SERVICE_HOST", "10.0.0.1"),
            ("TIDEGATE_CONFIG", "/x"),
            ("PATH", "/bin"),
            ("é", "x"),
            ("TIDEGATE__LOG__LEVEL", "debug"),
        ]));
        assert_eq!(variables.len(), 1);
        assert_eq!(variables[0].path.to_string(), "log.level");
        assert!(problems.is_empty());
    }

    #[test]
    fn names_that_are_no_keys_are_named() {
        let names = [
            "TIDEGATE__",
            "TIDEGATE__A____B",
            "TIDEGATE__A[0]__B",
            "TIDEGATE__A.B",
            "TIDEGATE__GATES__G__CLASSES__0__NAME",
        ];
        for name in names {
            let (variables, problems) = variables(&env(&[(name, "1")]));
            assert!(variables.is_empty(), "{name}");
            assert!(problems[0].to_string().starts_with(name), "{name}");
        }
        let (_, problems) = variables(&env(&[("TIDEGATE__A", "1"), ("TIDEGATE__A__B", "1")]));
        assert!(problems[0].to_string().contains("TIDEGATE__A__B"));
    }
}
