//! A `PodMonitor` beside each workload, for the sidecar's metrics.

use super::record::ANNOTATION;
use super::template;
use super::workload::Workload;
use crate::yaml::Node;

/// Returns true for a `PodMonitor` created by tidegate.
pub(super) fn is_ours(root: &Node) -> bool {
    root.text_at(&["kind"]) == Some("PodMonitor") && root.at(&["metadata", "annotations", ANNOTATION]).is_some()
}

/// Creates a `PodMonitor` for the pods of a workload; `None` if they have no labels to be selected
/// by.
pub(super) fn of(found: &Workload<'_>) -> Option<Node> {
    // An empty key (`labels:`) means the same as a missing one.
    let labels =
        found.pod.at(&["metadata", "labels"]).filter(|labels| matches!(labels, Node::Map(..)) && !labels.is_empty())?;
    let mut monitor = template(include_str!("templates/podmonitor.yaml"));
    let metadata = monitor.get_mut("metadata")?;
    metadata.set("name", Node::plain(format!("{}-tidegate", found.name)));
    if let Some(namespace) = &found.namespace {
        metadata.set("namespace", Node::plain(&**namespace));
    }
    monitor.get_mut("spec")?.set("selector", Node::map([("matchLabels", labels.clone())]));
    Some(monitor)
}
