//! The limits given with `inject` or in a pod's annotations, checked as strictly as a
//! configuration.

use super::failure::Failure;
use super::source;
use crate::config::Input;
use crate::inject::{self, Options};

/// Adds limits (`KEY=VALUE`) to the options of an injection, and checks the result as a
/// configuration. An error names the limit as the user typed it.
pub(crate) fn with_limits(mut options: Options, sets: &[String]) -> Result<Options, Failure> {
    let limits = sets.iter().map(|set| variable(set)).collect::<Result<Vec<_>, _>>();
    let limits = limits.map_err(|problem| Failure::Other(anyhow::anyhow!(problem)))?;
    options.variables.retain(|(name, _)| !limits.iter().any(|(other, _)| other == name));
    options.variables.extend(limits.iter().cloned());
    let loaded = source::load(&Input { file: None, env: inject::variables(&options).collect() });
    loaded.map_err(|failure| of_sets(failure, sets, &limits))?;
    Ok(options)
}

/// Does the same as [`with_limits`], and returns the problems as text.
pub(crate) fn checked(options: Options, sets: &[String]) -> Result<Options, Vec<String>> {
    with_limits(options, sets).map_err(Failure::problems)
}

/// Names the limits as the user typed them, in place of their environment variables, in the
/// problems.
fn of_sets(failure: Failure, sets: &[String], limits: &[(String, String)]) -> Failure {
    let Failure::Config(problems) = failure else { return failure };
    let named = |problem: String| {
        let found = sets.iter().zip(limits).find_map(|(set, (name, _))| {
            let rest = problem.strip_prefix(&**name)?.strip_prefix(": ")?;
            let rest = rest.strip_prefix("gates.kubernetes.").unwrap_or(rest);
            Some(format!("--set {set}: {rest}"))
        });
        found.unwrap_or(problem)
    };
    Failure::Config(problems.into_iter().map(named).collect())
}

/// Returns the environment variable, and its value, for a limit such as `bucket.rate=20`.
fn variable(set: &str) -> Result<(String, String), String> {
    let Some((key, value)) = set.split_once('=') else {
        return Err(format!("--set {set}: expected KEY=VALUE, as in --set bucket.rate=20"));
    };
    if key.is_empty() || !key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.')) {
        return Err(format!("--set {set}: {key:?} is not a key of a gate, expected one as in bucket.rate"));
    }
    let name = key.to_ascii_uppercase().replace('.', "__");
    Ok((format!("TIDEGATE__GATES__KUBERNETES__{name}"), value.to_owned()))
}
