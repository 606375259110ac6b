//! The names and paths of the parts added to a pod.

use crate::yaml::Node;

/// The admin port in the template of the sidecar.
pub(super) const ADMIN_PORT: u16 = 9464;
/// The name of every added part.
pub(super) const NAME: &str = "tidegate";
pub(super) const CONFIG: &str = "tidegate-config";
pub(super) const FOLDER: &str = "/run/tidegate";
/// The volume mounted only by the sidecar.
pub(super) const KEYS: &str = "tidegate-keys";
pub(super) const KEYS_FOLDER: &str = "/run/tidegate-keys";
pub(super) const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Returns the containers and init containers of a pod.
pub(super) fn containers(spec: &Node) -> impl Iterator<Item = &Node> {
    ["containers", "initContainers"].into_iter().flat_map(|list| spec.list_of(list))
}

/// Returns true if an item of a list has this name.
pub(super) fn is_named(item: &Node, name: &str) -> bool {
    item.text_at(&["name"]) == Some(name)
}
