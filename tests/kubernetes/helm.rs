//! The Helm chart, rendered by the real helm: it is clean, every value has an effect, it works
//! inside another chart, and a real API server accepts it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::deploy::{self, taken};
use crate::support::control_plane::ControlPlane;
use crate::support::process::scratch_dir;
use crate::support::{installed, say, turn};

/// The Kubernetes version that the charts are rendered for.
const KUBERNETES: &str = "--kube-version=1.36.3";
const NAMESPACE: &str = "helm-charts";

pub(crate) struct Helm {
    program: PathBuf,
    home: tempfile::TempDir,
}

impl Helm {
    pub(crate) fn or_skip(test: &str) -> Option<Self> {
        let program = installed::or_skip(test, installed::helm())?;
        Some(Self { program, home: scratch_dir() })
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let mut run = Command::new(&self.program);
        // Without the user's own plugins and repositories.
        run.args(args).env_clear().env("HOME", self.home.path()).output().expect("helm runs")
    }

    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "helm {args:?}: {}{said}", String::from_utf8_lossy(&out.stdout));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn template(&self, chart: &str, more: &[&str]) -> String {
        self.ok(&[&["template", "rel", chart, KUBERNETES, "--namespace", NAMESPACE], more].concat())
    }
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn chart() -> String {
    repository("deploy/helm/tidegate").display().to_string()
}

/// The files that together set every value of the chart.
fn value_files() -> Vec<PathBuf> {
    let entries = fs::read_dir(repository("tests/kubernetes/helm/values")).expect("values");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("can be read").path()).collect();
    files.sort();
    files
}

/// Every leaf of a YAML file. A list counts as one leaf, and so does an empty map.
fn leaves(path: &Path) -> BTreeMap<String, Value> {
    fn walk(value: &Value, at: &str, into: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    walk(value, &format!("{at}.{key}"), into);
                }
            }
            leaf => drop(into.insert(at.to_owned(), leaf.clone())),
        }
    }
    let text = fs::read_to_string(path).expect("text");
    let mut all = BTreeMap::new();
    walk(&yaml(&text), "", &mut all);
    all
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

/// Every word of a value, as it must appear in the rendered text.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => map.values().flat_map(words).collect(),
        Value::Array(items) => items.iter().flat_map(words).collect(),
        Value::String(text) => text.lines().map(|line| line.trim().to_owned()).collect(),
        Value::Number(number) => vec![number.to_string()],
        Value::Bool(_) | Value::Null => Vec::new(),
    }
}

