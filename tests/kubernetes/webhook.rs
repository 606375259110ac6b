//! `tidegate webhook` on a real API server, with the manifests and rights of deploy/: pods of every
//! shape come up behind their gates as `inject` would have made them, and without the webhook
//! nothing that the cluster needs stands still.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::inject::{Mode, Options, inject};

use crate::ports::free_port;
use crate::support::cluster::{Cluster, IMAGE, OPERATOR};
use crate::support::control_plane::ControlPlane;
use crate::support::in_pod::InPod;
use crate::support::process::{Process, command, scratch_dir};
use crate::support::{now, say, turn, wait_for};

/// A namespace whose pods all get the sidecar, and one where only labelled pods do.
const ALL: &str = "webhook-all";
const SOME: &str = "webhook-some";
/// The namespace of the webhook.
const OWN: &str = "tidegate-system";
const LONG: Duration = Duration::from_secs(180);

/// The webhook, running with the identity and the rights of its pods, where the API server of the
/// tests can reach it: no network leads to a pod here.
pub(crate) struct Webhook {
    pub(crate) process: Process,
    manifest: String,
    _dir: tempfile::TempDir,
}

impl Webhook {
    fn start(plane: &ControlPlane) -> Self {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/examples/webhook");
        let built = plane.kubectl(&["kustomize", &example.display().to_string()]);
        let service =
            "    service:\n      name: tidegate-webhook\n      namespace: tidegate-system\n      path: /inject\n";
        assert_eq!(built.matches(service).count(), 2, "{built}");
        let manifest = built.replace(service, "    url: https://WEBHOOK/inject\n");
        let webhook = Self::of(plane, &manifest, OWN, "tidegate-webhook", &[]);
        wait_for("the webhook answers", LONG, || {
            webhook.process.must_run();
            let made = dry_run(plane, ALL, &pod_of("probe", &json!({})));
            made.is_ok_and(|pod| !sidecar(&pod).is_null()).then_some(())
        });
        webhook
    }

    /// Starts the webhook of a manifest, which has `WEBHOOK` in place of its address.
    pub(crate) fn of(plane: &ControlPlane, manifest: &str, own: &str, name: &str, args: &[&str]) -> Self {
        let (dir, port) = (scratch_dir(), free_port());
        let manifest = manifest.replace("WEBHOOK", &format!("127.0.0.1:{port}"));
        plane.apply(&manifest);
        let folder = dir.path().join("serviceaccount");
        std::fs::create_dir_all(&folder).expect("the folder is ours");
        let token = plane.kubectl(&["create", "token", name, "-n", own, "--duration=1h"]);
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("the folder is ours");
        write("token", token.trim());
        write("namespace", own);
        std::fs::copy(plane.ca_file(), folder.join("ca.crt")).expect("the folder is ours");
        let pod = InPod { folder, port: plane.port(), home: dir.path().to_owned() };
        let listen = format!("127.0.0.1:{port}");
        let args = [&["webhook", "--listen", &listen, "--image", IMAGE], args].concat();
        let process = Process::start("webhook", dir.path(), pod.command(env!("CARGO_BIN_EXE_tidegate"), args));
        Self { process, manifest, _dir: dir }
    }
}

pub(crate) fn kubectl(plane: &ControlPlane, args: &[&str]) -> Output {
    let config = plane.kubeconfig(&ControlPlane::harness());
    command(plane.binaries().path("kubectl"), args).env("KUBECONFIG", config).output().expect("kubectl runs")
}

/// Asks the API server to make a pod, without making it. Returns the pod as it would be.
fn dry_run(plane: &ControlPlane, namespace: &str, pod: &Value) -> Result<Value, String> {
    let dir = scratch_dir();
    let file: PathBuf = dir.path().join("pod.json");
    std::fs::write(&file, pod.to_string()).expect("the folder is ours");
    let path = file.display().to_string();
    let out = kubectl(plane, &["create", "-n", namespace, "-f", &path, "--dry-run=server", "-o", "json"]);
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    Ok(serde_json::from_slice(&out.stdout).expect("JSON"))
}

/// The sidecar of a pod; null if it has none.
pub(crate) fn sidecar(pod: &Value) -> Value {
    let init = pod.pointer("/spec/initContainers").and_then(Value::as_array);
    init.into_iter().flatten().find(|container| container["name"] == "tidegate").cloned().unwrap_or_default()
}

