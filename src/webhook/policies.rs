//! Policies: which pods get the sidecar without a label, and with what. A file lists them, and the
//! first that matches a pod decides. The annotations of a namespace come before the file.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::options::{self, Check, PREFIX};
use crate::classify::Glob;
use crate::inject::{LABEL, Options};

/// The policies of a webhook, in the order of their file.
#[derive(Clone, Debug)]
pub struct Policies {
    configurations: BTreeMap<String, Options>,
    policies: Vec<PodPolicy>,
    defaults: Options,
    check: Check,
}

/// The sidecar that a policy chooses for a pod: its mode and settings.
pub(super) struct Decision {
    /// The policy, as text.
    pub(super) by: String,
    pub(super) mode: RolloutMode,
    pub(super) options: Options,
}

words! {
    /// What the sidecar of a pod does.
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub(super) enum RolloutMode {
        /// It holds no call back, and logs what it would have done.
        #[default]
        Observe = "observe",
        /// Its limits are in force.
        Enforce = "enforce",
        /// There is none.
        Off = "off",
    }
}

/// The file of policies.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default)]
    configurations: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    policies: Vec<PodPolicy>,
}

/// A policy for the pods that meet all of its conditions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PodPolicy {
    name: String,
    /// Labels of the pod's namespace, with patterns for their values.
    #[serde(default)]
    namespaces: BTreeMap<String, String>,
    /// Labels of the pod, with patterns for their values.
    #[serde(default)]
    pods: BTreeMap<String, String>,
    /// Patterns, of which one must match the image of a container.
    #[serde(default)]
    images: Vec<String>,
    configuration: Option<String>,
    #[serde(default)]
    mode: RolloutMode,
}

// === impl Policies ===

impl Policies {
    /// Reads the file of policies. `defaults` are the options of pods without a configuration.
    ///
    /// # Errors
    /// A list of problems.
    pub fn read(text: &str, defaults: &Options, check: Check) -> Result<Self, Vec<String>> {
        let file: PolicyFile = toml::from_str(text).map_err(|error| vec![error.to_string()])?;
        let mut problems = Vec::new();
        let mut configurations = BTreeMap::new();
        for (name, keys) in file.configurations {
            let keys = keys.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            let options = options::with(keys, "", defaults, check).unwrap_or_else(|wrong| {
                problems.extend(wrong.iter().map(|wrong| format!("configurations.{name}: {wrong}")));
                defaults.clone()
            });
            configurations.insert(name, options);
        }
        for (index, policy) in file.policies.iter().enumerate() {
            let before = file.policies.get(..index).unwrap_or_default();
            let faults = policy.faults(before, &configurations);
            problems.extend(faults.into_iter().map(|fault| format!("policies[{index}] {:?}: {fault}", policy.name)));
        }
        let read = Self { configurations, policies: file.policies, defaults: defaults.clone(), check };
        if problems.is_empty() { Ok(read) } else { Err(problems) }
    }

    /// Returns what the first policy that matches makes of a pod; `None` if none does.
    ///
    /// # Errors
    /// A list of problems with the namespace's annotations.
    pub(super) fn decide(&self, pod: &Value, namespace: &Value) -> Result<Option<Decision>, Vec<String>> {
        if let Some((_, word)) = options::annotations(namespace).find(|(name, _)| *name == POLICY) {
            let place = format!("namespace annotation {PREFIX}");
            let unknown = || vec![format!("{place}{POLICY} is {word:?}, expected observe, enforce or off")];
            let mode = RolloutMode::named(word).ok_or_else(unknown)?;
            let own = options::annotations(namespace).filter(|(name, _)| *name != POLICY);
            let options = options::with(own, &place, &self.defaults, self.check)?;
            return Ok(Some(Decision { by: format!("{place}{POLICY}"), mode, options }));
        }
        let first = self.policies.iter().find(|policy| policy.mismatch(pod, namespace).is_none());
        Ok(first.map(|policy| {
            let named = policy.configuration.as_ref().and_then(|name| self.configurations.get(name));
            let options = named.unwrap_or(&self.defaults).clone();
            Decision { by: format!("policy {:?}", policy.name), mode: policy.mode, options }
        }))
    }

    /// Explains what happens to each pod of these objects. A namespace among them has the labels.
    pub fn explain(&self, objects: &[Value]) -> String {
        let of_kind = |kind| objects.iter().filter(move |object| object.get("kind").is_some_and(|it| it == kind));
        let text = |object: &Value, at| object.pointer(at).and_then(Value::as_str).unwrap_or("default").to_owned();
        let mut lines = Vec::new();
        for pod in of_kind("Pod") {
            let name = text(pod, "/metadata/namespace");
            let bare = json!({"metadata": {"labels": {"kubernetes.io/metadata.name": name}}});
            let given = of_kind("Namespace").find(|object| text(object, "/metadata/name") == name);
            let namespace = given.unwrap_or(&bare);
            let is_left = SYSTEM.contains(&&*name) || is_disabled(pod) || is_disabled(namespace);
            let what = match self.decide(pod, namespace) {
                _ if is_left => format!("stays as it is: {LABEL} is disabled, or the namespace is the system's"),
                Ok(Some(Decision { by, mode, .. })) => format!("{by}, mode {mode}"),
                Ok(None) => "no policy, so that only a label tidegate.io/inject gives it the sidecar".to_owned(),
                Err(problems) => problems.join("; "),
            };
            lines.push(format!("pod {name}/{}: {what}", text(pod, "/metadata/name")));
            let matching = self.policies.iter().position(|policy| policy.mismatch(pod, namespace).is_none());
            for policy in self.policies.iter().take(matching.unwrap_or(usize::MAX)) {
                let why = policy.mismatch(pod, namespace).unwrap_or_default();
                lines.push(format!("  not {:?}: {why}", policy.name));
            }
            if given.is_none() {
                lines.push(format!(
                    "  of the namespace only its name is known; add the YAML of Namespace {name} for its labels"
                ));
            }
        }
        lines.join("\n")
    }
}

