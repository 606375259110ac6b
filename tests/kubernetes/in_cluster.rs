//! Clients that know nothing but in-cluster configuration: the folder that the gate writes is
//! mounted where they look for their service account, and `KUBERNETES_SERVICE_HOST` and `_PORT`
//! lead to the gate. No line of them was written for tidegate.
//!
//! A client in every language runs the same script, directly and through a gate that runs as the
//! pod's sidecar. It prints the same both ways, and the API server sees the same calls of the same
//! service account.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::kube_rs::{KUBE_RS, REPORT};
use crate::support::control_plane::ControlPlane;
use crate::support::gate::Gate;
use crate::support::in_pod::InPod;
use crate::support::installed::{self, CLIENTS};
use crate::support::process::{Process, scratch_dir};
use crate::support::{now, say, turn, wait_for, widgets};

/// The output of every client: list, watch, patch, create and delete, and two answers that are
/// errors.
const PRINTED: &str = "list 0\ncreated one\npatched two\nlist 1\ncreate again: 409 AlreadyExists\nget absent: 404 NotFound\ndeleted\n\
    watch ADDED one, MODIFIED two, DELETED two\nlist 0\n";

/// A pod with the API server, and a pod with the gate in its place.
struct Pods {
    plane: &'static ControlPlane,
    direct: InPod,
    through: InPod,
    gate: Gate,
    _dirs: [tempfile::TempDir; 2],
}

const DIRECT: &str = "in-cluster-direct";
const THROUGH: &str = "in-cluster-gate";

impl Pods {
    fn shared(test: &str) -> Option<&'static Self> {
        static SHARED: OnceLock<Pods> = OnceLock::new();
        let plane = ControlPlane::shared(test)?;
        let dirs = [scratch_dir(), scratch_dir()];
        installed::or_skip(test, InPod::is_possible(dirs[0].path()))?;
        Some(SHARED.get_or_init(|| {
            let direct = InPod::direct(plane, DIRECT, dirs[0].path());
            let sidecar = InPod::direct(plane, THROUGH, dirs[1].path());
            let gate = Gate::sidecar(&sidecar);
            let through = InPod { folder: gate.folder(), port: gate.port(), home: sidecar.home };
            Self { plane, direct, through, gate, _dirs: dirs }
        }))
    }

    const fn ways(&self) -> [(&'static str, &InPod); 2] {
        [(DIRECT, &self.direct), (THROUGH, &self.through)]
    }
}

/// Runs a client both ways and compares the two runs. `make` gives its command for a namespace and
/// an object's name.
fn compare(pods: &Pods, name: &str, make: impl Fn(&InPod, [&str; 2]) -> Command + Sync) {
    let _turn = turn::light();
    // No client's name is the beginning of another's.
    let object = format!("{name}-client");
    let runs = pods.ways().map(|(namespace, pod)| {
        let begin = now();
        let out = make(pod, [namespace, &object]).stdin(Stdio::null()).output().expect("unshare runs");
        let took = begin.elapsed().as_secs_f64();
        let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{name} in {namespace}: {}\n{stdout}\n{stderr}", out.status);
        assert_eq!(stdout, PRINTED, "{name} in {namespace}:\n{stderr}");
        (took, calls(pods.plane, namespace, &object))
    });
    let [(directly, wanted), (through, seen)] = runs;
    assert_eq!(wanted.len(), 9, "{name}: {wanted:#?}");
    assert_eq!(seen, wanted, "{name}: the API server saw other calls through the gate (left) than directly (right)");
    say(format_args!(
        "{name}: {} calls as the pod's service account, {directly:.1} s directly, {through:.1} s through the gate",
        seen.len()
    ));
}

