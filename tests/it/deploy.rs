//! The files in `deploy/` are what the commands print, and name only things that exist.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tidegate::config;
use tidegate::inject::{Client, Egress, Mode, Options, inject, uninject};
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
    let egress = Egress {
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
    assert_eq!((alerts, page.matches("\n## ").count()), (13, 13), "and of no other");
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

/// The image is built from nothing else in the folder.
#[test]
fn what_the_dockerfile_copies_is_let_through_to_the_builder() {
    let let_through = file(".dockerignore").1;
    let mut copied = 0;
    for line in file("Dockerfile").1.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from=")) {
        let words: Vec<_> = line.split_ascii_whitespace().skip(1).collect();
        for source in &words[..words.len() - 1] {
            assert!(let_through.lines().any(|line| line == format!("!{source}")), ".dockerignore keeps {source} back");
            copied += 1;
        }
    }
    assert!(copied >= 5, "{copied}");
}

/// The binary that is measured and tested is built as the one that ships.
#[test]
fn the_image_ci_and_the_benchmark_build_with_the_same_flags() {
    for path in ["Dockerfile", ".ci/run", "benches/profile/record", "benches/peers/prepare.py"] {
        let text = file(path).1;
        let ships = text.contains("benches/profile/ship ") || text.contains(r#""benches", "profile", "ship""#);
        assert!(ships, "{path} does not build what ships by benches/profile/ship");
        for own in ["target-feature", "--profile ship", "--profile\", \"ship", "SHIP_PROFILE"] {
            assert!(!text.contains(own), "{path} has {own} of its own");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let cargo =
        script(folder.path(), "cargo", "echo \"$RUSTC_WRAPPER|$SHIP_RUSTFLAGS|${RUSTFLAGS-}|${SHIP_PROFILE-}|$*\"");
    let ship = |arguments: &[&str], target: &str| {
        let mut command = Command::new(profile("ship"));
        command.args(arguments).env("CARGO", &cargo).env("SHIP_RUSTFLAGS", "-C more").env("RUSTFLAGS", "-C own");
        command.env("SHIP_TARGET", target).env("RUSTC_WRAPPER", "another");
        let told = command.env_remove("CARGO_TARGET_DIR").output().unwrap();
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        String::from_utf8(told.stdout).unwrap().trim_end().to_owned()
    };
    let other = "riscv64gc-unknown-linux-gnu";
    let is_static = "-C target-feature=+crt-static";
    let told = ship(&["build", "--bin", "tidegate"], other);
    let [wrapper, added, own, mode, words] = told.split('|').collect::<Vec<_>>()[..] else { panic!("{told}") };
    assert_eq!((Path::new(wrapper), added), (&*profile("rustc"), &*format!("{is_static} -C more")));
    // Cargo's own flag only says that something else is to be built.
    assert!(own.starts_with("--cfg=ship_") && !own.contains(' ') && mode.is_empty(), "{told}");
    assert_ne!(ship(&["static", "build"], other).split('|').nth(2), Some(own));
    assert_eq!(words, format!("build --profile ship --locked --target {other} --bin tidegate"));
    assert_eq!(ship(&["binary"], other), format!("target/{other}/ship/tidegate"));
    assert_eq!(ship(&["flags"], other), is_static);
    // The profile is for the compiler's own target, which must not be named: it is part of the functions' names.
    let told = ship(&["static", "bench", "--", "check"], "");
    assert!(told.ends_with("|none|bench --profile ship --locked -- check"), "{told}");
    assert_eq!(ship(&["binary"], ""), "target/ship/tidegate");
}

/// A file of benches/profile.
fn profile(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/profile").join(name)
}

/// A program of one line of shell.
fn script(folder: &Path, name: &str, line: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{line}\n")).expect("it can be written");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
    path
}

/// `cargo build --release` makes what ships, and nothing else is compiled in another way than cargo asks for.
#[test]
fn a_release_and_only_a_release_is_compiled_with_the_recorded_profile() {
    let settings = file(".cargo/config.toml").1;
    assert!(settings.contains("\nrustc-wrapper = \"benches/profile/rustc\"\n"), "{settings}");
    let folder = tempfile::tempdir().expect("a folder");
    let recorded = script(
        folder.path(),
        "recorded",
        &format!("if [ \"$1\" = -vV ]; then cat '{}'; else printf '%s\\n' \"$@\"; fi", profile("compiler").display()),
    );
    let another =
        script(folder.path(), "another", "if [ \"$1\" = -vV ]; then echo rustc 1.0; else printf '%s\\n' \"$@\"; fi");
    let compile = |compiler: &Path, arguments: &str, ship: Option<(&str, &str)>| {
        let mut command = Command::new(profile("rustc"));
        command
            .arg(compiler)
            .args(arguments.split(' '))
            .env_remove("SHIP_PROFILE")
            .env_remove("SHIP_RUSTFLAGS")
            .envs(ship);
        let told = command.output().unwrap();
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        let arguments = String::from_utf8(told.stdout).unwrap().trim_end().replace('\n', " ");
        (arguments, String::from_utf8(told.stderr).unwrap())
    };
    let library = "--crate-name hyper --crate-type lib -C opt-level=3 -C linker-plugin-lto -C codegen-units=1";
    let program = "--crate-name tidegate --crate-type bin -C opt-level=2 -C lto=fat -C codegen-units=1";
    for released in [library, program] {
        let (told, warned) = compile(&recorded, released, Some(("SHIP_RUSTFLAGS", "-C one -C two")));
        let added = told.strip_prefix(released).expect("the arguments come first");
        assert!(added.contains(" -C profile-use=") && added.contains("--symbol-ordering-file="), "{added}");
        assert!(added.ends_with(" -C one -C two") && warned.is_empty(), "{added}, {warned}");
        let file = added.split(' ').find_map(|flag| flag.strip_prefix("profile-use=")).expect("a profile");
        // LLVM's magic number of a profile that a compiler can use.
        assert!(fs::read(file).unwrap().starts_with(b"\xfflprofi\x81"), "{file} is no profile");
        assert_eq!(compile(&recorded, released, Some(("SHIP_PROFILE", "none"))), (released.to_owned(), String::new()));
        // Other linkers know no such order.
        let (told, _) = compile(&recorded, &format!("{released} -C link-arg=-fuse-ld=mold"), None);
        assert!(told.contains("-C profile-use=") && !told.contains("ordering"), "{told}");
    }
    // What runs during the build, a test, and a question of cargo's.
    for other in [
        "--crate-name syn --crate-type lib -C opt-level=z -C embed-bitcode=no",
        "--crate-name tidegate --test -C debuginfo=line-tables-only",
        "- --crate-name ___ --print=file-names",
    ] {
        assert_eq!(compile(&recorded, other, None), (other.to_owned(), String::new()));
    }
    // A compiler that names functions differently.
    for (compiler, words) in
        [(&another, program.to_owned()), (&recorded, format!("{program} --target aarch64-unknown-linux-gnu"))]
    {
        let (told, warned) = compile(compiler, &words, None);
        assert_eq!(told, words);
        assert!(warned.starts_with("benches/profile: tidegate is built without the recorded profile"), "{warned}");
        assert!(warned.contains("the profile is for rustc 1.") && warned.lines().count() == 1, "{warned}");
    }
    assert_eq!(compile(&another, library, None), (library.to_owned(), String::new()), "one warning is enough");
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
