//! The options for one pod: those of the webhook, overridden by the pod's annotations. The
//! annotations have the same names as `tidegate inject`'s options.

use serde_json::Value;

use crate::inject::{Mode, Options};

/// A function that adds limits (`KEY=VALUE`) to options, and checks them as strictly as a
/// configuration. The error is a list of problems.
pub type Check = fn(Options, &[String]) -> Result<Options, Vec<String>>;

/// The names of the annotations, without their prefix.
const KNOWN: [&str; 8] = ["mode", "container", "config-map", "set", "port", "admin-port", "egress-port", "replace"];
const PREFIX: &str = "tidegate.io/";

/// Returns the options for a pod. The error is a list of problems with its annotations.
pub(super) fn of(pod: &Value, defaults: &Options, check: Check) -> Result<Options, Vec<String>> {
    let mut options = defaults.clone();
    let mut sets = Vec::new();
    let mut wrong = Vec::new();
    let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object);
    for (name, value) in annotations.into_iter().flatten() {
        let Some(name) = name.strip_prefix(PREFIX) else { continue };
        let value = value.as_str().unwrap_or_default();
        if let Err(expected) = apply(name, value, &mut options, &mut sets) {
            wrong.push(format!("annotation {PREFIX}{name} is {value:?}, expected {expected}"));
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

/// Applies one annotation to the options. The error says which value was expected.
fn apply(name: &str, value: &str, options: &mut Options, sets: &mut Vec<String>) -> Result<(), String> {
    let port = || value.parse().ok().filter(|port| *port > 0).ok_or_else(|| "a port".to_owned());
    match name {
        "mode" => {
            options.mode = match value {
                "kubeconfig" => Mode::Kubeconfig,
                "in-cluster" => Mode::InCluster,
                _ => return Err("kubeconfig or in-cluster".to_owned()),
            }
        }
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
        _ => return Err(format!("one of {}", KNOWN.map(|known| format!("{PREFIX}{known}")).join(", "))),
    }
    Ok(())
}
