//! kubectl prints the same and ends the same through the gate as it does directly.
//!
//! The same script runs three times, each in its own namespace: straight to the API server, through
//! the gate over h2, and through the gate over HTTP/1.1. Text that always differs (names of
//! namespaces, times, ids) is taken out.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use http::Method;

use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::process::scratch_dir;
use crate::support::{block_on, pause, say, turn, widgets};

/// One step: `NS` becomes the namespace, `DIR` the folder of the manifests. A leading `!` marks a
/// step whose output always differs, so that only its exit code is compared.
const STEPS: &[&str] = &[
    "version -o json",
    "api-resources --sort-by=name",
    "get --raw /openapi/v3",
    "apply -n NS -f DIR/map.yaml",
    "diff -n NS -f DIR/map.yaml",
    "diff -n NS -f DIR/changed.yaml",
    "apply -n NS -f DIR/changed.yaml",
    "apply -n NS --server-side -f DIR/server.yaml",
    "apply -n NS --server-side --field-manager=other -f DIR/conflict.yaml",
    "get configmap -n NS map -o jsonpath={.data}",
    "patch configmap -n NS map --type=merge -p {\"data\":{\"merged\":\"yes\"}}",
    "patch configmap -n NS map --type=json -p [{\"op\":\"add\",\"path\":\"/data/json\",\"value\":\"yes\"}]",
    "patch configmap -n NS map --type=strategic -p {\"data\":{\"strategic\":\"yes\"}}",
    "patch configmap -n NS absent --type=merge -p {}",
    "get configmap -n NS map -o jsonpath={.data}",
    "apply -n NS -f DIR/widget.yaml",
    "patch widget -n NS one --subresource=status --type=merge -p {\"status\":{\"observed\":7}}",
    "get widget -n NS one --subresource=status -o jsonpath={.status}",
    "wait -n NS widget/one --for=jsonpath={.status.observed}=7 --timeout=20s",
    "wait -n NS widget/one --for=jsonpath={.status.observed}=8 --timeout=1s",
    "get configmaps -n kubectl-many --chunk-size=100 -o name",
    "get --raw /api/v1/namespaces/kubectl-many/configmaps?limit=1&fieldSelector=metadata.name%3Dmany-7",
    "apply -f DIR/colon.yaml",
    "get clusterrole NS:reader -o jsonpath={.rules}",
    "get --raw /apis/rbac.authorization.k8s.io/v1/clusterroles/NS%3Areader",
    "delete clusterrole NS:reader",
    "auth can-i --list -n NS --no-headers",
    "auth can-i get pods -n NS --as alice",
    "get configmaps -n NS --as alice",
    "get configmaps -n NS --as alice --as-group=system:masters -o name",
    "!events -n NS",
    "get events -n NS --field-selector=reason=Absent",
    "apply -n NS -f DIR/deployments.yaml",
    "!rollout status -n NS deployment/background --timeout=1s",
    "wait -n NS deployment --all --for=jsonpath={.status.unavailableReplicas}=1 --timeout=30s",
    "delete deployment -n NS background --cascade=background --timeout=30s",
    "delete deployment -n NS foreground --cascade=foreground --timeout=30s",
    "delete deployment -n NS orphan --cascade=orphan --timeout=30s",
    "get replicasets -n NS -l app=foreground -o name",
    "get replicasets -n NS -l app=orphan -o jsonpath={.items[*].metadata.labels.app}",
    "delete replicasets -n NS --all --timeout=30s",
    "delete configmap -n NS map --dry-run=server",
    "delete configmap -n NS --all --timeout=30s",
    "get configmap -n NS map",
    "get nosuchkind -n NS",
];

#[test]
fn kubectl_cannot_tell_the_gate_from_the_api_server() {
    let Some(plane) = ControlPlane::shared("kubectl_cannot_tell_the_gate_from_the_api_server") else { return };
    let _turn = turn::light();
    widgets::install(plane);
    create_many(plane);
    let gate = Gate::start(plane, "preset = \"none\"");
    compare(plane, &gate, &plane.master(), "kubectl");
}

