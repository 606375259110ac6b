//! What is deployed is what a real API server takes: the output of `inject` over every style of manifest, and the components.

use std::fs;
use std::path::Path;

use tidegate::inject::{Mode, Options, inject, uninject};

use crate::support::control_plane::ControlPlane;
use crate::support::process::scratch_dir;
use crate::support::{say, turn};

/// The API of these is not part of kube-apiserver, and their definitions are not here.
const OTHERS: [&str; 5] =
    ["DeploymentRuntimeConfig", "kind: Provider", "ClusterServiceVersion", "example.org/v1", "monitoring.coreos.com"];

/// What an API server is asked, without anything coming of it.
fn taken(plane: &ControlPlane, name: &str, manifest: &str) {
    let folder = scratch_dir();
    let file = folder.path().join(format!("{name}.yaml"));
    fs::write(&file, manifest).expect("written");
    let path = file.display().to_string();
    plane.kubectl(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        &path,
    ]);
}

/// The documents of a stream that kube-apiserver itself knows.
fn known(stream: &str) -> String {
    let documents = stream.split("\n---").filter(|document| !OTHERS.iter().any(|other| document.contains(other)));
    documents.collect::<Vec<_>>().join("\n---")
}

#[test]
fn what_inject_writes_is_taken_by_the_api_server() {
    let Some(plane) = ControlPlane::shared("what_inject_writes_is_taken_by_the_api_server") else { return };
    let _turn = turn::light();
    for namespace in ["memcached-system", "flux-system", "cert-manager", "monitoring", "keda", "gatekeeper-system"] {
        plane.namespace(namespace);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/inject/manifests");
    let mut workloads = 0;
    for entry in fs::read_dir(folder).expect("manifests") {
        let path = entry.expect("can be read").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = known(&fs::read_to_string(&path).expect("text"));
        // What kubectl does not take without a sidecar either: a name to be generated, and a directive.
        let text = text.replace("{generateName: migrate-}", "{name: migrate}").replace("%YAML 1.1\n", "");
        if name == "crossplane" {
            continue;
        }
        for (mode, word) in [(Mode::Kubeconfig, "kubeconfig"), (Mode::InCluster, "in-cluster")] {
            let options = Options {
                image: "registry.example/tidegate:0.1.0".to_owned(),
                mode,
                containers: Vec::new(),
                config_map: Some("tidegate".to_owned()),
                variables: vec![("TIDEGATE__GATES__KUBERNETES__BUCKET__RATE".to_owned(), "20".to_owned())],
                port: 6443,
                pod_monitor: false,
            };
            let edited = inject(&text, &options).expect("YAML");
            workloads += edited.changed.len();
            taken(plane, &format!("{name}-{word}"), &edited.text);
            let back = uninject(&edited.text).expect("YAML");
            taken(plane, &format!("{name}-{word}-back"), &back.text);
        }
    }
    say(format!("deploy: {workloads} injected workloads are taken by kube-apiserver, and by it without the sidecar"));
    assert!(workloads >= 90, "{workloads}");
}

#[test]
fn the_components_and_examples_are_taken_by_the_api_server() {
    let Some(plane) = ControlPlane::shared("the_components_and_examples_are_taken_by_the_api_server") else { return };
    let _turn = turn::light();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    for example in ["kubebuilder", "in-cluster-only"] {
        let folder = deploy.join("examples").join(example);
        let text = plane.kubectl(&["kustomize", &folder.display().to_string()]);
        assert!(text.contains("restartPolicy: Always") && text.contains("registry.example/tidegate:0.1.0"), "{text}");
        taken(plane, example, &text);
    }
    for example in ["argo-cd", "cert-manager", "flux", "plain"] {
        let path = deploy.join("examples").join(example).join("with-tidegate.yaml");
        taken(plane, example, &fs::read_to_string(path).expect("text"));
    }
}
