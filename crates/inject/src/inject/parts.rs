//! The names and places of everything that is added to a pod, and how its parts are found.

use crate::yaml::Node;

/// The admin port that the template names.
pub(super) const ADMIN_PORT: u16 = 9464;
/// The name of everything that is added.
pub(super) const NAME: &str = "tidegate";
pub(super) const CONFIG: &str = "tidegate-config";
pub(super) const FOLDER: &str = "/run/tidegate";
/// The volume that the sidecar alone mounts.
pub(super) const KEYS: &str = "tidegate-keys";
pub(super) const KEYS_FOLDER: &str = "/run/tidegate-keys";
pub(super) const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Returns the containers of a pod, and those that start before them.
pub(super) fn containers(spec: &Node) -> impl Iterator<Item = &Node> {
    ["containers", "initContainers"].into_iter().flat_map(|list| spec.list_of(list))
}

/// True for an item of a list that has this name.
pub(super) fn is_named(item: &Node, name: &str) -> bool {
    item.text_at(&["name"]) == Some(name)
}
