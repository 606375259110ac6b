//! `tidegate webhook --policies` on a real API server, as the chart installs it: 300 pods of 50
//! namespaces, each as the table says, and `--explain` says the same.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::helm::Helm;
use crate::support::cluster::IMAGE;
use crate::support::control_plane::ControlPlane;
use crate::support::process::{command, scratch_dir};
use crate::support::{now, say, turn, wait_for};
use crate::webhook::{Webhook, kubectl, sidecar};

/// The chart's release and the namespace of its webhook.
const OWN: &str = "policies-own";
const NAME: &str = "policies-tidegate-webhook";
const CONFIGURATION: &str = "policies-tidegate-webhook-policies-own";
const LONG: Duration = Duration::from_secs(60);

const FILE: &str = r#"
[configurations.argo]
set = "bucket.rate=7 bucket.burst=14"

[configurations.web]
set = "bucket.rate=3 bucket.burst=6"

[[policies]]
name = "excluded"
namespaces = { team = "sre" }
mode = "off"

[[policies]]
name = "argo"
images = ["registry.example/argo/*"]
configuration = "argo"
mode = "enforce"

[[policies]]
name = "platform"
namespaces = { team = "platform, data-*" }
pods = { tier = "controller" }

[[policies]]
name = "rest"
namespaces = { team = "platform" }
configuration = "web"
"#;

/// The pods of a namespace: controller, web, argo, two (its second image is argo's), disabled and
/// labelled (by the pod's own label).
const PODS: [&str; 6] = ["controller", "web", "argo", "two", "disabled", "labelled"];

/// What each pod of a kind of namespace gets: mode and rate, or nothing. There are five namespaces
/// of each kind.
const TABLE: [(&str, [&str; 6]); 10] = [
    ("sre", ["-", "-", "-", "-", "-", "-"]),
    ("platform", ["observe", "observe 3", "enforce 7", "enforce 7", "-", "observe 3"]),
    ("data-eu", ["observe", "-", "enforce 7", "enforce 7", "-", "enforce"]),
    ("shop", ["-", "-", "enforce 7", "enforce 7", "-", "enforce"]),
    ("", ["-", "-", "enforce 7", "enforce 7", "-", "enforce"]),
    ("annotated observe", ["observe 2", "observe 2", "observe 2", "observe 2", "-", "observe 2"]),
    ("annotated off", ["-", "-", "-", "-", "-", "-"]),
    ("annotated enforce", ["enforce", "enforce", "enforce", "enforce", "-", "enforce"]),
    ("labelled disabled", ["-", "-", "-", "-", "-", "-"]),
    ("labelled enabled", ["enforce", "enforce", "enforce 7", "enforce 7", "-", "enforce"]),
];

/// A namespace of a kind.
fn namespace(name: &str, kind: &str) -> Value {
    let mut metadata = json!({"name": name, "labels": {}, "annotations": {}});
    match kind.split_once(' ') {
        Some(("annotated", mode)) => {
            // The file says otherwise: the annotation comes first.
            metadata["labels"]["team"] = if mode == "off" { "platform" } else { "sre" }.into();
            metadata["annotations"]["tidegate.io/policy"] = mode.into();
            if mode == "observe" {
                metadata["annotations"]["tidegate.io/set"] = "bucket.rate=2".into();
            }
        }
        Some((_, label)) => {
            metadata["labels"]["tidegate.io/inject"] = label.into();
            metadata["labels"]["team"] = if label == "disabled" { "platform" } else { "shop" }.into();
        }
        None if kind.is_empty() => {}
        None => metadata["labels"]["team"] = kind.into(),
    }
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
}

fn pod(namespace: &str, name: &str) -> Value {
    let tier = if matches!(name, "controller" | "argo" | "disabled") { "controller" } else { "web" };
    let image =
        if matches!(name, "argo" | "disabled") { "registry.example/argo/cd:3" } else { "registry.example/op:1" };
    let mut labels = json!({"tier": tier});
    if let "disabled" | "labelled" = name {
        labels["tidegate.io/inject"] = if name == "disabled" { "disabled" } else { "enabled" }.into();
    }
    let mut containers = vec![json!({"name": "main", "image": image})];
    if name == "two" {
        containers.push(json!({"name": "second", "image": "registry.example/argo/rollouts:1"}));
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels},
           "spec": {"containers": containers}})
}

