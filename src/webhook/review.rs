//! The answer to one `AdmissionReview`: a pure function of the request and the settings.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::policies::{RolloutMode, SYSTEM, is_disabled};
use super::{Policy, Settings, options};
use crate::credentials::Environment;
use crate::inject;

/// Why a request is not an `AdmissionReview`.
#[derive(Debug, thiserror::Error)]
pub enum NotReview {
    /// The body is not JSON.
    #[error("the body is not JSON: {0}; expected an AdmissionReview")]
    Json(#[from] serde_json::Error),
    /// The body is JSON, but no `AdmissionReview` of version `v1`.
    #[error("the body is not an AdmissionReview of admission.k8s.io/v1 with a request and its uid")]
    Kind,
}

/// The changes to make in a pod, as a JSON patch, with warnings for the user.
struct PodPatch {
    operations: Value,
    warnings: Vec<String>,
    /// The policy that gave the sidecar.
    by: Option<String>,
}

/// Returns the answer to an `AdmissionReview`, in the same format. Without a label only a policy gives
/// the sidecar.
///
/// # Errors
/// The body is not an `AdmissionReview`.
pub async fn review(body: &[u8], settings: &Settings, is_labelled: bool) -> Result<Value, NotReview> {
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
    let object = match settings.namespaces.as_ref().filter(|_| pod.is_some()) {
        Some(namespaces) => Some(namespaces.get(namespace).await),
        None => None,
    };
    let patch = |pod| patch(pod, settings, object.as_ref().map(Result::as_ref), is_labelled);
    let response = match pod.map_or(Ok(None), patch) {
        Ok(None) => json!({"uid": uid, "allowed": true}),
        Ok(Some(PodPatch { operations, warnings, by })) => {
            tracing::info!(namespace, pod = pod.map(name), by, "adding the sidecar to a new pod");
            let patch = STANDARD.encode(operations.to_string());
            json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": warnings})
        }
        Err(reasons) => {
            let why = reasons.join("; ");
            tracing::warn!(namespace, pod = pod.map(name), why, policy = ?settings.policy, "cannot add the sidecar to a new pod");
            let message = format!("tidegate: {why}");
            match settings.policy {
                // Pods without a label never depend on the webhook.
                Policy::Fail if is_labelled => {
                    json!({"uid": uid, "allowed": false, "status": {"code": 403, "message": message}})
                }
                _ => json!({"uid": uid, "allowed": true, "warnings": reasons.iter().map(|reason| {
                    format!("tidegate: this pod is created without the sidecar: {reason}")
                }).collect::<Vec<_>>()}),
            }
        }
    };
    Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

/// Returns true for namespaces whose pods are never changed: a cluster cannot start without them.
fn is_left_alone(namespace: &str, settings: &Settings) -> bool {
    SYSTEM.contains(&namespace) || settings.namespace.as_deref() == Some(namespace)
}

/// Returns the changes to make in a pod of a namespace; `None` if it stays as it is.
///
/// # Errors
/// The reasons why the pod cannot have the sidecar.
fn patch(
    pod: &Value,
    settings: &Settings,
    namespace: Option<Result<&Value, &String>>,
    is_labelled: bool,
) -> Result<Option<PodPatch>, Vec<String>> {
    if is_disabled(pod) || has_sidecar(pod) || is_annotated(pod, MIRROR) {
        return Ok(None);
    }
    let decision = match (&settings.policies, namespace) {
        (Some(policies), Some(namespace)) => policies.decide(pod, namespace.map_err(|why| vec![why.clone()])?)?,
        _ => None,
    };
    let mode = decision.as_ref().map(|decision| decision.mode);
    if mode == Some(RolloutMode::Off) || mode.is_none() && !is_labelled {
        return Ok(None);
    }
    let reasons: Vec<String> =
        [without_token(pod), with_ports_of_the_host(pod, settings)].into_iter().flatten().collect();
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let defaults = decision.as_ref().map_or(&settings.options, |decision| &decision.options);
    let mut options = options::of(pod, defaults, settings.check)?;
    if mode == Some(RolloutMode::Observe) {
        options.observe();
    }
    // `inject` reads an object of the API as a document.
    let mut document = pod.clone();
    if let Some(entries) = document.as_object_mut() {
        entries.insert("apiVersion".to_owned(), "v1".into());
        entries.insert("kind".to_owned(), "Pod".into());
    }
    let edit = inject::inject(&document.to_string(), &options);
    let edit = edit.map_err(|error| vec![format!("the pod in this request cannot be read: {error}")])?;
    if !edit.refused.is_empty() {
        return Err(edit.refused);
    }
    if edit.changed.is_empty() {
        return Ok(None);
    }
    let after: Value = serde_json::from_str(&edit.text)
        .map_err(|error| vec![format!("the pod with the sidecar cannot be written: {error}")])?;
    let by = decision.map(|decision| format!("{}, mode {}", decision.by, decision.mode));
    Ok(Some(PodPatch { operations: json!(json_patch::diff(&document, &after)), warnings: edit.notes, by }))
}

/// Returns true if a pod has the sidecar already: from `inject`, a Helm chart, or a Kustomize
/// component.
fn has_sidecar(pod: &Value) -> bool {
    let containers = ["/spec/initContainers", "/spec/containers"];
    let mut containers = containers.iter().filter_map(|list| pod.pointer(list)?.as_array()).flatten();
    containers.any(|container| container.get("name").is_some_and(|name| name == "tidegate"))
}

/// Returns an error for a pod without a service account token, which the sidecar needs. If the
/// pod's ServiceAccount allows a token, the API server has mounted it before the webhook is called.
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

/// Returns an error for a pod on the host's network, unless annotations choose the sidecar's ports.
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

/// Returns the name of a pod, or the beginning of its generated name.
fn name(pod: &Value) -> &str {
    let name = pod.pointer("/metadata/name").or_else(|| pod.pointer("/metadata/generateName"));
    name.and_then(Value::as_str).unwrap_or_default()
}

/// The annotation of pods that mirror a kubelet's static pods; they must stay unchanged.
const MIRROR: &str = "kubernetes.io/config.mirror";

#[cfg(test)]
mod tests;
