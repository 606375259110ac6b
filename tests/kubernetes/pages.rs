//! Follows the pages for those who run kubebuilder operators, Crossplane, or clusters.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::deploy::define;
use crate::follow::follow;
use crate::support::cluster::{Cluster, OPERATOR};
use crate::support::control_plane::ControlPlane;
use crate::support::process::scratch_dir;
use crate::support::{say, turn, wait_for};

/// A folder with the programs that pages call, in which they find the project's files.
pub(crate) fn page_folder(plane: &ControlPlane) -> tempfile::TempDir {
    let folder = scratch_dir();
    let programs = [
        ("kubectl", plane.binaries().path("kubectl")),
        ("tidegate", PathBuf::from(env!("CARGO_BIN_EXE_tidegate"))),
        ("deploy", PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy"))),
    ];
    for (name, path) in programs {
        symlink(path, folder.path().join(name)).expect("the folder is ours");
    }
    folder
}

/// The kubeconfig of an administrator.
pub(crate) fn harness(plane: &ControlPlane) -> String {
    plane.kubeconfig(&ControlPlane::harness()).display().to_string()
}

/// The operator of the getting-started page in another namespace, which only leads.
fn operator(namespace: &str) -> String {
    let text = include_str!("../../deploy/examples/getting-started/operator.yaml");
    text.replace("[manage, ", "[leader, ").replace("getting-started", namespace)
}

#[test]
fn a_reader_of_the_page_for_kubebuilder_sees_a_limit_in_force() {
    let Some(cluster) = Cluster::shared("a_reader_of_the_page_for_kubebuilder_sees_a_limit_in_force") else { return };
    let _turn = turn::light();
    let plane = &cluster.plane;
    plane.namespace("my-operator-system");
    let outside = scratch_dir();
    let folder = page_folder(plane);
    let project = outside.path().join("my-operator/config/default");
    fs::create_dir_all(&project).expect("the folder is ours");
    let (account, deployment) = operator("my-operator-system")
        .rsplit_once("---\n")
        .map(|(account, deployment)| (account.to_owned(), deployment.to_owned()))
        .expect("the Deployment is last");
    // As kubebuilder names them.
    let deployment = deployment
        .replacen("  name: operator\n", "  name: my-operator-controller-manager\n", 1)
        .replace("- name: operator\n", "- name: manager\n");
    fs::write(project.join("operator.yaml"), format!("{account}---\n{deployment}")).expect("written");
    fs::write(project.join("kustomization.yaml"), "namespace: my-operator-system\nresources: [operator.yaml]\n")
        .expect("written");
    let project = outside.path().join("my-operator").display().to_string();
    let page =
        include_str!("../../docs/recipes/kubebuilder-operators.md").replace("=../my-operator", &format!("={project}"));
    follow(&page, folder.path(), &[("KUBECONFIG", harness(plane))]);
    say("the page for kubebuilder operators was followed");
}

#[test]
fn a_reader_of_the_page_for_administrators_sees_a_limit_in_force() {
    const TEST: &str = "a_reader_of_the_page_for_administrators_sees_a_limit_in_force";
    let Some(cluster) = Cluster::shared(TEST) else { return };
    let _turn = turn::light();
    let plane = &cluster.plane;
    plane.namespace("team-a");
    plane.apply(&operator("team-a"));
    let folder = page_folder(plane);
    follow(
        include_str!("../../docs/recipes/cluster-administrators.md"),
        folder.path(),
        &[("KUBECONFIG", harness(plane))],
    );
    say("the page for administrators was followed");
}

#[test]
fn a_reader_of_the_page_for_crossplane_sees_a_limit_in_force() {
    const TEST: &str = "a_reader_of_the_page_for_crossplane_sees_a_limit_in_force";
    let Some(cluster) = Cluster::shared(TEST) else { return };
    let plane = &cluster.plane;
    if !define(plane, TEST) {
        return;
    }
    let _turn = turn::light();
    plane.namespace("crossplane-system");
    let account = operator("crossplane-system");
    plane.apply(account.rsplit_once("---\n").expect("the Deployment is last").0);
    // The API server tells of new types a little after it has taken them.
    wait_for("the type Provider", Duration::from_secs(60), || {
        let known = plane.kubectl(&["api-resources", "--cached=false", "--api-group=pkg.crossplane.io", "-o", "name"]);
        let types = ["providers.", "deploymentruntimeconfigs."];
        types.iter().all(|known_type| known.contains(known_type)).then_some(())
    });
    let folder = page_folder(plane);
    std::thread::scope(|scope| {
        scope.spawn(|| play_crossplane(plane));
        follow(
            include_str!("../../docs/recipes/crossplane-providers.md"),
            folder.path(),
            &[("KUBECONFIG", harness(plane))],
        );
    });
    say("the page for Crossplane was followed");
}

/// Does what Crossplane's package manager does: makes the Deployment of a Provider from its runtime
/// configuration. The operator stands for the provider's program.
fn play_crossplane(plane: &ControlPlane) {
    let get = |what: &[&str]| -> Value {
        let found = plane.kubectl(&[&["get", "-o", "json", "--ignore-not-found"], what].concat());
        serde_json::from_str(&found).unwrap_or_default()
    };
    let provider = wait_for("a Provider", Duration::from_secs(60), || {
        get(&["provider.pkg.crossplane.io"])["items"].get(0).cloned()
    });
    let (name, runtime) = (&provider["metadata"]["name"], &provider["spec"]["runtimeConfigRef"]["name"]);
    let runtime = get(&["deploymentruntimeconfig", runtime.as_str().expect("a name")]);
    let labels = json!({ "pkg.crossplane.io/provider": name });
    let mut spec = runtime["spec"]["deploymentTemplate"]["spec"].clone();
    spec["selector"] = json!({ "matchLabels": labels });
    spec["template"]["metadata"]["labels"] = labels;
    spec["template"]["spec"]["serviceAccountName"] = json!("operator");
    let container = &mut spec["template"]["spec"]["containers"][0];
    container["image"] = json!(OPERATOR);
    container["args"] = json!(["leader", "--namespace=crossplane-system"]);
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name, "namespace": "crossplane-system" },
        "spec": spec,
    });
    plane.apply(&deployment.to_string());
}