#[test]
fn the_chart_is_clean_and_every_rendering_is_taken_by_the_api_server() {
    const TEST: &str = "the_chart_is_clean_and_every_rendering_is_taken_by_the_api_server";
    let Some(plane) = ControlPlane::shared(TEST) else { return };
    let Some(helm) = Helm::or_skip(TEST) else { return };
    if !deploy::define(plane, TEST) {
        return;
    }
    let _turn = turn::light();
    plane.namespace(NAMESPACE);
    helm.ok(&["lint", "--strict", KUBERNETES, &chart()]);
    taken(plane, "chart", &helm.template(&chart(), &[]));
    let mut kinds = Vec::new();
    for file in value_files() {
        let path = file.display().to_string();
        helm.ok(&["lint", "--strict", KUBERNETES, "--values", &path, &chart()]);
        let text = helm.template(&chart(), &["--values", &path]);
        kinds.extend(text.lines().filter_map(|line| line.strip_prefix("kind: ").map(str::to_owned)));
        taken(plane, "chart-with-values", &text);
        // Each value has an effect: `create` shows in the objects, `mode` in a variable, the others
        // as they are.
        for (leaf, value) in leaves(&file) {
            let words = if leaf == ".mode" { vec!["KUBERNETES_SERVICE_HOST".to_owned()] } else { words(&value) };
            for word in words {
                assert!(text.contains(&word), "{path}: {leaf} is {word:?}, which is nowhere in\n{text}");
            }
        }
    }
    kinds.sort();
    kinds.dedup();
    let webhook = ["MutatingWebhookConfiguration", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount"];
    let others = [
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "PodMonitor",
        "PrometheusRule",
    ];
    let mut all: Vec<&str> = webhook.into_iter().chain(others).collect();
    all.sort_unstable();
    assert_eq!(kinds, all);
    say("helm: every rendering of the chart is taken by kube-apiserver");
}

#[test]
fn every_value_that_the_chart_documents_is_tried() {
    let defaults = leaves(&repository("deploy/helm/tidegate/values.yaml"));
    let mut tried = BTreeMap::new();
    for file in value_files() {
        for (leaf, value) in leaves(&file) {
            // A key inside a map that is empty by default belongs to that map.
            let known = defaults.keys().find(|known| leaf == **known || leaf.starts_with(&format!("{known}.")));
            let known = known.unwrap_or_else(|| panic!("{} sets {leaf}, which there is not", file.display()));
            if defaults[known] != value {
                tried.insert(known.clone(), value);
            }
        }
    }
    let left: Vec<_> = defaults.keys().filter(|leaf| !tried.contains_key(*leaf)).collect();
    assert!(left.is_empty(), "documented, but tried at no other value: {left:?}");
}

#[test]
fn the_chart_says_what_is_wrong_with_a_value() {
    let Some(helm) = Helm::or_skip("the_chart_says_what_is_wrong_with_a_value") else { return };
    for (args, says) in [
        (["--set", "mode=kubeconfg"], "'kubeconfig', 'in-cluster'"),
        (["--set", "podmonitor.create=true"], "podmonitor"),
        (["--set", "operator.create=true"], "operator.image is needed"),
        (["--set", "service.create=true"], "service.tlsSecret is needed"),
        (["--set", "networkPolicy.create=true"], "networkPolicy.create needs podLabels"),
        (["--set", "port=0"], "port"),
        (["--set", "webhook.failurePolicy=ignore"], "'Ignore', 'Fail'"),
        (["--kube-version", "1.28.4"], "requires kubeVersion: >= 1.29"),
    ] {
        let out = helm.run(&["template", "rel", &chart(), KUBERNETES, args[0], args[1]]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(says), "{args:?}: {said}");
    }
}

/// The objects of a rendering.
fn objects(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

#[test]
fn names_of_digits_alone_are_text() {
    let Some(helm) = Helm::or_skip("names_of_digits_alone_are_text") else { return };
    for file in value_files() {
        let values = file.display().to_string();
        let more = ["--set-string", "configMap.name=789", "--set-string", "service.tlsSecret=12", "--set-string"];
        let more =
            [&more[..], &["webhook.tlsSecret=34", "--set-string", "operator.container=56", "--set-string"]].concat();
        let more = [&more[..], &["operator.serviceAccountName=78", "--values", &values]].concat();
        let text = helm.ok(&[&["template", "123", &chart(), KUBERNETES, "--namespace", "456"], &more[..]].concat());
        for object in objects(&text) {
            for (at, value) in named_leaves(&object) {
                assert!(value.is_string(), "{values}: {} {at} is {value}", object["kind"]);
            }
        }
    }
}

/// Every name, namespace and label of an object, with where it is.
fn named_leaves(object: &Value) -> Vec<(String, Value)> {
    fn walk(value: &Value, at: &str, into: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| walk(value, &format!("{at}/{key}"), into)),
            Value::Array(items) => items.iter().for_each(|item| walk(item, at, into)),
            leaf => into.push((at.to_owned(), leaf.clone())),
        }
    }
    let mut all = Vec::new();
    walk(object, "", &mut all);
    let is_name = |at: &str| {
        ["/name", "/namespace", "/serviceAccountName", "/secretName", "/values"].iter().any(|end| at.ends_with(end))
            || at.contains("/labels/")
            || at.contains("/matchLabels/")
    };
    all.retain(|(at, _)| is_name(at));
    all
}