/// The template of an operator that leads by a lease of its own.
fn template(name: &str) -> Value {
    json!({"metadata": {"labels": {"app": name}}, "spec": {
        "serviceAccountName": "operator", "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "operator", "image": OPERATOR, "args": args(name)}]}})
}

fn args(name: &str) -> Value {
    json!(["leader", "--namespace", ALL, "--name", name, "--retry=5s"])
}

/// A pod with something of its own.
fn pod_of(name: &str, more: &Value) -> Value {
    let mut pod = template(name);
    merge(&mut pod, more);
    merge(&mut pod, &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}));
    pod
}

/// Merges maps; anything else is replaced.
fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

/// Pods of many shapes.
fn pods() -> Vec<Value> {
    let container = |name: &str, more: &Value| {
        let mut container = json!({"name": name, "image": OPERATOR, "args": args(name)});
        merge(&mut container, more);
        container
    };
    let annotated = |annotations: Value| json!({"metadata": {"annotations": annotations}});
    let shapes = [
        ("bare", json!({})),
        ("annotated", json!({"metadata": {"annotations": {"a": "b: c\n\"d\""}, "labels": {"tier": "control"}}})),
        ("env", json!({"spec": {"containers": [container("env", &json!({"env": [{"name": "A", "value": "- b"}]}))]}})),
        (
            "volumes",
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [container("volumes", &json!({
                "volumeMounts": [{"name": "v", "mountPath": "/v"}], "env": [{"name": "KUBECONFIG", "value": ""}]}))]}}),
        ),
        ("init", json!({"spec": {"initContainers": [{"name": "first", "image": IMAGE, "args": ["--version"]}]}})),
        (
            "sidecar",
            json!({"spec": {"initContainers": [container("other-sidecar", &json!({"restartPolicy": "Always"}))]}}),
        ),
        ("two", json!({"spec": {"containers": [container("two", &json!({})), container("two-more", &json!({}))]}})),
        (
            "chosen",
            json!({"metadata": {"annotations": {"tidegate.io/container": "chosen"}},
                   "spec": {"containers": [container("chosen", &json!({})), container("not-chosen", &json!({}))]}}),
        ),
        ("root", json!({"spec": {"securityContext": {"runAsUser": 0}}})),
        ("in-cluster", annotated(json!({"tidegate.io/mode": "in-cluster"}))),
        ("ports", annotated(json!({"tidegate.io/port": "7443", "tidegate.io/admin-port": "9465"}))),
        ("limits", annotated(json!({"tidegate.io/set": "bucket.rate=7 bucket.burst=9"}))),
        ("config-map", annotated(json!({"tidegate.io/config-map": "limits"}))),
    ];
    shapes.into_iter().map(|(name, more)| pod_of(name, &more)).collect()
}

/// What `inject` is told for a pod with these annotations.
fn options(pod: &Value) -> Options {
    let annotation = |name: &str| {
        pod.pointer("/metadata/annotations")?.get(format!("tidegate.io/{name}"))?.as_str().map(str::to_owned)
    };
    let mut options = Options { image: IMAGE.to_owned(), ..Options::default() };
    if annotation("mode").is_some() {
        options.mode = Mode::InCluster;
    }
    options.containers = annotation("container").into_iter().collect();
    options.config_map = annotation("config-map");
    if let Some(port) = annotation("port") {
        (options.port, options.admin_port) = (port.parse().expect("a port"), 9465);
    }
    if annotation("set").is_some() {
        let variable =
            |key: &str, value: &str| (format!("TIDEGATE__GATES__KUBERNETES__BUCKET__{key}"), value.to_owned());
        options.variables = vec![variable("RATE", "7"), variable("BURST", "9")];
    }
    options
}

/// What must be the same of a pod, however it got its sidecar: the token's volume has a random name,
/// and the API server adds it before the webhook is asked, or after `inject`.
fn comparable(pod: &Value) -> Value {
    fn settle(value: &mut Value) {
        match value {
            Value::Object(map) => map.values_mut().for_each(settle),
            Value::Array(items) => {
                items.iter_mut().for_each(settle);
                items.sort_by_key(|item| {
                    item.get("mountPath").or_else(|| item.get("name")).unwrap_or(&Value::Null).to_string()
                });
            }
            Value::String(text) if text.starts_with("kube-api-access-") => text.truncate("kube-api-access".len()),
            _ => {}
        }
    }
    let mut annotations = pod.pointer("/metadata/annotations").cloned().unwrap_or_default();
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.remove("tidegate-injected");
    }
    let mut comparable = json!({"labels": pod["metadata"]["labels"], "annotations": annotations, "spec": pod["spec"]});
    settle(&mut comparable);
    comparable
}