/// Runs the script three times, in namespaces that begin with `prefix`, and compares what is said.
pub(crate) fn compare(plane: &ControlPlane, gate: &Gate, user: &User, prefix: &str) {
    let [direct, h2, h1] = ["direct", "h2", "h1"].map(|way| format!("{prefix}-{way}"));
    let runs = [
        Runner::new(plane, Way::Direct(plane), user, &direct, false),
        Runner::new(plane, Way::Gate(gate), user, &h2, false),
        Runner::new(plane, Way::Gate(gate), user, &h1, true),
    ];
    let [direct, h2, h1] = std::thread::scope(|scope| {
        runs.each_ref().map(|run| scope.spawn(|| run.script())).map(|thread| thread.join().expect("the script ran"))
    });
    let mut differences = Vec::new();
    for (number, step) in direct.iter().enumerate() {
        for (way, other) in [("h2", &h2[number]), ("HTTP/1.1", &h1[number])] {
            if step != other {
                differences.push(format!("by {way}:\ndirectly {step:#?}\nthrough the gate {other:#?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    let bytes: usize = direct.iter().map(|step| step.stdout.len()).sum();
    say(format_args!(
        "kubectl: {} steps the same directly, by h2 and by HTTP/1.1 ({bytes} bytes of output)",
        direct.len()
    ));
}

/// Paths that kubectl would clean before it sends them.
const ODD_PATHS: [&str; 4] = [
    "/api/v1/namespaces/default/services/http:absent:80/proxy/a%2Fb/..%2Fc?q=%2F&q=a+b",
    "/api/v1/namespaces/default/services/http:absent:80/proxy/a//b/;c=d/%7Bx%7D",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Abasic-user",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:basic-user?pretty=",
];

#[test]
fn odd_paths_arrive_byte_for_byte() {
    let Some(plane) = ControlPlane::shared("odd_paths_arrive_byte_for_byte") else { return };
    let _turn = turn::light();
    let gate = Gate::start(plane, "preset = \"none\"");
    compare_odd_paths(plane, &gate);
}

/// Calls the odd paths directly and through the gate.
pub(crate) fn compare_odd_paths(plane: &ControlPlane, gate: &Gate) {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let (direct, through) = (plane.master(), plane.master());
        let answers = |way, user| {
            block_on(async move {
                let mut connection = Connection::open(way, user, protocol).await;
                let mut answers = Vec::new();
                for path in ODD_PATHS {
                    answers.push(connection.call(Method::GET, path, "").await);
                }
                answers
            })
        };
        assert_eq!(answers(Way::Direct(plane), &direct), answers(Way::Gate(gate), &through), "{protocol:?}");
        let uris = plane.audit().of(&through.name).0.into_iter().map(|event| event.uri).collect::<Vec<_>>();
        assert_eq!(uris, ODD_PATHS, "{protocol:?}");
    }
}

/// Creates a thousand objects for the lists in chunks.
pub(crate) fn create_many(plane: &ControlPlane) {
    static MADE: std::sync::Once = std::sync::Once::new();
    MADE.call_once(|| made_many(plane));
}

fn made_many(plane: &ControlPlane) {
    plane.namespace("kubectl-many");
    block_on(async {
        let mut connection = Connection::open(Way::Direct(plane), &ControlPlane::harness(), Protocol::Http2).await;
        for number in 0..1_000 {
            let body = format!(r#"{{"metadata":{{"name":"many-{number}"}}}}"#);
            let (status, answer) =
                connection.call(Method::POST, "/api/v1/namespaces/kubectl-many/configmaps", &body).await;
            assert_eq!(status, 201, "{answer}");
        }
    });
}

/// The output of a step.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    step: String,
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

struct Runner<'a> {
    plane: &'a ControlPlane,
    way: Way<'a>,
    user: &'a User,
    namespace: &'a str,
    http1: bool,
    dir: tempfile::TempDir,
}

impl<'a> Runner<'a> {
    fn new(plane: &'a ControlPlane, way: Way<'a>, user: &'a User, namespace: &'a str, http1: bool) -> Self {
        plane.namespace(namespace);
        let dir = scratch_dir();
        for (name, text) in manifests(namespace) {
            std::fs::write(dir.path().join(name), text).expect("the folder is ours");
        }
        Self { plane, way, user, namespace, http1, dir }
    }

    fn script(&self) -> Vec<Said> {
        let mut said: Vec<Said> = STEPS.iter().map(|step| self.step(step)).collect();
        said.push(self.watch());
        said
    }

    fn step(&self, step: &str) -> Said {
        let (step, compared) = step.strip_prefix('!').map_or((step, true), |step| (step, false));
        let dir = self.dir.path().display().to_string();
        let args: Vec<String> =
            step.split(' ').map(|word| word.replace("NS", self.namespace).replace("DIR", &dir)).collect();
        let out = self.command(&args).output().expect("kubectl runs");
        let text = |bytes: &[u8]| if compared { self.plain(&String::from_utf8_lossy(bytes)) } else { String::new() };
        Said { step: step.to_owned(), code: out.status.code(), stdout: text(&out.stdout), stderr: text(&out.stderr) }
    }

    /// `get -w` for ten seconds, while an object comes, changes and goes.
    fn watch(&self) -> Said {
        let step = "get configmaps -n NS -w --field-selector=metadata.name=seen --request-timeout=10s --no-headers -o custom-columns=N:.metadata.name,D:.data.k";
        let args: Vec<String> = step.split(' ').map(|word| word.replace("NS", self.namespace)).collect();
        let child = self.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kubectl runs");
        pause(Duration::from_secs(2));
        let kubectl = |args: &[&str]| self.plane.kubectl(&[args, &["-n", self.namespace]].concat());
        kubectl(&["create", "configmap", "seen", "--from-literal=k=1"]);
        pause(Duration::from_secs(1));
        kubectl(&["patch", "configmap", "seen", "--type=merge", "-p", r#"{"data":{"k":"2"}}"#]);
        pause(Duration::from_secs(1));
        kubectl(&["delete", "configmap", "seen"]);
        let out = child.wait_with_output().expect("kubectl ends by itself");
        let stdout = self.plain(&String::from_utf8_lossy(&out.stdout));
        assert_eq!(stdout.lines().collect::<Vec<_>>(), ["seen   1", "seen   2", "seen   2"], "{}", self.namespace);
        let stderr = self.plain(&String::from_utf8_lossy(&out.stderr));
        Said { step: step.to_owned(), code: out.status.code(), stdout, stderr }
    }

    fn command(&self, args: &[String]) -> std::process::Command {
        let kubectl: PathBuf = self.plane.binaries().path("kubectl");
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut run = self.way.command(&kubectl, self.user, &args);
        // The discovery cache is in HOME, so each run starts without one.
        run.env("HOME", self.dir.path());
        if self.http1 {
            run.env("DISABLE_HTTP2", "1");
        }
        run
    }

    /// Takes out what always differs: namespace, folder, server address, times and ids.
    fn plain(&self, text: &str) -> String {
        let text = text
            .replace(self.namespace, "NS")
            .replace(&self.dir.path().display().to_string(), "DIR")
            .replace(&format!("127.0.0.1:{}{}", self.way.port(), self.way.base()), "SERVER");
        let kept = text
            .lines()
            .filter(|line| !["diff ", "--- ", "+++ ", "E1", "I1", "W1"].iter().any(|head| line.starts_with(head)));
        kept.map(mask_values).collect::<Vec<_>>().join("\n")
    }
}

/// Masks the values of the metadata fields that no two objects share.
fn mask_values(line: &str) -> String {
    const UNIQUE: [&str; 5] =
        ["\"uid\":\"", "\"resourceVersion\":\"", "\"creationTimestamp\":\"", "\"time\":\"", "\"continue\":\""];
    let mut line = line.to_owned();
    for field in UNIQUE {
        let parts: Vec<String> = line
            .split(field)
            .enumerate()
            .map(|(number, part)| match part.split_once('"') {
                Some((_, rest)) if number > 0 => format!("\"{rest}"),
                _ => part.to_owned(),
            })
            .collect();
        line = parts.join(field);
    }
    line
}

fn manifests(namespace: &str) -> Vec<(&'static str, String)> {
    let map = |data: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: map}}, data: {data}}}");
    let server = |data: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: server}}, data: {data}}}");
    let deployment = |name: &str| {
        format!(
            "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: {name}}}, spec: {{replicas: 1, selector: {{matchLabels: {{app: {name}}}}}, \
             template: {{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: [{{name: c, image: none}}]}}}}}}}}"
        )
    };
    let colon = format!(
        "{{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {{name: '{namespace}:reader'}}, \
         rules: [{{apiGroups: [''], resources: [pods], verbs: [get]}}]}}"
    );
    let widget = "{apiVersion: tidegate.test/v1, kind: Widget, metadata: {name: one}, spec: {value: 1}}";
    vec![
        ("map.yaml", map("{a: '1'}")),
        ("changed.yaml", map("{a: '2'}")),
        ("server.yaml", server("{a: '1'}")),
        ("conflict.yaml", server("{a: '2'}")),
        ("widget.yaml", widget.to_owned()),
        ("colon.yaml", colon),
        ("deployments.yaml", ["background", "foreground", "orphan"].map(deployment).join("\n---\n")),
    ]
}
