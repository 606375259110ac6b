//! Checks that a pod has the usual shape in the places that an edit writes to: an edit that cannot
//! be recorded could not be undone.

use crate::yaml::Node;

/// Describes the first place with an unusual node, and the node that a pod has there.
pub(super) fn fault(pod: &Node) -> Option<String> {
    let metadata = pod.get("metadata");
    let spec = pod.get("spec");
    let parts = [(Some(pod), "metadata", MAP), (metadata, "annotations", MAP), (Some(pod), "spec", MAP)];
    let lists = ["containers", "initContainers", "volumes"].map(|key| (spec, key, LIST));
    let containers = spec.map_or(&[][..], |spec| spec.list_of("containers"));
    let of_containers = containers.iter().flat_map(|each| ["env", "volumeMounts"].map(|key| (Some(each), key, LIST)));
    parts
        .into_iter()
        .chain(lists)
        .chain(of_containers)
        .find(|(parent, key, (_, fits))| {
            let node = parent.and_then(|parent| parent.get(key));
            node.is_some_and(|node| !node.is_null() && !fits(node))
        })
        .map(|(_, key, (what, _))| format!("{key} is not {what}"))
}

type Kind = (&'static str, fn(&Node) -> bool);
const MAP: Kind = ("a mapping", |node| matches!(node, Node::Map(..)));
const LIST: Kind = ("a list", |node| matches!(node, Node::List(..)));
