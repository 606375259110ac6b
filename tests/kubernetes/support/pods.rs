//! Running pods: KWOK moves the node and its pods through their lives, and `node/` serves what
//! kubelet would serve for them.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use super::control_plane::{ControlPlane, User};
use super::process::{Process, command};
use super::{say, wait_for};
use crate::ports::free_port;

/// The stages that KWOK goes through, and when.
const STAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes/kwok.yaml");

/// KWOK and the node's streams, for as long as the tests run.
#[derive(Debug)]
struct Running {
    kwok: Process,
    node: Process,
}

/// Makes a pod of this name with one container, on the shared control plane, and waits until it
/// runs.
pub(crate) fn run(plane: &'static ControlPlane, namespace: &str, name: &str) {
    static RUNNING: OnceLock<Running> = OnceLock::new();
    let running = RUNNING.get_or_init(|| start(plane));
    plane.apply(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}}}, \
         spec: {{nodeName: node, containers: [{{name: main, image: none, stdin: true}}]}}}}"
    ));
    wait_for("the pod runs", Duration::from_secs(60), || {
        running.kwok.must_run();
        running.node.must_run();
        let phase = plane.kubectl(&["get", "pod", "-n", namespace, name, "-o", "jsonpath={.status.phase}"]);
        (phase == "Running").then_some(())
    });
}

fn start(plane: &ControlPlane) -> Running {
    let file = |name: &str| plane.file(name).display().to_string();
    let dir = plane.file("");
    let port = free_port();
    let node = [
        format!("-listen=127.0.0.1:{port}"),
        format!("-cert={}", file("api.crt")),
        format!("-key={}", file("api.key")),
        format!("-ca={}", file("ca.crt")),
    ];
    let node = Process::start("node", &dir, command(plane.binaries().path("node"), node));
    let user = User { name: "tidegate:kwok".to_owned(), token: "kwok".to_owned() };
    let kwok = kwok(plane, &plane.kubeconfig(&user), port);
    plane.apply("{apiVersion: v1, kind: Node, metadata: {name: node}}");
    say("kwok and a node's streams are up");
    Running { kwok, node }
}

/// Starts KWOK for all nodes, with kubelet's part at this port.
pub(crate) fn kwok(plane: &ControlPlane, kubeconfig: &Path, port: u16) -> Process {
    let kwok = [
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--config={STAGES}"),
        format!("--node-port={port}"),
        "--node-ip=127.0.0.1".to_owned(),
        // KWOK's own kubelet, which no test uses.
        format!("--server-address=127.0.0.1:{}", free_port()),
        "--manage-all-nodes".to_owned(),
        "--node-lease-duration-seconds=40".to_owned(),
    ];
    let mut run = command(plane.binaries().path("kwok"), kwok);
    // Otherwise it looks for its own config there.
    run.env("HOME", plane.file(""));
    Process::start("kwok", &plane.file(""), run)
}
