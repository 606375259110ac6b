//! The options for one pod: those of the webhook or a policy, overridden by the pod's annotations.
//! The annotations have the same names as `tidegate inject`'s options.

use serde_json::Value;

use crate::inject::{Mode, Options};

/// A function that adds limits (`KEY=VALUE`) to options, and checks them as strictly as a
/// configuration. The error is a list of problems.
pub type Check = fn(Options, &[String]) -> Result<Options, Vec<String>>;

/// The names of the annotations, without their prefix.
const KNOWN: [&str; 8] = ["mode", "container", "config-map", "set", "port", "admin-port", "egress-port", "replace"];
pub(super) const PREFIX: &str = "tidegate.io/";

/// Returns the options for a pod. The error is a list of problems with its annotations.
pub(super) fn of(pod: &Value, defaults: &Options, check: Check) -> Result<Options, Vec<String>> {
    with(annotations(pod), &format!("annotation {PREFIX}"), defaults, check)
}

/// Returns the annotations of an object that are tidegate's, without their prefix.
pub(super) fn annotations(object: &Value) -> impl Iterator<Item = (&str, &str)> {
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    annotations.filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value.as_str().unwrap_or_default())))
}

/// Returns options with keys and values applied to them. The error is a list of problems, each with
/// `place` before its key.
pub(super) fn with<'a>(
    keys: impl Iterator<Item = (&'a str, &'a str)>,
    place: &str,
    defaults: &Options,
    check: Check,
) -> Result<Options, Vec<String>> {
    let mut options = defaults.clone();
    let mut sets = Vec::new();
    let mut wrong = Vec::new();
    for (name, value) in keys {
        if let Err(expected) = apply(name, value, &mut options, &mut sets) {
            wrong.push(format!("{place}{name} is {value:?}, expected {expected}"));
        }
    }
    if let Some(([one, other], port)) = options.same_ports() {
        wrong.push(format!("{PREFIX}{one} and {PREFIX}{other} are both {port}, expected two different ports"));
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    if sets.is_empty() { Ok(options) } else { check(options, &sets) }
}

/// Applies one key to the options. The error says which value was expected.
fn apply(name: &str, value: &str, options: &mut Options, sets: &mut Vec<String>) -> Result<(), String> {
    let port = || value.parse().ok().filter(|port| *port > 0).ok_or_else(|| "a port".to_owned());
    match name {
        "mode" => options.mode = Mode::named(value).ok_or_else(|| Mode::ALL.map(Mode::word).join(" or "))?,
        "container" => {
            let names = value.split([',', ' ']).filter(|name| !name.is_empty());
            options.containers = names.map(str::to_owned).collect();
        }
        "config-map" => options.config_map = Some(value.to_owned()).filter(|name| !name.is_empty()),
        "set" => sets.extend(value.split_whitespace().map(str::to_owned)),
        "port" => options.port = port()?,
        "admin-port" => options.admin_port = port()?,
        "egress-port" => match &mut options.egress {
            Some(egress) => egress.port = port()?,
            None => return Err("none: the webhook has no --egress".to_owned()),
        },
        "replace" => options.replace = value.parse().map_err(|_| "true or false".to_owned())?,
        _ => return Err(format!("one of {} in its place", KNOWN.join(", "))),
    }
    Ok(())
}