/// The workloads that make pods of a template by themselves.
fn workloads() -> Value {
    let workload = |kind: &str, version: &str, more: Value| {
        let name = kind.to_lowercase();
        let mut workload = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": ALL},
                                  "spec": {"template": template(&name)}});
        merge(&mut workload, &json!({"spec": more}));
        workload
    };
    let selector = |kind: &str| json!({"selector": {"matchLabels": {"app": kind}}});
    let never = json!({"template": {"spec": {"restartPolicy": "Never"}}});
    let mut set = selector("statefulset");
    merge(&mut set, &json!({"serviceName": "none"}));
    let mut cron = workload(
        "CronJob",
        "batch/v1",
        json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template("cronjob")}}}),
    );
    merge(&mut cron, &json!({"spec": {"jobTemplate": {"spec": never}}}));
    cron["spec"].as_object_mut().expect("a map").remove("template");
    json!([
        workload("Deployment", "apps/v1", selector("deployment")),
        workload("StatefulSet", "apps/v1", set),
        workload("DaemonSet", "apps/v1", selector("daemonset")),
        workload("ReplicaSet", "apps/v1", selector("replicaset")),
        workload("ReplicationController", "v1", json!({"replicas": 1, "selector": {"app": "replicationcontroller"}})),
        workload("Job", "batch/v1", never),
        cron,
    ])
}

/// The two namespaces, with the operator's account and rights in them.
fn prepare(plane: &ControlPlane) {
    for (namespace, labels) in [(ALL, json!({"tidegate.io/inject": "enabled"})), (SOME, json!({}))] {
        let named = json!({"name": "operator", "namespace": namespace});
        let rbac = "rbac.authorization.k8s.io/v1";
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
        let subjects = json!([{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}]);
        plane.apply(
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
                .to_string(),
        );
        let binding = format!("{namespace}-operator");
        let items = json!([
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named},
            {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": binding}, "roleRef": role, "subjects": subjects},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "limits", "namespace": namespace},
             "data": {"tidegate.toml": "[gates.kubernetes]\nupstream = \"in_cluster\"\n[gates.kubernetes.bucket]\nrate = 11\nburst = 12\n"}},
        ]);
        plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    }
}

/// Every shape, in a dry run: the webhook makes of it what `inject` makes of it.
fn equals_inject(plane: &ControlPlane) {
    for pod in pods() {
        let name = pod["metadata"]["name"].clone();
        let by_webhook = dry_run(plane, ALL, &pod).expect("it is taken");
        let injected = inject(&pod.to_string(), &options(&pod)).expect("JSON");
        assert_eq!((injected.changed.len(), injected.refused.len()), (1, 0), "{name}");
        let injected: Value = serde_json::from_str(&injected.text).expect("JSON in gives JSON out");
        let by_inject = dry_run(plane, SOME, &injected).expect("it is taken");
        assert!(!sidecar(&by_webhook).is_null(), "{name}: {by_webhook}");
        assert_eq!(comparable(&by_webhook), comparable(&by_inject), "{name}");
    }
}

