//! The files in `deploy/` are what the commands print, and name only things that exist.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tidegate::config;
use tidegate::inject::{Client, EgressOptions, Mode, Options, inject, uninject};
use tidegate::spec::OwnFile;
use tidegate::telemetry::table::TABLE;

fn file(path: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path, text)
}

#[test]
fn the_examples_are_what_inject_makes_of_them() {
    for (name, mode, set) in [
        ("argo-cd", Mode::InCluster, None),
        ("cert-manager", Mode::Kubeconfig, None),
        ("crossplane", Mode::Kubeconfig, Some(("TIDEGATE__GATES__KUBERNETES__PRESET", "crossplane"))),
        ("flux", Mode::Kubeconfig, None),
        ("plain", Mode::Kubeconfig, None),
    ] {
        let options = Options {
            image: "registry.example/tidegate:0.1.0".to_owned(),
            mode,
            variables: set.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            ..Options::default()
        };
        let before = file(&format!("deploy/examples/{name}/operator.yaml")).1;
        let edited = inject(&before, &options).unwrap();
        assert_eq!((edited.changed.len(), edited.notes), (1, Vec::new()), "{name}");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("deploy/examples/{name}/with-tidegate.yaml"));
        if std::env::var_os("TIDEGATE_WRITE_EXAMPLES").is_some() {
            fs::write(&path, &edited.text).unwrap();
        }
        assert!(
            file(&format!("deploy/examples/{name}/with-tidegate.yaml")).1 == edited.text,
            "{} is not what inject makes; run this test with TIDEGATE_WRITE_EXAMPLES=1",
            path.display()
        );
        assert!(!uninject(&edited.text).unwrap().text.contains("tidegate:0.1.0"), "{name}");
    }
}

/// What a container or a volume of this name has in a pod.
fn named<'a>(pod: &'a Value, list: &str, name: &str) -> &'a Value {
    let items = pod["spec"]["template"]["spec"][list].as_array().expect("a list");
    items.iter().find(|item| item["name"] == name).unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[test]
fn the_component_of_the_forward_proxy_adds_what_inject_adds() {
    let egress = EgressOptions {
        presets: vec!["aws".to_owned()],
        port: 8003,
        plain: Vec::new(),
        direct: Vec::new(),
        cluster_domain: None,
        intercept: true,
        clients: vec![Client::Go, Client::Python, Client::Node, Client::Grpc],
    };
    let options = Options { egress: Some(egress), ..Options::default() };
    let injected = inject(&file("deploy/examples/egress/operator.yaml").1, &options).expect("it is YAML").text;
    let injected: Value = serde_saphyr::from_str(&injected).expect("it is YAML");
    let component: Value = serde_saphyr::from_str(&file("deploy/kustomize-egress/egress.yaml").1).expect("it is YAML");
    for (list, name) in [("containers", "manager"), ("initContainers", "tidegate")] {
        let all = named(&injected, list, name)["env"].as_array().expect("a list");
        let is_of_proxy = |variable: &&Value| {
            let name = variable["name"].as_str().expect("text");
            name != "KUBECONFIG" && !name.contains("__KUBERNETES__") && !name.contains("__ADMIN__")
        };
        let expected: Vec<&Value> = all.iter().filter(is_of_proxy).collect();
        let adds: Vec<&Value> = named(&component, list, name)["env"].as_array().expect("a list").iter().collect();
        assert_eq!(adds, expected, "{name}");
    }
    assert_eq!(named(&component, "volumes", "tidegate-keys"), named(&injected, "volumes", "tidegate-keys"));
    let mounts = &named(&component, "initContainers", "tidegate")["volumeMounts"];
    let all = named(&injected, "initContainers", "tidegate")["volumeMounts"].as_array().expect("a list");
    assert!(mounts.as_array().expect("a list").iter().all(|mount| all.contains(mount)), "{mounts}");
}

