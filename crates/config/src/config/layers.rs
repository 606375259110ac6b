//! The layers of a configuration: the file, and the environment over it.
//!
//! Variables look like `TIDEGATE__GATES__KUBERNETES__BUCKET__RATE`; the double underscore excludes
//! Kubernetes' own service variables (`TIDEGATE_PORT_...` of a Service named tidegate).

use std::collections::HashMap;

use toml::{Table, Value};

use super::path::Path;
use super::problems::{Problem, Text, Variable};

/// Returns the environment variables setting keys, in order of their names, and the problems of
/// the others.
pub(super) fn variables(env: &[(String, String)]) -> (Vec<Variable>, Vec<Problem>) {
    let mut variables = Vec::new();
    let mut problems = Vec::new();
    for (name, value) in env {
        let Some(rest) = strip_prefix(name) else { continue };
        let path: Path = rest.to_lowercase().split(SEPARATOR).map(str::to_owned).collect();
        match fault(&path).or_else(|| fault_of_value(value)) {
            Some(fault) => problems.push(Problem::of_variable(name, path, fault)),
            None => variables.push(Variable { name: name.clone(), path, value: value.clone() }),
        }
    }
    variables.sort_by(|a: &Variable, b| a.path.cmp(&b.path));
    clashes(&variables, &mut problems);
    (variables, problems)
}

/// Returns environment variables that look like tidegate's but set nothing.
pub(super) fn strays(env: &[(String, String)]) -> Vec<String> {
    let is_stray = |name: &str, value: &str| {
        squeezed(name).starts_with("TIDEGATE")
            && name.contains('_')
            && strip_prefix(name).is_none()
            && name != FILE
            && !is_of_a_service(name, value)
    };
    let names = env.iter().filter(|(name, value)| is_stray(name, value)).map(|(name, _)| name.clone());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Returns true for variables that Kubernetes sets in every container about a Service whose name
/// begins with tidegate.
fn is_of_a_service(name: &str, value: &str) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let is_url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    has(&["_SERVICE_HOST", "_SERVICE_PORT"]) || is_url || (has(&["_PORT_"]) && has(&["_TCP_", "_UDP_", "_SCTP_"]))
}

/// Returns the letters and digits of a name, to recognize a misspelt variable.
pub(super) fn squeezed(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_uppercase()).collect()
}

/// Returns the environment variable setting the key at `path`.
pub(super) fn name_of(path: &Path) -> String {
    path.0.iter().fold(PREFIX.to_uppercase(), |name, step| name + SEPARATOR + &step.to_uppercase())
}

fn strip_prefix(name: &str) -> Option<&str> {
    let (head, rest) = name.split_at_checked(PREFIX.len() + SEPARATOR.len())?;
    head.to_lowercase().strip_prefix(PREFIX)?.strip_prefix(SEPARATOR)?;
    Some(rest)
}

/// Returns why an environment variable cannot set the key its name spells, if so.
fn fault(path: &Path) -> Option<&'static str> {
    let steps = &path.0;
    let is_word = |step: &String| {
        !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    if !steps.iter().all(is_word) {
        return Some(
            "is not the name of a key, expected words of letters, digits and single underscores, with a double underscore between words",
        );
    }
    if steps.get(2).is_some_and(|step| step == "classes") && steps.len() > 3 {
        return Some("cannot be set by a variable, because a list of tables can only be in the file");
    }
    None
}

/// Returns what is wrong with a variable's text, if anything. The replacement character stands for
/// bytes that are not UTF-8.
fn fault_of_value(value: &str) -> Option<&'static str> {
    value.contains(char::REPLACEMENT_CHARACTER).then_some("is not UTF-8 text")
}

/// Reports a variable for a table together with one for a key of it.
fn clashes(variables: &[Variable], problems: &mut Vec<Problem>) {
    for pair in variables.windows(2) {
        let [one, other] = pair else { continue };
        if other.path.starts_with(&one.path) {
            let message = format!("is set by this variable and by {}, expected only one of them", other.name);
            problems.push(Problem::of_variable(&one.name, one.path.clone(), message));
        }
    }
}

/// Reads the file, with the environment over it.
///
/// # Errors
/// The file is not TOML, or a variable contradicts it.
pub(super) fn layered(text: &Text, variables: &[Variable]) -> Result<Value, Vec<Problem>> {
    let mut file: Table = toml::from_str(&text.text).map_err(|error| vec![text.problem_of(&error)])?;
    let values: HashMap<String, String> =
        variables.iter().map(|variable| (variable.name.clone(), variable.value.clone())).collect();
    let environment = ::config::Environment::with_prefix(PREFIX)
        .prefix_separator(SEPARATOR)
        .separator(SEPARATOR)
        .source(Some(values));
    let environment = ::config::Config::builder()
        .add_source(environment)
        .build()
        .and_then(::config::Config::try_deserialize::<Table>)
        .map_err(|error| vec![Problem::of_file(&text.name, Path::default(), error.to_string().replace('\n', " "))])?;
    overlay(&mut file, environment);
    Ok(Value::Table(file))
}

/// Puts a table over another: tables are merged, everything else is replaced. (The `config` crate
/// would do so too, but turns the file's dates into text.)
pub(super) fn overlay(below: &mut Table, above: Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => overlay(below, above),
            (_, value) => {
                below.insert(key, value);
            }
        }
    }
}

const PREFIX: &str = "tidegate";
const SEPARATOR: &str = "__";
/// The environment variable with the path of the configuration file.
pub(super) const FILE: &str = "TIDEGATE_CONFIG";

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