/// All of them, made: the gate of each comes up before its operator, which leads through it.
fn come_up(cluster: &Cluster) {
    let (plane, begin) = (&cluster.plane, now());
    let mut items = workloads().as_array().expect("a list").clone();
    for mut pod in pods() {
        pod["metadata"]["namespace"] = ALL.into();
        items.push(pod);
    }
    let mut labelled = pod_of("labelled", &json!({"metadata": {"labels": {"tidegate.io/inject": "enabled"}}}));
    labelled["metadata"]["namespace"] = SOME.into();
    items.push(labelled);
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    plane.kubectl(&["-n", ALL, "create", "job", "of-cronjob", "--from=cronjob/cronjob"]);
    let wanted = items.len();
    assert!(wanted >= 20, "{wanted} workloads");
    let leads = wait_for("every operator leads", LONG, || {
        let log = |namespace: &str, name: &str| {
            let out = kubectl(plane, &["-n", namespace, "logs", name, "-c", "operator"]);
            String::from_utf8_lossy(&out.stdout).into_owned()
        };
        let (mut led, mut waits) = (0, Vec::new());
        for namespace in [ALL, SOME] {
            let list: Value =
                serde_json::from_str(&plane.kubectl(&["-n", namespace, "get", "pods", "-o", "json"])).expect("JSON");
            for pod in list["items"].as_array().into_iter().flatten() {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                assert!(!sidecar(pod).is_null(), "{namespace}/{name} has no sidecar");
                // Some have other names for their containers.
                let main = pod["spec"]["containers"][0]["name"].as_str().unwrap_or_default();
                let out = kubectl(plane, &["-n", namespace, "logs", name, "-c", main]);
                let said = if main == "operator" {
                    log(namespace, name)
                } else {
                    String::from_utf8_lossy(&out.stdout).into_owned()
                };
                assert!(!said.contains("\"error\""), "{namespace}/{name}: {said}");
                if said.contains("\"leading\"") {
                    led += 1;
                } else {
                    waits.push(format!("{namespace}/{name} ({}): {said}", pod["status"]["phase"]));
                }
            }
        }
        if led >= wanted {
            return Some(led);
        }
        let is_late = begin.elapsed() > LONG - Duration::from_secs(5);
        let there = || plane.kubectl(&["get", "pods,events", "-A", "-o", "wide"]);
        assert!(!is_late, "{led} of {wanted} lead; these do not: {}\nall:\n{}", waits.join("\n"), there());
        None
    });
    let events = cluster.events();
    for up in events.iter().filter(|event| event.what == "up" && [ALL, SOME].contains(&&*event.namespace)) {
        let pod = |event: &crate::support::cluster::Event| {
            event.more.split("\"pod\": ").nth(1).map(|rest| rest.split(')').next().map(str::to_owned))
        };
        let first =
            events.iter().find(|event| event.what == "up" && event.container == "tidegate" && pod(event) == pod(up));
        let is_before = !["tidegate", "first", "other-sidecar"].contains(&&*up.container);
        assert!(first.is_some_and(|first| !is_before || first.at < up.at), "{up:?}");
    }
    say(format!(
        "webhook: {leads} operators of {wanted} workloads lead through their gates after {:.0} s",
        begin.elapsed().as_secs_f64()
    ));
}

/// Whatever their labels, the system's pods and the webhook's own are as they were.
fn leaves_the_system_alone(plane: &ControlPlane, is_down: bool) {
    for namespace in ["kube-system", "kube-public", "kube-node-lease", OWN] {
        let label = ["label", "--overwrite", "namespace", namespace, "tidegate.io/inject=enabled"];
        plane.kubectl(&label);
        let mut pod = pod_of("any", &json!({"metadata": {"labels": {"tidegate.io/inject": "enabled"}}}));
        pod["spec"]["serviceAccountName"] = "default".into();
        let made =
            dry_run(plane, namespace, &pod).unwrap_or_else(|said| panic!("{namespace}, down: {is_down}: {said}"));
        assert!(sidecar(&made).is_null(), "{namespace}: {made}");
    }
    // Wherever it runs, the webhook is not in its own way.
    let own = pod_of("own", &json!({"metadata": {"labels": {"app.kubernetes.io/name": "tidegate-webhook"}}}));
    assert!(sidecar(&dry_run(plane, ALL, &own).expect("it is made")).is_null());
}