/// The API server's record of the service account's calls about these objects, without the parts
/// that always differ.
fn calls(plane: &ControlPlane, namespace: &str, name: &str) -> Vec<String> {
    let user = format!("system:serviceaccount:{namespace}:controller");
    let about = |uri: &str| {
        [format!("metadata.name%3D{name}"), format!("/configmaps/{name}")]
            .iter()
            .any(|part| uri.contains(part.as_str()))
    };
    let seen = plane.audit().of(&user);
    let created = seen.only(|event| event.verb == "create" && event.name == name);
    let mut all = seen.only(|event| event.verb != "create" && about(&event.uri)).0;
    all.extend(created.0);
    let mut lines: Vec<String> = all
        .iter()
        .map(|event| {
            let (path, query) = event.uri.split_once('?').unwrap_or((&event.uri, ""));
            let kept = query
                .split('&')
                .filter(|part| !part.starts_with("resourceVersion=") && !part.starts_with("timeoutSeconds="));
            let query = kept.collect::<Vec<_>>().join("&");
            format!("{} {}?{query} {}", event.verb, path.replace(namespace, "NS"), event.code)
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn a_client_go_program_needs_only_its_in_cluster_config() {
    let Some(pods) = Pods::shared("a_client_go_program_needs_only_its_in_cluster_config") else { return };
    let program = pods.plane.binaries().path("controller");
    compare(pods, "client-go", |pod, args| {
        let mut run = pod.command(&program, ["script"]);
        run.args(args);
        run
    });
}

#[test]
fn a_kube_rs_program_needs_only_its_inferred_config() {
    let Some(pods) = Pods::shared("a_kube_rs_program_needs_only_its_inferred_config") else { return };
    let program = std::env::current_exe().expect("it runs");
    let report = scratch_dir();
    let report = report.path().join("report");
    // libtest prints around the client's output, so that goes to a file.
    let shell = r#""$0" --quiet --ignored --exact "$1" >&2 && cat "$REPORT""#;
    compare(pods, "kube-rs", |pod, args| {
        let mut run = pod.command("sh", ["-c", &shell.replace("REPORT", REPORT)]);
        run.arg(&program).arg(KUBE_RS).env(REPORT, &report).env("TIDEGATE_SCRIPT", args.join(" "));
        run
    });
    // The other configuration that it infers: the kubeconfig that the gate writes beside the token.
    compare(pods, "kube-rs-kubeconfig", |pod, args| {
        let mut run = Command::new("sh");
        run.args(["-c", &shell.replace("REPORT", REPORT)]).arg(&program).arg(KUBE_RS);
        run.env(REPORT, &report).env("TIDEGATE_SCRIPT", args.join(" ")).env("HOME", &pod.home);
        run.env("KUBECONFIG", kubeconfig(pods, pod));
        run
    });
}

/// The gate's own; directly, one with the same content.
fn kubeconfig(pods: &Pods, pod: &InPod) -> PathBuf {
    let written = pod.folder.join("kubeconfig");
    if pod.port == pods.through.port {
        return written;
    }
    let (ca, token) = (pod.folder.join("ca.crt"), pod.folder.join("token"));
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{}', certificate-authority: '{}'}}}}]\n\
         users: [{{name: c, user: {{tokenFile: '{}'}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n",
        pod.port,
        ca.display(),
        token.display()
    );
    std::fs::write(&written, text).expect("the folder is ours");
    written
}

#[test]
fn a_python_program_needs_only_load_incluster_config() {
    let test = "a_python_program_needs_only_load_incluster_config";
    let Some(pods) = Pods::shared(test) else { return };
    let Some(python) = installed::or_skip(test, installed::python()) else { return };
    compare(pods, "python", |pod, args| {
        let mut run = pod.command(&python, [format!("{CLIENTS}/script.py")]);
        run.args(args);
        run
    });
}

#[test]
fn a_javascript_program_needs_only_load_from_cluster() {
    let test = "a_javascript_program_needs_only_load_from_cluster";
    let Some(pods) = Pods::shared(test) else { return };
    let Some(node) = installed::or_skip(test, installed::node()) else { return };
    let Some(modules) = installed::or_skip(test, installed::node_modules()) else { return };
    // It looks for its modules beside itself.
    let dir = scratch_dir();
    let script = dir.path().join("script.mjs");
    std::fs::copy(format!("{CLIENTS}/script.mjs"), &script).expect("the folder is ours");
    symlink(modules.join("node_modules"), dir.path().join("node_modules")).expect("the folder is ours");
    compare(pods, "javascript", |pod, args| {
        let mut run = pod.command(&node, [&script]);
        run.args(args);
        run
    });
}

#[test]
fn a_java_program_needs_only_its_default_client() {
    let test = "a_java_program_needs_only_its_default_client";
    let Some(pods) = Pods::shared(test) else { return };
    let Some(java) = installed::or_skip(test, installed::java()) else { return };
    let Some(class_path) = installed::or_skip(test, installed::java_client()) else { return };
    compare(pods, "java", |pod, args| {
        let mut run = pod.command(&java, ["-cp", &class_path, "Script"]);
        run.args(args);
        run
    });
}

#[test]
fn a_kopf_operator_converges_and_lets_its_objects_go() {
    let test = "a_kopf_operator_converges_and_lets_its_objects_go";
    let Some(pods) = Pods::shared(test) else { return };
    let Some(python) = installed::or_skip(test, installed::python()) else { return };
    let _turn = turn::light();
    widgets::install(pods.plane);
    for (namespace, pod) in pods.ways() {
        let dir = scratch_dir();
        let operator = format!("{CLIENTS}/kopf_widgets.py");
        let run = pod.command(&python, ["-m", "kopf", "run", "--standalone", "--namespace", namespace, &operator]);
        let (kopf, report) = Process::start_reporting("kopf", dir.path(), run);
        let begin = now();
        let names = ["one".to_owned(), "two".to_owned()];
        for value in [1, 2] {
            widgets::set(pods.plane, namespace, &names, value);
            wait_for("kopf has observed the widgets", Duration::from_secs(60), || {
                kopf.must_run();
                let observed = "jsonpath={.items[*].status.observed}";
                (pods.plane.kubectl(&["get", "widgets", "-n", namespace, "-o", observed]) == format!("{value} {value}"))
                    .then_some(())
            });
        }
        pods.plane.kubectl(&["delete", "widgets", "-n", namespace, "--all", "--timeout=30s"]);
        wait_for("kopf has said that both are gone", Duration::from_secs(60), || {
            kopf.must_run();
            let said = std::fs::read_to_string(&report).unwrap_or_default();
            names.iter().all(|name| said.contains(&format!("gone {name}"))).then_some(())
        });
        let seen = pods.plane.audit().of(&format!("system:serviceaccount:{namespace}:controller"));
        let patches = seen.only(|event| event.resource == "widgets" && event.verb == "patch" && event.code == 200);
        assert!(patches.len() >= 4, "{namespace}: {} patches", patches.len());
        say(format_args!("kopf in {namespace}: converged twice and let go in {:.1} s", begin.elapsed().as_secs_f64()));
    }
}

#[test]
fn kubectl_needs_only_the_kubeconfig_that_tidegate_prints() {
    let Some(pods) = Pods::shared("kubectl_needs_only_the_kubeconfig_that_tidegate_prints") else { return };
    let _turn = turn::light();
    let mut kubectl = pods.through.command(
        pods.plane.binaries().path("kubectl"),
        ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", "--kubeconfig"],
    );
    let out = kubectl.arg(pods.gate.printed_kubeconfig()).output().expect("unshare runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(String::from_utf8_lossy(&out.stdout), format!("system:serviceaccount:{THROUGH}:controller"));
}
