//! A `PodMonitor` beside each workload, through which a Prometheus operator finds the sidecar's
//! metrics.

use super::record::ANNOTATION;
use crate::yaml::{Node, Shape};

/// True if an object is a `PodMonitor` that tidegate made.
pub(super) fn is_ours(root: &Node) -> bool {
    root.get("kind").and_then(Node::text) == Some("PodMonitor")
        && root.at(&["metadata", "annotations", ANNOTATION]).is_some()
}

/// Makes one for the pods of a template; `None` if they have no labels to find them by.
pub(super) fn of(workload: &str, namespace: Option<&str>, pod: &Node) -> Option<Node> {
    // An empty key (`labels:`) means the same as a missing one.
    let labels =
        pod.at(&["metadata", "labels"]).filter(|labels| matches!(labels, Node::Map(..)) && !labels.is_empty())?;
    let mut metadata = Node::map([
        ("name", Node::plain(format!("{workload}-tidegate"))),
        ("annotations", Node::Map(vec![(Node::plain(ANNOTATION), Node::quoted("true"))], Shape::block())),
    ]);
    if let Some(namespace) = namespace {
        metadata.set("namespace", Node::plain(namespace));
    }
    Some(Node::map([
        ("apiVersion", Node::plain("monitoring.coreos.com/v1")),
        ("kind", Node::plain("PodMonitor")),
        ("metadata", metadata),
        (
            "spec",
            Node::map([
                ("selector", Node::map([("matchLabels", labels.clone())])),
                ("podMetricsEndpoints", Node::list([Node::map([("port", Node::plain(ADMIN_PORT))])])),
            ]),
        ),
    ]))
}

/// The port that probes and Prometheus reach.
pub(super) const ADMIN_PORT: &str = "tidegate-admin";
