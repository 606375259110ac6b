//! A real API server accepts what is deployed: the output of `inject` over every style of manifest,
//! and the components.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::inject::{Mode, Options, inject, uninject};

use crate::support::binaries::Binaries;
use crate::support::cluster::IMAGE;
use crate::support::control_plane::ControlPlane;
use crate::support::process::{command, scratch_dir};
use crate::support::{installed, say, turn};

/// kube-apiserver does not serve these, and their definitions are not here.
const OTHERS: [&str; 2] = ["ClusterServiceVersion", "example.org/v1"];

/// Makes this API server know PodMonitor, PrometheusRule, DeploymentRuntimeConfig and Provider; false
/// if their definitions cannot be had. There is more than one API server here, and to be told again
/// does none of them harm.
pub(crate) fn define(plane: &ControlPlane, test: &str) -> bool {
    let Some(folder) = installed::or_skip(test, installed::definitions()) else { return false };
    let folder = folder.display().to_string();
    plane.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &folder]);
    plane.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "-f", &folder]);
    true
}

/// Asks the API server to accept the objects, in a dry run.
pub(crate) fn taken(plane: &ControlPlane, name: &str, manifest: &str) {
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
    const TEST: &str = "what_inject_writes_is_taken_by_the_api_server";
    let Some(plane) = ControlPlane::shared(TEST) else { return };
    if !define(plane, TEST) {
        return;
    }
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
        // kubectl does not accept these without a sidecar either: a name to be generated, and a
        // directive.
        let text = text.replace("{generateName: migrate-}", "{name: migrate}").replace("%YAML 1.1\n", "");
        for (mode, word) in [(Mode::Kubeconfig, "kubeconfig"), (Mode::InCluster, "in-cluster")] {
            let options = Options {
                image: "registry.example/tidegate:0.1.0".to_owned(),
                mode,
                config_map: Some("tidegate".to_owned()),
                variables: vec![("TIDEGATE__GATES__KUBERNETES__BUCKET__RATE".to_owned(), "20".to_owned())],
                pod_monitor: true,
                replace: true,
                ..Options::default()
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
    const TEST: &str = "the_components_and_examples_are_taken_by_the_api_server";
    let Some(plane) = ControlPlane::shared(TEST) else { return };
    if !define(plane, TEST) {
        return;
    }
    let _turn = turn::light();
    for namespace in [
        "argocd",
        "cert-manager",
        "egress-client",
        "flux-system",
        "getting-started",
        "service-client",
        "tidegate-system",
    ] {
        plane.namespace(namespace);
    }
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let (mut built, mut files) = (0, 0);
    for folder in folders(&deploy) {
        let path = folder.display().to_string();
        let kustomization = folder.join("kustomization.yaml");
        if kustomization.exists() {
            // A component is nothing by itself: the examples include it.
            if !fs::read_to_string(&kustomization).expect("text").contains("kind: Component") {
                let text = plane.kubectl(&["kustomize", &path]);
                let adds = ["restartPolicy: Always", "MutatingWebhookConfiguration", "tokenreviews"];
                assert!(adds.iter().any(|what| text.contains(what)) && text.contains(IMAGE), "{text}");
                taken(plane, "kustomization", &text);
                built += 1;
            }
        } else if !path.contains("helm") {
            for file in manifests(&folder) {
                let name = file.file_name().expect("a name").to_string_lossy().replace(".yaml", "");
                taken(plane, &name, &fs::read_to_string(&file).expect("text"));
                files += 1;
            }
        }
    }
    say(format!("deploy: {built} kustomizations and {files} files are taken by kube-apiserver"));
    assert!(built >= 2 && files >= 10, "{built}, {files}");
}

#[test]
fn a_component_needs_the_namespace_of_its_kustomization() {
    let Some(binaries) = Binaries::or_skip("a_component_needs_the_namespace_of_its_kustomization") else { return };
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    for component in ["kustomize", "kustomize-in-cluster"] {
        let text = fs::read_to_string(deploy.join(component).join("kustomization.yaml")).expect("text");
        assert!(text.starts_with("# Needs `namespace:`"), "{component}: the first line says what is needed");
        let folder = scratch_dir();
        for file in files_of(&deploy.join(component)) {
            let to = folder.path().join(component).join(file.file_name().expect("a name"));
            fs::create_dir_all(to.parent().expect("a folder")).expect("the folder is ours");
            fs::copy(&file, to).expect("copied");
        }
        for (line, is_found) in [("namespace: ops\n", true), ("", false)] {
            let app = folder.path().join("app");
            fs::create_dir_all(&app).expect("the folder is ours");
            fs::write(app.join("deployment.yaml"), DEPLOYMENT).expect("the folder is ours");
            let text = format!("{line}resources: [deployment.yaml]\ncomponents: [../{component}]\n");
            fs::write(app.join("kustomization.yaml"), text).expect("the folder is ours");
            let built = command(binaries.path("kubectl"), ["kustomize"]).arg(&app).output().expect("kubectl runs");
            let built = String::from_utf8(built.stdout).expect("text");
            let made = built
                .lines()
                .find_map(|line| line.strip_prefix("  name: ").filter(|name| name.starts_with("tidegate-")));
            let mounted = format!("name: {}\n        name: tidegate-config", made.expect("a ConfigMap"));
            assert_eq!(built.contains(&mounted), is_found, "{component}, {line:?}:\n{built}");
        }
    }
}

/// An operator's Deployment with a namespace of its own.
const DEPLOYMENT: &str = "{\"apiVersion\": \"apps/v1\", \"kind\": \"Deployment\", \"metadata\": {\"name\": \"operator\", \"namespace\": \"ops\"},
\"spec\": {\"template\": {\"spec\": {\"containers\": [{\"name\": \"manager\", \"image\": \"operator\"}]}}}}
";

/// The files of a folder.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("can be read").path()).collect()
}

/// The folder and every folder below it.
fn folders(of: &Path) -> Vec<PathBuf> {
    let below = fs::read_dir(of).expect("a folder").map(|entry| entry.expect("can be read").path());
    let mut all: Vec<PathBuf> = below.filter(|path| path.is_dir()).flat_map(|path| folders(&path)).collect();
    all.push(of.to_owned());
    all
}

/// The files of a folder that contain Kubernetes objects.
fn manifests(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("can be read").path());
    let is_manifest = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "yaml")
            && fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line.starts_with("kind: ")))
    };
    files.filter(is_manifest).collect()
}
