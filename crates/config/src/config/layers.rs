//! The layers of a configuration: the file, and the environment variables overriding it.
//!
//! Variables look like `TIDEGATE__GATES__KUBERNETES__BUCKET__RATE`. They have two underscores,
//! because Kubernetes sets variables with one (`TIDEGATE_PORT_...`) for a Service named tidegate.

use std::collections::HashMap;

use toml::{Table, Value};

use super::path::Path;
use super::problems::{Problem, Text, Variable};

/// Returns the environment variables for configuration keys, and problems with wrong ones.
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

/// Returns the names of variables similar to tidegate's, but without any effect.
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

/// Returns true for variables set by Kubernetes in every container, about a Service with a name
/// beginning with tidegate.
fn is_of_a_service(name: &str, value: &str) -> bool {
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let is_url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    has(&["_SERVICE_HOST", "_SERVICE_PORT"]) || is_url || (has(&["_PORT_"]) && has(&["_TCP_", "_UDP_", "_SCTP_"]))
}

/// Returns a name reduced to its letters and digits in upper case, to recognize misspelt variables.
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

/// Returns why no environment variable can set the key at `path`; `None` if one can.
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

/// Returns an error for the text of a variable unless it is UTF-8. Other bytes arrive here as the
/// replacement character.
fn fault_of_value(value: &str) -> Option<&'static str> {
    value.contains(char::REPLACEMENT_CHARACTER).then_some("is not UTF-8 text")
}

/// Reports conflicting variables: one sets a whole table, and another a key in it.
fn clashes(variables: &[Variable], problems: &mut Vec<Problem>) {
    for pair in variables.windows(2) {
        let [one, other] = pair else { continue };
        if other.path.starts_with(&one.path) {
            let message = format!("is set by this variable and by {}, expected only one of them", other.name);
            problems.push(Problem::of_variable(&one.name, one.path.clone(), message));
        }
    }
}

/// Reads the file, and overrides its values with those of environment variables.
///
/// # Errors
/// The file is not TOML, or a variable does not fit into it.
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

/// Merges the table `above` into `below`. Tables in both are merged; other values of `below` are
/// replaced. (The `config` crate has the same function, but turns dates into text.)
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
