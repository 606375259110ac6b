//! One `AdmissionReview`, answered: a pure function of the request and the settings.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Policy, Settings, options};
use crate::credentials::Environment;
use crate::inject::{self, LABEL};

/// A request that is no `AdmissionReview` of a version that is known here.
#[derive(Debug, thiserror::Error)]
pub enum NotReview {
    /// It is not JSON.
    #[error("the body is not JSON: {0}; expected an AdmissionReview")]
    Json(#[from] serde_json::Error),
    /// It is another object.
    #[error("the body is not an AdmissionReview of admission.k8s.io/v1 with a request and its uid")]
    Kind,
}

/// The fate of a pod.
enum Outcome {
    /// It is made as it is.
    Untouched,
    /// It is made with these changes.
    Patched(Value, Vec<String>),
    /// It cannot have the sidecar, for these reasons.
    Refused(Vec<String>),
}

/// Returns the `AdmissionReview` that answers one.
///
/// # Errors
/// The body is not an `AdmissionReview`.
pub fn review(body: &[u8], settings: &Settings) -> Result<Value, NotReview> {
    let review: Value = serde_json::from_slice(body)?;
    let text = |pointer: &str| review.pointer(pointer).and_then(Value::as_str);
    if (text("/apiVersion"), text("/kind")) != (Some("admission.k8s.io/v1"), Some("AdmissionReview")) {
        return Err(NotReview::Kind);
    }
    let uid = text("/request/uid").ok_or(NotReview::Kind)?;
    let namespace = text("/request/namespace").unwrap_or_default();
    let is_new_pod = text("/request/kind/kind") == Some("Pod")
        && text("/request/kind/group").is_none_or(str::is_empty)
        && text("/request/operation") == Some("CREATE");
    let pod = review.pointer("/request/object").filter(|_| is_new_pod && !is_left_alone(namespace, settings));
    let outcome = pod.map_or(Outcome::Untouched, |pod| outcome(pod, settings));
    let response = match outcome {
        Outcome::Untouched => json!({"uid": uid, "allowed": true}),
        Outcome::Patched(patch, warnings) => {
            tracing::info!(namespace, pod = pod.map(name), "pod gets the sidecar");
            let patch = STANDARD.encode(patch.to_string());
            json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": warnings})
        }
        Outcome::Refused(reasons) => {
            let why = reasons.join("; ");
            tracing::warn!(namespace, pod = pod.map(name), why, policy = ?settings.policy, "pod cannot have the sidecar");
            let message = format!("tidegate: {why}");
            match settings.policy {
                Policy::Ignore => json!({"uid": uid, "allowed": true, "warnings": reasons.iter().map(|reason| {
                    format!("tidegate: made without the sidecar: {reason}")
                }).collect::<Vec<_>>()}),
                Policy::Fail => json!({"uid": uid, "allowed": false, "status": {"code": 403, "message": message}}),
            }
        }
    };
    Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

/// True for the namespaces whose pods are never touched, whatever the configuration of the webhook
/// selects: without them, no cluster comes up.
fn is_left_alone(namespace: &str, settings: &Settings) -> bool {
    SYSTEM.contains(&namespace) || settings.namespace.as_deref() == Some(namespace)
}

/// Decides about a pod.
fn outcome(pod: &Value, settings: &Settings) -> Outcome {
    let label = pod.pointer("/metadata/labels").and_then(|labels| labels.get(LABEL)).and_then(Value::as_str);
    if matches!(label, Some("disabled" | "false")) || has_sidecar(pod) || is_annotated(pod, MIRROR) {
        return Outcome::Untouched;
    }
    let reasons: Vec<String> =
        [without_token(pod), with_ports_of_the_host(pod, settings)].into_iter().flatten().collect();
    if !reasons.is_empty() {
        return Outcome::Refused(reasons);
    }
    let options = match options::of(pod, &settings.options, settings.check) {
        Ok(options) => options,
        Err(reasons) => return Outcome::Refused(reasons),
    };
    // An object of the API as a document of its own, which `inject` reads as any other.
    let mut document = pod.clone();
    if let Some(entries) = document.as_object_mut() {
        entries.insert("apiVersion".to_owned(), "v1".into());
        entries.insert("kind".to_owned(), "Pod".into());
    }
    let edited = match inject::inject(&document.to_string(), &options) {
        Ok(edited) if !edited.refused.is_empty() => return Outcome::Refused(edited.refused),
        Ok(edited) if edited.changed.is_empty() => return Outcome::Untouched,
        Ok(edited) => edited,
        Err(unreadable) => return Outcome::Refused(vec![format!("pod cannot be read: {unreadable}")]),
    };
    match serde_json::from_str::<Value>(&edited.text) {
        Ok(after) => Outcome::Patched(json!(json_patch::diff(&document, &after)), edited.notes),
        Err(error) => Outcome::Refused(vec![format!("pod cannot be written: {error}")]),
    }
}

/// True if a pod has a sidecar already: from `inject`, a chart, or a component.
fn has_sidecar(pod: &Value) -> bool {
    let containers = ["/spec/initContainers", "/spec/containers"];
    let mut containers = containers.iter().filter_map(|list| pod.pointer(list)?.as_array()).flatten();
    containers.any(|container| container.get("name").is_some_and(|name| name == "tidegate"))
}

/// Describes a pod that gets no token, because its ServiceAccount says so: the API server has put
/// the token's mount into all others by now, and set their account.
fn without_token(pod: &Value) -> Option<String> {
    let account = pod.pointer("/spec/serviceAccountName").and_then(Value::as_str)?;
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    let mut mounts = containers.filter_map(|each| each.get("volumeMounts")?.as_array()).flatten();
    let is_token = |mount: &Value| {
        let path = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
        path.trim_end_matches('/') == Environment::SERVICE_ACCOUNT
    };
    (!mounts.any(is_token)).then(|| {
        format!("no container gets a token, so the sidecar would find no API server; set automountServiceAccountToken to true, for the pod or for its ServiceAccount {account:?}")
    })
}

/// Describes a pod that shares the ports of its node, and does not say which of them are free.
fn with_ports_of_the_host(pod: &Value, settings: &Settings) -> Option<String> {
    let is_on_host = pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) == Some(true);
    let egress = settings.options.egress.as_ref().map(|_| "tidegate.io/egress-port");
    let ports: Vec<&str> = ["tidegate.io/port", "tidegate.io/admin-port"].into_iter().chain(egress).collect();
    let says = ports.iter().all(|port| is_annotated(pod, port));
    (is_on_host && !says).then(|| {
        let ports = ports.join(" and ");
        format!("pod is on the host's network, where the sidecar's ports may be taken; choose ports that are free on every node with annotation {ports}")
    })
}

fn is_annotated(pod: &Value, name: &str) -> bool {
    pod.pointer("/metadata/annotations").is_some_and(|annotations| annotations.get(name).is_some())
}

/// Returns the name of a pod, or the beginning of the one that it will get.
fn name(pod: &Value) -> &str {
    let name = pod.pointer("/metadata/name").or_else(|| pod.pointer("/metadata/generateName"));
    name.and_then(Value::as_str).unwrap_or_default()
}

/// The annotation of the pods by which a kubelet shows its static pods: they must be as it made
/// them.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The namespaces of Kubernetes itself.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

#[cfg(test)]
mod tests;