/// Without its CA, in the Secret and in the configuration, the webhook makes another. All replicas
/// take the same.
fn keeps_its_certificate(plane: &ControlPlane) {
    let configuration = ["mutatingwebhookconfiguration", "tidegate-webhook"];
    let bundles = || {
        let all = ["get", configuration[0], configuration[1], "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}"];
        plane.kubectl(&all).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let before = bundles();
    plane.kubectl(&["-n", OWN, "patch", "secret", "tidegate-webhook", "--type=merge", "-p", r#"{"data": null}"#]);
    let remove = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]).to_string();
    plane.kubectl(&["patch", configuration[0], configuration[1], "--type=json", "-p", &remove]);
    wait_for("another CA is in place", LONG, || {
        let now = bundles();
        (now.len() == 2 && now[0] == now[1] && now[0] != before[0]).then_some(())
    });
    let secret = plane.kubectl(&["-n", OWN, "get", "secret", "tidegate-webhook", "-o", r"jsonpath={.data.ca\.crt}"]);
    assert_eq!(bundles(), [secret.clone(), secret]);
    wait_for("the API server trusts it", LONG, || {
        dry_run(plane, ALL, &pod_of("again", &json!({}))).is_ok_and(|pod| !sidecar(&pod).is_null()).then_some(())
    });
}

/// The webhook's account has the rights that it uses, and no others.
fn may_do_nothing_else(plane: &ControlPlane) {
    let account = format!("--as=system:serviceaccount:{OWN}:tidegate-webhook");
    let may = |what: &[&str]| kubectl(plane, &[&["auth", "can-i", &account], what].concat()).status.success();
    assert!(may(&["patch", "secret/tidegate-webhook", "-n", OWN]));
    assert!(may(&["patch", "mutatingwebhookconfiguration/tidegate-webhook"]));
    for what in [
        &["get", "secret/other", "-n", OWN][..],
        &["list", "secrets", "-n", OWN],
        &["create", "secrets", "-n", OWN],
        &["delete", "secret/tidegate-webhook", "-n", OWN],
        &["patch", "mutatingwebhookconfiguration/other"],
        &["list", "mutatingwebhookconfigurations"],
        &["get", "pods", "-n", ALL],
    ] {
        assert!(!may(what), "{what:?}");
    }
}

#[test]
fn pods_of_a_labelled_namespace_come_up_behind_gates_and_nothing_needs_the_webhook() {
    let test = "pods_of_a_labelled_namespace_come_up_behind_gates_and_nothing_needs_the_webhook";
    let Some(cluster) = Cluster::shared(test) else { return };
    let _turn = turn::light();
    let plane = &cluster.plane;
    prepare(plane);
    let webhook = Webhook::start(plane);
    equals_inject(plane);
    come_up(cluster);
    leaves_the_system_alone(plane, false);
    let disabled = pod_of("disabled", &json!({"metadata": {"labels": {"tidegate.io/inject": "disabled"}}}));
    for (namespace, pod) in [(ALL, disabled), (SOME, pod_of("plain", &json!({})))] {
        assert!(sidecar(&dry_run(plane, namespace, &pod).expect("it is made")).is_null(), "{pod}");
    }
    // One that cannot have it is made without, and whoever makes it is told.
    let foreign = json!([{"name": "c", "image": OPERATOR, "env": [{"name": "KUBECONFIG", "value": "/other"}]}]);
    let foreign = pod_of("foreign", &json!({"spec": {"containers": foreign}}));
    assert!(sidecar(&dry_run(plane, ALL, &foreign).expect("it is made")).is_null());
    // Neither can one whose account gives it no token; it would never start.
    plane.apply(
        &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "no-token", "namespace": ALL},
                        "automountServiceAccountToken": false})
        .to_string(),
    );
    let without = pod_of("no-token", &json!({"spec": {"serviceAccountName": "no-token"}}));
    assert!(sidecar(&dry_run(plane, ALL, &without).expect("it is made")).is_null());
    // The webhook's own pods came up, with the rights that deploy/ gives them, and share one CA.
    wait_for("a pod of the webhook is open", LONG, || {
        let out = kubectl(plane, &["-n", OWN, "logs", "deployment/tidegate-webhook"]);
        String::from_utf8_lossy(&out.stdout).contains("the webhook is listening").then_some(())
    });

    keeps_its_certificate(plane);
    may_do_nothing_else(plane);

    webhook.process.kill();
    let made = dry_run(plane, ALL, &pod_of("late", &json!({}))).expect("with Ignore it is made");
    assert!(sidecar(&made).is_null(), "{made}");
    plane.apply(&webhook.manifest.replace("failurePolicy: Ignore", "failurePolicy: Fail"));
    let said = dry_run(plane, ALL, &pod_of("late", &json!({}))).expect_err("with Fail it is refused");
    assert!(said.contains("namespace.webhook.tidegate.io"), "{said}");
    dry_run(plane, SOME, &pod_of("late", &json!({}))).expect("without a label it is made");
    leaves_the_system_alone(plane, true);

    plane.kubectl(&["delete", "mutatingwebhookconfiguration", "tidegate-webhook"]);
    plane.kubectl(&["delete", "namespace", ALL, SOME, OWN, "--wait=false"]);
}
