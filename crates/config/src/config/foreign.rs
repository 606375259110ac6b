//! Recognises files of another kind, such as manifests. Such a file gets one problem as a whole,
//! and not one in each line.

use super::path::Path;
use super::problems::{Problem, Text};
use crate::yaml::{self, Node};

/// Returns a problem if a configuration file is really a scenario, or is not TOML but YAML or JSON.
pub(super) fn configuration(text: &Text, is_broken: bool) -> Option<Problem> {
    let example = "[gates.kubernetes] on a line of its own, and keys such as upstream = \"in_cluster\" below it";
    let message = format!(
        "is a scenario, expected a configuration with [gates.NAME]; a scenario is for `tidegate simulate {}`",
        text.name
    );
    if is_broken { other_language(text, example) } else { is_scenario(text).then(|| of_file(text, message)) }
}

/// Returns a problem if a scenario file is really a configuration, or is not TOML but YAML or JSON.
pub(super) fn scenario(text: &Text, is_broken: bool) -> Option<Problem> {
    let example = "[[controllers]] on a line of its own, and keys such as objects = 100 below it";
    let message = format!(
        "is a configuration, expected a scenario with [[controllers]]; a configuration is for `tidegate simulate SCENARIO --config {}`",
        text.name
    );
    let is_configuration = text.has("gates") && !SCENARIO.iter().any(|key| text.has(key));
    if is_broken { other_language(text, example) } else { is_configuration.then(|| of_file(text, message)) }
}

fn is_scenario(text: &Text) -> bool {
    SCENARIO.iter().any(|key| text.has(key)) && !text.has("gates")
}

fn of_file(text: &Text, message: String) -> Problem {
    Problem::of_file(&text.name, Path::default(), message)
}

const SCENARIO: [&str; 2] = ["controllers", "leases"];

/// Returns a problem if a text is YAML or JSON instead of TOML; `expected` is an example of TOML.
fn other_language(text: &Text, expected: &str) -> Option<Problem> {
    let Ok(Some(root @ Node::Map(..))) = yaml::read(&text.text, 1) else { return None };
    let kind = root.text_at(&["kind"]).filter(|_| root.get("apiVersion").is_some());
    let is_flow = matches!(&root, Node::Map(_, shape) if shape.flow);
    let is = match (kind, is_flow) {
        (Some("Config"), _) => "is a kubeconfig, which upstream = \"kubeconfig\" finds by itself; expected".to_owned(),
        (Some(kind), _) => format!("is a Kubernetes manifest ({kind}), expected the configuration file itself, in"),
        (None, true) => "is JSON, expected".to_owned(),
        (None, false) => "is YAML, expected".to_owned(),
    };
    Some(of_file(text, format!("{is} TOML: {expected}")))
}
