//! The Helm chart as a release has it, a package and not a folder: the API server takes what it
//! renders, and the pod comes up with the gate before its operator.

use std::time::Duration;

use crate::deploy::taken;
use crate::helm::Helm;
use crate::support::cluster::{Cluster, OPERATOR};
use crate::support::process::scratch_dir;
use crate::support::{turn, wait_for};

const NAMESPACE: &str = "packaged-chart";

/// The account of the getting-started page's operator and its rights, without the operator.
fn account() -> String {
    let text =
        include_str!("../../deploy/examples/getting-started/operator.yaml").replace("getting-started", NAMESPACE);
    let documents = text.split("\n---\n").filter(|document| !document.contains("kind: Deployment"));
    documents.collect::<Vec<_>>().join("\n---\n")
}

#[test]
fn an_operator_installed_by_the_packaged_chart_leads_behind_its_gate() {
    const TEST: &str = "an_operator_installed_by_the_packaged_chart_leads_behind_its_gate";
    let Some(cluster) = Cluster::shared(TEST) else { return };
    let Some(helm) = Helm::or_skip(TEST) else { return };
    let _turn = turn::light();
    let plane = &cluster.plane;
    plane.namespace(NAMESPACE);
    plane.apply(&account());
    let folder = scratch_dir();
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm/tidegate");
    helm.ok(&["package", chart, "--destination", &folder.path().display().to_string()]);
    let package = folder.path().join(concat!("tidegate-", env!("CARGO_PKG_VERSION"), ".tgz"));
    let values = format!(
        "operator.create=true,operator.image={OPERATOR},operator.container=operator,operator.serviceAccountName=operator,operator.args={{leader,--namespace={NAMESPACE}}}"
    );
    let text = helm.ok(&[
        "template",
        "packaged",
        &package.display().to_string(),
        "--kube-version=1.36.3",
        "--namespace",
        NAMESPACE,
        "--set",
        &values,
    ]);
    taken(plane, "packaged-chart", &text);
    plane.apply(&text);
    plane.kubectl(&["-n", NAMESPACE, "rollout", "status", "deployment/packaged", "--timeout=120s"]);

    let gate_up = cluster.wait_container("up", NAMESPACE, "tidegate");
    let operator_starts = cluster.wait_container("started", NAMESPACE, "operator");
    assert!(gate_up.at < operator_starts.at, "{gate_up:?} {operator_starts:?}");
    wait_for("the operator leads", Duration::from_secs(60), || {
        let log = plane.kubectl(&["-n", NAMESPACE, "logs", "deployment/packaged", "-c", "operator"]);
        log.contains("\"leading\"").then_some(())
    });
    // Its calls are known to the gate, with the limit of the chart's values.
    let top = ["-n", NAMESPACE, "exec", "deployment/packaged", "-c", "tidegate", "--", "tidegate", "top", "--once"];
    let shown = plane.kubectl(&top);
    let admitted = shown.lines().find(|line| line.trim_start().starts_with("admitted")).expect("a line");
    assert!(!admitted.contains(" 0 in all"), "{shown}");
    assert!(shown.contains("30 of 30") && shown.contains("20/s"), "{shown}");
    plane.kubectl(&["-n", NAMESPACE, "delete", "deployment/packaged", "--wait=false"]);
}
