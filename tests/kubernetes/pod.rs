//! The sidecar in a running pod: up before the controller and down after it; otherwise the pod is
//! as it was.
//!
//! KWOK starts no process, so it cannot show which starts first. The node here is `kubelet/`, which
//! starts each container as a process and runs its startup probe, as kubelet does.

use std::time::Duration;

use tidegate::inject::{Mode, Options, inject};

use crate::support::cluster::{Cluster, IMAGE};
use crate::support::{say, turn, wait_for};

/// The operator of the getting-started page in another namespace, which only leads, and reports the
/// result of every call.
fn operator(namespace: &str) -> String {
    let text = include_str!("../../deploy/examples/getting-started/operator.yaml");
    text.replace("[manage, ", "[leader, ").replace("getting-started", namespace)
}

fn starts_in_order(test: &str, mode: Mode, namespace: &str) {
    let Some(cluster) = Cluster::shared(test) else { return };
    let _turn = turn::light();
    let plane = &cluster.plane;
    plane.namespace(namespace);
    let options = Options { image: IMAGE.to_owned(), mode, ..Options::default() };
    plane.apply(&inject(&operator(namespace), &options).expect("YAML").text);
    plane.kubectl(&["-n", namespace, "rollout", "status", "deployment/operator", "--timeout=120s"]);

    let gate_starts = cluster.wait_container("started", namespace, "tidegate");
    let gate_up = cluster.wait_container("up", namespace, "tidegate");
    let operator_starts = cluster.wait_container("started", namespace, "operator");
    // The probe did not pass before the gate was up, and the operator waited for it.
    cluster.wait_container("probe failed", namespace, "tidegate");
    assert!(gate_starts.at < gate_up.at && gate_up.at < operator_starts.at, "{gate_starts:?} {operator_starts:?}");

    // It leads, and from its very first call none failed because the gate was missing.
    let led = wait_for("the operator leads", Duration::from_secs(60), || {
        let log = plane.kubectl(&["-n", namespace, "logs", "deployment/operator", "-c", "operator"]);
        log.contains("\"leading\"").then_some(log)
    });
    assert!(!led.contains("\"error\""), "{led}");
    let account = format!("system:serviceaccount:{namespace}:operator");
    assert!(plane.audit().of(&account).len() > 2, "the API server sees the pod's own account");

    plane.kubectl(&["-n", namespace, "delete", "deployment/operator", "--wait=false"]);
    let operator_ends = cluster.wait_container("ended", namespace, "operator");
    let gate_asked = cluster.wait_container("asked to stop", namespace, "tidegate");
    let gate_ends = cluster.wait_container("ended", namespace, "tidegate");
    assert!(operator_ends.at < gate_asked.at && gate_asked.at < gate_ends.at, "{operator_ends:?} {gate_asked:?}");
    for end in [&operator_ends, &gate_ends] {
        assert!(end.more.contains("\"code\": Number(0)"), "{end:?}");
    }
    // The controller's last call, the release of its lease, still went through.
    let holder = plane.kubectl(&["-n", namespace, "get", "lease", "-o", "jsonpath={.items[*].spec.holderIdentity}"]);
    assert_eq!(holder, "", "the lease was released");
    say(format!(
        "pod: with {mode:?} the gate was up {} ms after its start, the operator was started {} ms later",
        (gate_up.at - gate_starts.at) / 1000,
        (operator_starts.at - gate_up.at) / 1000
    ));
}

#[test]
fn the_gate_is_up_before_a_controller_with_a_kubeconfig_and_goes_after_it() {
    starts_in_order(
        "the_gate_is_up_before_a_controller_with_a_kubeconfig_and_goes_after_it",
        Mode::Kubeconfig,
        "pod-by-kubeconfig",
    );
}

#[test]
fn the_gate_is_up_before_an_in_cluster_controller_and_goes_after_it() {
    starts_in_order(
        "the_gate_is_up_before_an_in_cluster_controller_and_goes_after_it",
        Mode::InCluster,
        "pod-in-cluster",
    );
}