/// The objects of a file.
fn objects(path: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&file(path).1).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn a_gate_that_is_a_service_has_a_place_for_its_control_socket() {
    for component in ["kustomize-service", "kustomize-egress-service"] {
        let objects = objects(&format!("deploy/{component}/gate.yaml"));
        let pod = objects.iter().find(|object| object["kind"] == "Deployment").expect("a Deployment");
        let container = named(pod, "containers", "tidegate");
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true, "{component}");
        let is_writable = |mount: &&Value| {
            let volume = named(pod, "volumes", mount["name"].as_str().expect("a name"));
            mount["readOnly"] != true && volume["emptyDir"]["medium"] == "Memory"
        };
        let mounts = container["volumeMounts"].as_array().expect("mounts").iter().filter(is_writable);
        let folders: Vec<_> = mounts.map(|mount| Path::new(mount["mountPath"].as_str().expect("a path"))).collect();
        let settings = file(&format!("deploy/{component}/tidegate.toml")).1;
        let settings = config::load_text(component.to_owned(), settings, &[]).expect("it is right").settings;
        let OwnFile::At(socket) = &settings.admin.socket else { panic!("{component} names no socket") };
        assert!(folders.contains(&socket.parent().expect("a folder")), "{component}: {socket:?} is not in {folders:?}");
    }
}

