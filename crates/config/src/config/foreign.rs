//! Recognises files of another kind, such as manifests. Such a file gets one problem as a whole,
//! and not one in each line.

use super::path::Path;
use super::problems::{Problem, Text};
use crate::yaml::{self, Node};

/// Returns a problem if a configuration file is YAML or JSON instead of TOML.
pub(super) fn other_language(text: &Text) -> Option<Problem> {
    let Ok(Some(root @ Node::Map(..))) = yaml::read(&text.text, 1) else { return None };
    let kind = root.text_at(&["kind"]).filter(|_| root.get("apiVersion").is_some());
    let is_flow = matches!(&root, Node::Map(_, shape) if shape.flow);
    let is = match (kind, is_flow) {
        (Some("Config"), _) => "is a kubeconfig, which upstream = \"kubeconfig\" finds by itself; expected".to_owned(),
        (Some(kind), _) => format!("is a Kubernetes manifest ({kind}), expected the configuration file itself, in"),
        (None, true) => "is JSON, expected".to_owned(),
        (None, false) => "is YAML, expected".to_owned(),
    };
    let example = "[gates.kubernetes] on a line of its own, and keys such as upstream = \"in_cluster\" below it";
    Some(Problem::of_file(&text.name, Path::default(), format!("{is} TOML: {example}")))
}
