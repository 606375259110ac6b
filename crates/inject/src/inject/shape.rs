//! Checks that a pod has the usual structure at the places to be edited: changes to an unusual pod
//! could not be undone.

use crate::yaml::Node;

/// Describes the first node with an unusual structure, if there is one.
pub(super) fn fault(pod: &Node) -> Option<String> {
    let metadata = pod.get("metadata");
    let spec = pod.get("spec");
    let is_list = |node: &Node| matches!(node, Node::List(..));
    let is_map = |node: &Node| matches!(node, Node::Map(..));
    let fault = |parent: Option<&Node>, key: &str, fits: &dyn Fn(&Node) -> bool, shape| {
        let node = parent?.get(key)?;
        (!node.is_null() && !fits(node)).then(|| format!("`{key}` of the pod is not {shape}"))
    };
    let map = |parent, key| fault(parent, key, &is_map, "a mapping");
    let list = |parent, key| fault(parent, key, &is_list, "a list");
    let containers = spec.map_or(&[][..], |spec| spec.list_of("containers"));
    map(Some(pod), "metadata")
        .or_else(|| map(metadata, "annotations"))
        .or_else(|| map(Some(pod), "spec"))
        .or_else(|| ["containers", "initContainers", "volumes"].iter().find_map(|key| list(spec, key)))
        .or_else(|| {
            let each = containers.iter().flat_map(|each| ["env", "volumeMounts"].map(|key| list(Some(each), key)));
            each.flatten().next()
        })
}