/// Asks the API server to make these objects, without making them. Returns them as they would be.
fn dry_run(plane: &ControlPlane, objects: &[Value]) -> Vec<Value> {
    let dir = scratch_dir();
    let file = dir.path().join("objects.json").display().to_string();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    fs::write(&file, list.to_string()).expect("the folder is ours");
    let out = kubectl(plane, &["create", "-f", &file, "--dry-run=server", "-o", "json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let read = serde_json::Deserializer::from_slice(&out.stdout).into_iter::<Value>();
    let read: Vec<Value> = read.map(|value| value.expect("JSON")).collect();
    let inside = |value: &Value| value["items"].as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    read.iter().flat_map(inside).collect()
}

/// What a pod has got, in the words of the table.
fn given(pod: &Value) -> String {
    let sidecar = sidecar(pod);
    if sidecar.is_null() {
        return "-".to_owned();
    }
    let variable = |name: &str| {
        let entries = sidecar["env"].as_array().into_iter().flatten();
        let wanted = format!("TIDEGATE__GATES__KUBERNETES__{name}");
        let mut found = entries.filter(|entry| entry["name"] == wanted.as_str());
        found.next().and_then(|entry| entry["value"].as_str()).map(str::to_owned)
    };
    let mode = if variable("SHADOW").as_deref() == Some("true") { "observe" } else { "enforce" };
    [Some(mode.to_owned()), variable("BUCKET__RATE")].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// What `--explain` says of each pod, by its namespace and name, in the words of the table.
fn explained(objects: &[Value]) -> Vec<String> {
    let dir = scratch_dir();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("the folder is ours");
        path.display().to_string()
    };
    let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
    let pods = file("pods.yaml", &documents.join("\n---\n"));
    let policies = file("policies.toml", FILE);
    let args = ["webhook", "--image", IMAGE, "--policies", &policies, "--explain", &pods];
    let out = command(env!("CARGO_BIN_EXE_tidegate"), args).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines().filter(|line| line.starts_with("pod ")).map(str::to_owned).collect()
}

/// The line of `--explain` for a row of the table.
fn line(kind: &str, namespace: &str, pod: &str, expected: &str) -> String {
    let by = match (kind, expected) {
        _ if pod == "disabled" || kind == "labelled disabled" => {
            return format!("pod {namespace}/{pod}: stays as it is: ");
        }
        ("annotated observe" | "annotated off" | "annotated enforce", _) => {
            "namespace annotation tidegate.io/policy".to_owned()
        }
        (_, "enforce 7") => "policy \"argo\"".to_owned(),
        (_, "observe 3") => "policy \"rest\"".to_owned(),
        (_, "observe") => "policy \"platform\"".to_owned(),
        ("sre", _) => "policy \"excluded\"".to_owned(),
        _ => return format!("pod {namespace}/{pod}: no policy, so that only a label"),
    };
    let mode = if expected == "-" { "off" } else { expected.split(' ').next().unwrap_or_default() };
    format!("pod {namespace}/{pod}: {by}, mode {mode}")
}

/// Installs the chart's webhook and starts it, and waits until it answers in this namespace.
fn start(plane: &ControlPlane, helm: &Helm, probe: &str) -> Webhook {
    let dir = scratch_dir();
    let file = dir.path().join("policies.toml").display().to_string();
    fs::write(&file, FILE).expect("the folder is ours");
    let policies = format!("webhook.policies={file}");
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm/tidegate");
    let rendered = helm.ok(&[
        "template",
        "policies",
        chart,
        "--kube-version=1.36.3",
        "--namespace",
        OWN,
        "--set=webhook.create=true,configMap.create=false",
        "--set-file",
        &policies,
    ]);
    let mut manifest = rendered;
    for path in ["/inject", "/policies"] {
        let service = format!("service: {{name: {NAME}, namespace: \"{OWN}\", path: {path}}}");
        assert!(manifest.contains(&service), "{manifest}");
        manifest = manifest.replace(&service, &format!("url: https://WEBHOOK{path}"));
    }
    let args = ["--name", NAME, "--configuration", CONFIGURATION, "--policies", &file];
    let webhook = Webhook::of(plane, &manifest, OWN, NAME, &args);
    wait_for("the webhook answers", LONG, || {
        webhook.process.must_run();
        (given(&dry_run(plane, &[pod(probe, "argo")])[0]) != "-").then_some(())
    });
    webhook
}

/// The system's namespaces and the webhook's own are left alone, whatever their labels.
fn leaves_the_system_alone(plane: &ControlPlane) {
    let left = ["kube-system", "kube-public", "kube-node-lease", OWN];
    for namespace in left {
        plane.kubectl(&["label", "--overwrite", "namespace", namespace, "team=platform"]);
    }
    let alone: Vec<Value> = left.iter().flat_map(|name| PODS.map(|kind| pod(name, kind))).collect();
    for made in dry_run(plane, &alone) {
        assert_eq!(given(&made), "-", "{made}");
    }
    for namespace in left {
        plane.kubectl(&["label", "namespace", namespace, "team-"]);
    }
}

#[test]
fn three_hundred_pods_of_fifty_namespaces_get_what_the_policies_say() {
    const TEST: &str = "three_hundred_pods_of_fifty_namespaces_get_what_the_policies_say";
    let Some(plane) = ControlPlane::shared(TEST) else { return };
    let Some(helm) = Helm::or_skip(TEST) else { return };
    let _turn = turn::light();
    let begun = now();
    plane.namespace(OWN);
    let names: Vec<String> = (0..50).map(|number| format!("policies-{number}")).collect();
    let kinds = TABLE.iter().cycle().map(|(kind, row)| (*kind, *row));
    let rows: Vec<(&String, &str, [&str; 6])> =
        names.iter().zip(kinds).map(|(name, (kind, row))| (name, kind, row)).collect();
    let namespaces: Vec<Value> = rows.iter().map(|(name, kind, _)| namespace(name, kind)).collect();
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": namespaces}).to_string());
    wait_for("each namespace has its account", LONG, || {
        let all = plane.kubectl(&["get", "serviceaccounts", "-A", "--no-headers"]);
        let there = all.lines().filter(|line| line.starts_with("policies-") && line.contains(" default "));
        (there.count() == 51).then_some(())
    });
    let webhook = start(plane, &helm, "policies-3");

    let pods: Vec<Value> = names.iter().flat_map(|name| PODS.map(|kind| pod(name, kind))).collect();
    let asked = now();
    let made = dry_run(plane, &pods);
    let took = asked.elapsed();
    assert_eq!(made.len(), 300);
    let expected = rows
        .iter()
        .flat_map(|(name, kind, row)| PODS.iter().zip(row).map(move |(pod, cell)| (name.as_str(), *kind, *pod, *cell)));
    let said = explained(&[namespaces, pods].concat());
    assert_eq!(said.len(), 300);
    for (((name, kind, pod, cell), made), said) in expected.zip(&made).zip(said) {
        assert_eq!(given(made), cell, "{name}/{pod}, {kind:?}: {said}");
        assert!(said.starts_with(&line(kind, name, pod, cell)), "{kind:?}: {cell}: {said}");
    }

    leaves_the_system_alone(plane);
    say(format_args!(
        "policies: 300 pods of 50 namespaces asked for in {:.1} s, all in {:.1} s",
        took.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    ));
    webhook.process.kill();
    plane.kubectl(&["delete", "mutatingwebhookconfiguration", CONFIGURATION]);
    let all: Vec<&str> = names.iter().map(String::as_str).chain([OWN]).collect();
    plane.kubectl(&[&["delete", "namespace", "--wait=false"], &all[..]].concat());
}
