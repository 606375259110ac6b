//! Finds the pods in a document: in all Kubernetes kinds with pods, in Crossplane's
//! `DeploymentRuntimeConfig`, and in lists of these.

use super::record::Record;
use crate::yaml::Node;

/// A Kubernetes object with a pod or a pod template, found in a document.
pub(super) struct Workload<'a> {
    pub(super) name: String,
    /// The kind and name, `Kind/name`.
    pub(super) title: String,
    pub(super) namespace: Option<String>,
    /// The node containing the pod's `metadata` and `spec`.
    pub(super) pod: &'a mut Node,
    /// True if Crossplane creates the pod from this object. Then required fields and containers may
    /// be missing.
    pub(super) is_overlay: bool,
    /// The number of existing steps on the path to the pod; later steps were created for the edit.
    made: usize,
}

/// The container of a Crossplane package; Crossplane merges it by name.
pub(super) const PACKAGE_RUNTIME: &str = "package-runtime";

/// Calls `show` with every workload in a document.
pub(super) fn each(root: &mut Node, show: &mut impl FnMut(&mut Workload<'_>)) {
    let text = |path: &[&str]| root.text_at(path).map(str::to_owned);
    let kind = text(&["kind"]).unwrap_or_default();
    let name = text(&["metadata", "name"]).or_else(|| text(&["metadata", "generateName"])).unwrap_or_default();
    let namespace = text(&["metadata", "namespace"]);
    let group =
        root.text_at(&["apiVersion"]).and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
    let path = template_of(group, &kind);
    if kind.ends_with("List")
        && let Some(items) = root.list_of_mut("items")
    {
        items.iter_mut().for_each(|item| each(item, show));
    } else if path == Some(&OVERLAY[..TEMPLATE]) {
        with_overlay(root, &name, show);
    } else if let Some(pod) = path.and_then(|path| root.at_mut(path))
        && pod.get("spec").is_some_and(|spec| matches!(spec, Node::Map(..)))
    {
        let title = format!("{kind}/{name}");
        show(&mut Workload { name, title, namespace, pod, is_overlay: false, made: OVERLAY.len() });
    }
}

/// Returns the path from an object of this kind to the node containing the pod's `metadata` and
/// `spec`.
fn template_of(group: &str, kind: &str) -> Option<&'static [&'static str]> {
    match (group, kind) {
        ("", "Pod") => Some(&[]),
        ("", "PodTemplate") => Some(&["template"]),
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
        | ("batch", "Job")
        | ("", "ReplicationController") => Some(&["spec", "template"]),
        ("batch", "CronJob") => Some(&["spec", "jobTemplate", "spec", "template"]),
        ("pkg.crossplane.io", "DeploymentRuntimeConfig") => Some(&OVERLAY[..TEMPLATE]),
        _ => None,
    }
}

/// Calls `show` with the pod of a Crossplane runtime config.
///
/// Missing steps of the path are created first. Afterwards they are removed again if they are still
/// empty, as are those created by an earlier injection.
fn with_overlay(root: &mut Node, name: &str, show: &mut impl FnMut(&mut Workload<'_>)) {
    let mut made = OVERLAY.len();
    let mut node = &mut *root;
    for (depth, key) in OVERLAY.into_iter().enumerate() {
        if node.get(key).is_none_or(Node::is_null) {
            made = made.min(depth);
            let empty = if depth == TEMPLATE_SPEC { Node::map([("selector", Node::map([]))]) } else { Node::map([]) };
            node.set(key, empty);
        }
        let Some(next) = node.get_mut(key) else { return };
        node = next;
    }
    if let Some(pod) = root.at_mut(&OVERLAY[..TEMPLATE]) {
        let title = format!("DeploymentRuntimeConfig/{name}");
        let name = name.to_owned();
        let mut found = Workload { name, title, namespace: None, pod, is_overlay: true, made };
        show(&mut found);
        made = found.made;
    }
    for depth in (made..OVERLAY.len()).rev() {
        let Some(parent) = root.at_mut(&OVERLAY[..depth]) else { return };
        let only_selector = |node: &Node| {
            let is_one = matches!(node, Node::Map(entries, _) if entries.len() == 1);
            depth == TEMPLATE_SPEC && is_one && node.get("selector").is_some_and(Node::is_empty)
        };
        if parent.get(OVERLAY[depth]).is_some_and(|node| node.is_empty() || only_selector(node)) {
            parent.remove(OVERLAY[depth]);
        }
    }
}

/// The path to the pod's spec in a Crossplane runtime config.
const OVERLAY: [&str; 5] = ["spec", "deploymentTemplate", "spec", "template", "spec"];
/// The number of steps on that path to the node containing the pod's metadata and spec.
const TEMPLATE: usize = 4;
/// The index of the step to a node with a required selector.
const TEMPLATE_SPEC: usize = 2;

// === impl Workload ===

impl Workload<'_> {
    /// Records the steps of the path created for the edit.
    pub(super) fn note_made(&self, record: &mut Record) {
        for depth in self.made..OVERLAY.len() {
            record.note(format!("step {depth}"), None);
        }
    }

    /// Reads from the record the steps of the path created for the edit.
    pub(super) fn recall_made(&mut self, record: &Record) {
        self.made = (0..self.made).find(|depth| record.was(&format!("step {depth}")).is_some()).unwrap_or(self.made);
    }
}