// === impl PodPolicy ===

impl PodPolicy {
    /// Returns what is wrong with this policy, which comes after others.
    fn faults(&self, before: &[Self], configurations: &BTreeMap<String, Options>) -> Vec<String> {
        let mut faults = Vec::new();
        if self.name.is_empty() || before.iter().any(|other| other.name == self.name) {
            faults.push("expected a name that no other policy has".to_owned());
        }
        let is_empty = |(label, values): (&String, &String)| label.is_empty() || patterns(values).any(str::is_empty);
        if self.namespaces.iter().chain(&self.pods).any(is_empty) || self.images.iter().any(String::is_empty) {
            faults.push(
                "has an empty label, value or image, which no pod matches; expected patterns such as \"prod-*, test\""
                    .to_owned(),
            );
        }
        if let Some(name) = self.configuration.as_ref().filter(|name| !configurations.contains_key(*name)) {
            let names: Vec<&str> = configurations.keys().map(String::as_str).collect();
            let there = if names.is_empty() { "there is none".to_owned() } else { names.join(", ") };
            faults.push(format!("configuration is {name:?}, expected a [configurations.NAME]: {there}"));
        }
        if let Some(wide) = before.iter().find(|wide| wide.covers(self)) {
            faults.push(format!(
                "no pod can match it, because {:?} comes first and matches all of its pods; move it up, or narrow that one",
                wide.name
            ));
        }
        faults
    }

    /// Returns why a pod does not match; `None` if it does.
    fn mismatch(&self, pod: &Value, namespace: &Value) -> Option<String> {
        let of_labels = |whose: &str, object: &Value, wanted: &BTreeMap<String, String>| {
            let labels = object.pointer("/metadata/labels");
            wanted.iter().find_map(|(label, values)| {
                let value = labels.and_then(|labels| labels.get(label)).and_then(Value::as_str);
                let fits = value.is_some_and(|value| patterns(values).any(|pattern| Glob::new(pattern).matches(value)));
                let found = value.map_or_else(|| "absent".to_owned(), |value| format!("{value:?}"));
                (!fits).then(|| format!("label {label} of the {whose} is {found}, expected {values:?}"))
            })
        };
        let of_images = || {
            let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
            let images: Vec<&str> = containers.filter_map(|container| container.get("image")?.as_str()).collect();
            let fits = |image: &&str| self.images.iter().any(|pattern| Glob::new(pattern).matches(image));
            let is_met = self.images.is_empty() || images.iter().any(fits);
            (!is_met)
                .then(|| format!("its images are {}, expected one of {}", images.join(", "), self.images.join(", ")))
        };
        let of_namespace = of_labels("namespace", namespace, &self.namespaces);
        of_namespace.or_else(|| of_labels("pod", pod, &self.pods)).or_else(of_images)
    }

    /// Returns true if this policy matches every pod that `narrow` matches. Patterns are compared
    /// only as texts.
    fn covers(&self, narrow: &Self) -> bool {
        let has_all =
            |wide: &[&str], narrow: &[&str]| wide.contains(&"*") || narrow.iter().all(|one| wide.contains(one));
        let labels = |wide: &BTreeMap<String, String>, narrow: &BTreeMap<String, String>| {
            let list = |values| patterns(values).collect::<Vec<_>>();
            wide.iter().all(|(label, wide)| narrow.get(label).is_some_and(|narrow| has_all(&list(wide), &list(narrow))))
        };
        let images = self.images.is_empty()
            || !narrow.images.is_empty() && narrow.images.iter().all(|image| self.images.contains(image));
        labels(&self.namespaces, &narrow.namespaces) && labels(&self.pods, &narrow.pods) && images
    }
}

/// Returns true if a label keeps the sidecar out of a pod, or of the pods of a namespace.
pub(super) fn is_disabled(object: &Value) -> bool {
    let label = object.pointer("/metadata/labels").and_then(|labels| labels.get(LABEL));
    matches!(label.and_then(Value::as_str), Some("disabled" | "false"))
}

fn patterns(values: &str) -> impl Iterator<Item = &str> {
    values.split(',').map(str::trim)
}

/// The annotation of a namespace that is a policy for its pods, without its prefix.
const POLICY: &str = "policy";
/// The namespaces of Kubernetes itself.
pub(super) const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

#[cfg(test)]
mod tests;