#[test]
fn the_network_policy_selects_none_of_the_chart_s_other_pods_and_leaves_open_what_it_is_told() {
    let Some(helm) = Helm::or_skip("the_network_policy_selects_none_of_the_chart_s_other_pods") else { return };
    let more = ["--set", "networkPolicy.create=true,webhook.create=true,service.create=true,service.tlsSecret=t"];
    let operator = ["--set", "operator.create=true,operator.image=i,networkPolicy.ports={9443,health}"];
    let all = objects(&helm.template(&chart(), &[more, operator].concat()));
    let policies =
        all.iter().filter(|object| object["kind"] == "NetworkPolicy" && object["metadata"]["name"] == "rel-tidegate");
    let is_of_sidecar = |policy: &&Value| policy["spec"]["podSelector"]["matchExpressions"].is_array();
    let policy = policies.clone().find(is_of_sidecar).unwrap_or_else(|| panic!("{:?}", policies.collect::<Vec<_>>()));
    let not = &policy["spec"]["podSelector"]["matchExpressions"];
    let left_out = serde_json::json!([{"key": "app.kubernetes.io/name", "operator": "NotIn",
                                       "values": ["tidegate-webhook", "tidegate-service"]}]);
    assert_eq!(*not, left_out);
    // The labels of these pods are those.
    for name in ["tidegate-webhook", "tidegate-service"] {
        let has = |object: &&Value| object["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == name;
        assert_eq!(all.iter().filter(has).count(), 1, "{name}");
    }
    let open = serde_json::json!({"ports": [{"port": 9443, "protocol": "TCP"}, {"port": "health", "protocol": "TCP"}]});
    assert_eq!(policy["spec"]["ingress"][1], open);
}

#[test]
fn a_gate_that_is_a_service_takes_orders_and_may_review_tokens_only() {
    let Some(helm) = Helm::or_skip("a_gate_that_is_a_service_takes_orders_and_may_review_tokens_only") else { return };
    let all = objects(&helm.template(&chart(), &["--set", "service.create=true,service.tlsSecret=t"]));
    let of = |kind: &str| all.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"));
    let pod = &of("Deployment")["spec"]["template"]["spec"];
    let socket = serde_json::json!({"name": "TIDEGATE__ADMIN__SOCKET", "value": "/run/tidegate/tidegate.sock"});
    let place = serde_json::json!({"name": "run", "mountPath": "/run/tidegate"});
    let volume = serde_json::json!({"name": "run", "emptyDir": {"medium": "Memory"}});
    let has = |list: &Value, item: &Value| list.as_array().is_some_and(|list| list.contains(item));
    assert!(has(&pod["containers"][0]["env"], &socket), "{pod}");
    assert!(has(&pod["containers"][0]["volumeMounts"], &place) && has(&pod["volumes"], &volume), "{pod}");
    let (role, binding) = (of("ClusterRole"), of("ClusterRoleBinding"));
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let review =
        serde_json::json!({"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]});
    assert_eq!(role["rules"], serde_json::json!([review]));
}

#[test]
fn the_sidecar_embeds_into_another_chart() {
    const TEST: &str = "the_sidecar_embeds_into_another_chart";
    let Some(plane) = ControlPlane::shared(TEST) else { return };
    let Some(helm) = Helm::or_skip(TEST) else { return };
    let _turn = turn::light();
    plane.namespace(NAMESPACE);
    // A copy: helm puts the dependency into the chart's own folder.
    let folder = scratch_dir();
    let copy = |path: &str| {
        let to = folder.path().join(path);
        fs::create_dir_all(to.parent().expect("it is below")).expect("the folder is ours");
        let done = Command::new("cp").arg("-r").arg(repository(path)).arg(&to).status();
        assert!(done.is_ok_and(|status| status.success()), "{path}");
        to.display().to_string()
    };
    copy("deploy/helm");
    let own = copy("deploy/examples/helm");
    helm.ok(&["dependency", "build", &own]);
    helm.ok(&["lint", "--strict", KUBERNETES, &own]);
    for (mode, shows) in [("kubeconfig", "KUBECONFIG"), ("in-cluster", "KUBERNETES_SERVICE_HOST")] {
        let text = helm.template(&own, &["--set", &format!("tidegate.mode={mode}")]);
        for word in [shows, "restartPolicy: Always", "rate = 40", "registry.example/tidegate:0.1.0"] {
            assert!(text.contains(word), "{mode}: no {word} in\n{text}");
        }
        taken(plane, mode, &text);
    }
}

/// The chart sets the values that must fit the pod in variables, and the file has the limits:
/// together they are a configuration.
#[test]
fn what_the_chart_gives_the_gate_is_a_configuration() {
    let Some(helm) = Helm::or_skip("what_the_chart_gives_the_gate_is_a_configuration") else { return };
    let everything = repository("tests/kubernetes/helm/values/everything.yaml").display().to_string();
    let text = helm.template(&chart(), &["--values", &everything]);
    let documents: Vec<Value> = text.split("\n---\n").map(yaml).collect();
    let of = |kind: &str, pointer: &str| {
        let found = documents.iter().filter(|document| document["kind"] == kind).find_map(|d| d.pointer(pointer));
        found.unwrap_or_else(|| panic!("no {kind} with {pointer}")).clone()
    };
    let folder = scratch_dir();
    let file = folder.path().join("tidegate.toml");
    let limits = of("ConfigMap", "/data/tidegate.toml");
    fs::write(&file, limits.as_str().expect("text")).expect("the folder is ours");
    let sidecar = of("Deployment", "/spec/template/spec/initContainers/0");
    let mut run = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    run.args(["check", "--config"]).arg(&file).env_clear();
    for variable in sidecar["env"].as_array().expect("variables") {
        let name = variable["name"].as_str().expect("a name");
        // The folder that it writes to exists in the pod, and not on this machine.
        if !name.ends_with("WRITE_TO") {
            run.env(name, variable["value"].as_str().expect("a value"));
        }
    }
    let out = run.output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    for word in ["127.0.0.1:7443", "[::]:9555", "17"] {
        assert!(said.contains(word), "no {word} in\n{said}");
    }
}