#[test]
fn a_gate_that_is_a_service_may_review_tokens_and_nothing_else() {
    for component in ["kustomize-service", "kustomize-egress-service"] {
        let objects = objects(&format!("deploy/{component}/rbac.yaml"));
        let of = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
        let [binding] = of("ClusterRoleBinding")[..] else { panic!("{component}: {objects:?}") };
        let [role] = of("ClusterRole")[..] else { panic!("{component} has no role of its own") };
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"], "{component}");
        let review =
            json!({"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]});
        assert_eq!(role["rules"], json!([review]), "{component}");
    }
}

#[test]
fn a_component_shows_how_to_leave_out_a_deployment_without_a_manager() {
    for (component, patch) in
        [("kustomize", "sidecar.yaml"), ("kustomize-in-cluster", "sidecar.yaml"), ("kustomize-egress", "egress.yaml")]
    {
        let patched = objects(&format!("deploy/{component}/{patch}")).remove(0);
        assert!(named(&patched, "containers", "manager")["image"].is_null(), "{component} is for others too");
        let text = file(&format!("deploy/{component}/kustomization.yaml")).1;
        let comments: Vec<_> = text.lines().take_while(|line| line.starts_with('#')).collect();
        assert!(comments.join(" ").contains("labelSelector"), "{component} does not say so");
        let narrow: Value = serde_saphyr::from_str(&text.replace("# labelSelector:", "labelSelector:")).expect("YAML");
        let target = &narrow["patches"][0]["target"];
        assert_eq!(target["labelSelector"], "control-plane=controller-manager", "{component}");
    }
}

#[test]
fn rules_and_dashboard_name_only_metrics_that_there_are() {
    for path in ["deploy/prometheus/rules.yaml", "deploy/prometheus/rules_test.yaml", "deploy/grafana/tidegate.json"] {
        let (_, text) = file(path);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let mut named = 0;
        for word in words.filter(|word| word.starts_with("tidegate_")) {
            let base = word.strip_suffix("_bucket").unwrap_or(word);
            assert!(TABLE.iter().any(|metric| metric.name == base), "{path} names {word}, which is no metric");
            named += 1;
        }
        assert!(named > 0, "{path}");
    }
}

#[test]
fn the_runbook_of_every_alert_is_on_a_page_that_is_there() {
    let (_, rules) = file("deploy/prometheus/rules.yaml");
    let (_, page) = file("docs/alerts.md");
    let mut alerts = 0;
    for alert in rules.split("- alert: ").skip(1) {
        let name = alert.lines().next().expect("a name");
        let url = alert.split("runbook_url: \"").nth(1).and_then(|rest| rest.split('"').next());
        assert_eq!(url, Some(&*format!("http://localhost:9464/docs/alerts.md#{}", name.to_lowercase())), "{name}");
        assert!(page.contains(&format!("\n## {name}\n")), "docs/alerts.md says nothing of {name}");
        assert!(!alert.contains("README"), "{name}: the README has no table of reasons");
        alerts += 1;
    }
    assert_eq!(page.matches("\n## ").count(), alerts, "and of no other");
}

#[test]
fn the_chart_carries_the_same_rules_and_dashboard() {
    for (chart, original) in [("rules.yaml", "prometheus/rules.yaml"), ("tidegate.json", "grafana/tidegate.json")] {
        let copy = file(&format!("deploy/helm/tidegate/files/{chart}")).1;
        assert!(
            copy == file(&format!("deploy/{original}")).1,
            "{chart} in the chart is not deploy/{original}; copy it"
        );
    }
}

/// Every file below a folder.
fn files(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).expect("a folder").map(|entry| entry.expect("can be read").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The image is built from nothing else in the folder. Cargo reads the manifests of all members,
/// whatever it builds.
#[test]
fn what_the_dockerfile_copies_is_let_through_to_the_builder_and_has_every_package() {
    let let_through = file(".dockerignore").1;
    let mut copied = Vec::new();
    let dockerfile = file("Dockerfile").1;
    for line in dockerfile.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from=")) {
        let words: Vec<_> = line.split_ascii_whitespace().skip(1).collect();
        for source in &words[..words.len() - 1] {
            assert!(let_through.lines().any(|line| line == format!("!{source}")), ".dockerignore keeps {source} back");
            copied.push(*source);
        }
    }
    assert!(copied.len() >= 5, "{copied:?}");
    let cargo: toml::Table = file("Cargo.toml").1.parse().expect("TOML");
    for member in cargo["workspace"]["members"].as_array().expect("a list") {
        let folder = member.as_str().expect("a text");
        let is_copied = copied.iter().any(|source| Path::new(folder).starts_with(source));
        assert!(is_copied, "the Dockerfile does not copy {folder}");
    }
}

/// The binary that is measured and tested is built as the one that ships.
#[test]
fn what_ships_is_built_by_one_script() {
    for path in ["Dockerfile", ".ci/run", ".ci/release/build", "benches/peers/prepare.py"] {
        let text = file(path).1;
        assert!(text.contains(".ci/ship ") || text.contains(r#"".ci", "ship""#), "{path} does not build by .ci/ship");
        for own in ["target-feature", "--profile ship", "--profile\", \"ship"] {
            assert!(!text.contains(own), "{path} has {own} of its own");
        }
    }
}

#[test]
fn the_image_has_one_name_everywhere() {
    let name = concat!("registry.example/tidegate:", env!("CARGO_PKG_VERSION"));
    let mut named = 0;
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")) {
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| line.trim_start_matches([' ', '-']).starts_with("image:")) {
            let is_templated = line.contains("{{") || line.trim_end().ends_with("image:");
            if line.contains("tidegate") && !is_templated && !line.contains("repository: registry.example/tidegate") {
                assert!(line.contains(name), "{}: {line}, expected {name}", path.display());
                named += 1;
            }
        }
    }
    assert!(named >= 7, "{named}");
    let version = env!("CARGO_PKG_VERSION");
    for (path, line) in [
        ("Dockerfile", format!("ARG VERSION={version}")),
        ("deploy/helm/tidegate/Chart.yaml", format!("version: {version}")),
        ("deploy/helm/tidegate/Chart.yaml", format!("appVersion: \"{version}\"")),
        ("deploy/helm/tidegate/values.yaml", "  repository: registry.example/tidegate".to_owned()),
        ("deploy/examples/helm/Chart.yaml", format!("    version: {version}")),
    ] {
        assert!(file(path).1.lines().any(|found| found == line), "{path}: no line {line:?}");
    }
}
