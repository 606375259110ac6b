//! Argo CD's application controller with three clusters through one hub: by the Secret of the recipe's
//! page, it lists, watches, applies and heals in each with that cluster's own token.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;

use crate::ports::free_port;
use crate::store_server::program;
use crate::store_servers::Node;
use crate::support::control_plane::{ControlPlane, Options, User};
use crate::support::gate::Gate;
use crate::support::process::{Process, command, scratch_dir};
use crate::support::{installed, now, say, turn, wait_for};

const PAGE: &str = include_str!("../../docs/recipes/many-clusters.md");
const CLUSTERS: [&str; 3] = ["north", "south", "east"];
const LIMIT: Duration = Duration::from_secs(120);

/// What git holds for each cluster.
const OBJECTS: &str = r#"
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {value: from-git}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: worker}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: worker}, spec: {replicas: 1, selector: {matchLabels: {app: worker}},
  template: {metadata: {labels: {app: worker}}, spec: {serviceAccountName: worker, containers: [{name: main, image: none}]}}}}
"#;

/// What Argo CD finds in its own cluster, beside its definitions.
const SETTINGS: &str = r#"
{apiVersion: v1, kind: ConfigMap, metadata: {name: argocd-cm, namespace: argocd, labels: {app.kubernetes.io/part-of: argocd}},
  data: {cluster.inClusterEnabled: "false"}}
---
{apiVersion: v1, kind: Secret, metadata: {name: argocd-secret, namespace: argocd, labels: {app.kubernetes.io/part-of: argocd}},
  stringData: {server.secretkey: tests}}
---
{apiVersion: argoproj.io/v1alpha1, kind: AppProject, metadata: {name: default, namespace: argocd},
  spec: {sourceRepos: ["*"], destinations: [{server: "*", namespace: "*"}], clusterResourceWhitelist: [{group: "*", kind: "*"}]}}
"#;

#[test]
fn argo_cd_keeps_three_clusters_through_one_hub() {
    let test = "argo_cd_keeps_three_clusters_through_one_hub";
    let Some(store) = program() else { return };
    let Some(folder) = installed::or_skip(test, installed::argocd()) else { return };
    let _turn = turn::light();
    let Some(plane) = ControlPlane::own(test, Options::default()) else { return };
    let gate = Gate::hub(&plane, &CLUSTERS, "");
    let dir = scratch_dir();
    let store = Node::start(&store, dir.path(), &[]);
    plane.namespace("argocd");
    for name in ["application-crd.yaml", "appproject-crd.yaml"] {
        plane.kubectl(&["apply", "--server-side", "-f", &folder.join(name).display().to_string()]);
    }
    plane.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]);
    plane.apply(SETTINGS);
    let users = CLUSTERS.map(|cluster| (cluster, plane.tester()));
    let repository = repository(dir.path());
    for (cluster, user) in &users {
        plane.apply(&format!("{}---\n{}", secret(&gate, cluster, user), application(cluster, &repository)));
    }
    let begin = now();
    let running = start(&plane, &folder, dir.path(), store.port);
    let value = |cluster: &str| kubectl(&plane, cluster, &["configmap", "settings"], "{.data.value}");
    let account = |cluster: &str| kubectl(&plane, cluster, &["serviceaccount", "worker"], "{.metadata.uid}");
    let synced = || {
        running.iter().for_each(Process::must_run);
        let is_synced =
            |cluster: &&str| kubectl(&plane, "argocd", &["application", cluster], "{.status.sync.status}") == "Synced";
        CLUSTERS.iter().all(is_synced).then_some(())
    };
    wait_for("it has applied what git says", LIMIT, synced);
    assert_eq!(CLUSTERS.map(value), ["from-git"; 3]);
    let applied = begin.elapsed();

    let accounts = CLUSTERS.map(account);
    let begin = now();
    for cluster in CLUSTERS {
        let change =
            ["patch", "configmap", "settings", "-n", cluster, "--type=merge", "-p", r#"{"data":{"value":"by hand"}}"#];
        plane.kubectl(&change);
        plane.kubectl(&["delete", "serviceaccount", "worker", "-n", cluster]);
    }
    wait_for("it has healed what was changed by hand", LIMIT, || {
        let is_new = |(cluster, old): (&str, &String)| !["", old].contains(&account(cluster).as_str());
        let all_new = CLUSTERS.into_iter().zip(&accounts).all(is_new);
        (all_new && CLUSTERS.map(value) == ["from-git"; 3]).then_some(())
    });
    let healed = begin.elapsed();
    let calls = users.each_ref().map(|(cluster, user)| judge(&plane, &gate, cluster, user));
    assert_eq!(gate.refusals(), 0.0);
    say(format_args!(
        "Argo CD, three clusters through one hub: applied in {applied:.1?}, healed in {healed:.1?}; {calls:?} calls"
    ));
}

/// Checks that a cluster was called through the hub with its own token, and for its own objects
/// alone. Returns the number of calls.
fn judge(plane: &ControlPlane, gate: &Gate, cluster: &str, user: &User) -> usize {
    let seen = plane.audit().of(&user.name);
    let is_read = |verb: &str| ["get", "list", "watch"].contains(&verb);
    let count = |verb: &str| seen.only(|event| event.verb == verb && event.code == 200).len();
    assert!(
        count("list") > 10 && count("watch") > 10,
        "{cluster}: {} lists, {} watches",
        count("list"),
        count("watch")
    );
    let own = format!("/namespaces/{cluster}");
    let writes = seen.only(|event| !is_read(&event.verb));
    for event in &writes.0 {
        assert!(event.uri.contains(&own) || event.resource == "namespaces", "{cluster}: {event:?}");
    }
    // Once each to apply, and once more to heal.
    for (resource, times) in [("configmaps", 2), ("serviceaccounts", 2), ("deployments", 1)] {
        let count = writes.only(|event| event.resource == resource).len();
        assert!(count >= times, "{cluster}: {count} writes of {resource}");
    }
    let labels = [format!("cluster=\"{cluster}\""), "decision=\"go\"".to_owned()];
    let through = gate.metric("tidegate_hub_calls_total", &labels.each_ref().map(String::as_str));
    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    let arrived = seen.len() as f64;
    assert!(through >= arrived, "{cluster}: {arrived} calls, of which {through} through the hub");
    seen.len()
}

/// The text of a field of an object; empty if there is none.
fn kubectl(plane: &ControlPlane, namespace: &str, object: &[&str], field: &str) -> String {
    let output = format!("jsonpath={field}");
    let args = [&["get"], object, &["-n", namespace, "--ignore-not-found", "-o", &output]].concat();
    plane.kubectl(&args)
}

/// The page's Secret for Argo CD.
fn secret(gate: &Gate, cluster: &str, user: &User) -> String {
    let block = PAGE.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the page has one");
    let ca = fs::read(gate.ca_file()).expect("it was written");
    let server = format!("https://127.0.0.1:{}/c/{cluster}", gate.port());
    let mut text = block.to_owned();
    for (on_page, here) in [
        ("https://tidegate.tidegate-system.svc:8443/c/prod", server.as_str()),
        ("name: prod", &format!("name: {cluster}")),
        ("TOKEN", &user.token),
        ("GATE-CA", &base64::engine::general_purpose::STANDARD.encode(ca)),
    ] {
        assert!(text.contains(on_page), "the page's Secret has no {on_page}");
        text = text.replace(on_page, here);
    }
    text
}

/// An application that Argo CD keeps as git says.
fn application(cluster: &str, repository: &str) -> String {
    format!(
        "{{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {{name: {cluster}, namespace: argocd}}, spec: {{project: default, \
         source: {{repoURL: '{repository}', path: app, targetRevision: HEAD}}, destination: {{name: {cluster}, namespace: {cluster}}}, \
         syncPolicy: {{automated: {{selfHeal: true, prune: true}}, syncOptions: [CreateNamespace=true]}}}}}}"
    )
}

/// A git repository with the objects; returns its address.
fn repository(dir: &Path) -> String {
    let repository = dir.join("repository");
    fs::create_dir_all(repository.join("app")).expect("the folder is ours");
    fs::write(repository.join("app/objects.yaml"), OBJECTS).expect("the folder is ours");
    let commit = "-c user.name=tests -c user.email=tests@tidegate.test commit --quiet --message=objects";
    for args in ["init --quiet", "add app", commit] {
        let out = command("git", args.split(' ')).current_dir(&repository).output().expect("there is git");
        assert!(out.status.success(), "git {args}: {}", String::from_utf8_lossy(&out.stderr));
    }
    format!("file://{}", repository.display())
}

/// Starts Argo CD's server of repositories and, once that listens, its application controller.
fn start(plane: &ControlPlane, folder: &Path, dir: &Path, store: u16) -> [Process; 2] {
    let port = free_port();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let run = |name: &str, flags: String| {
        let mut run = command(folder.join("argocd"), [name, "--redis", &format!("127.0.0.1:{store}")]);
        run.args(flags.split(' ')).args(["--metrics-port", &free_port().to_string()]);
        run.env_remove("KUBECONFIG").env("HOME", dir).env("TMPDIR", dir).env("PATH", &path);
        run.env("ARGOCD_GPG_ENABLED", "false").env("ARGOCD_ASK_PASS_SOCK", dir.join("ask.sock"));
        Process::start(name, dir, run)
    };
    let server = run("repositories", format!("--address 127.0.0.1 --metrics-address 127.0.0.1 --port {port}"));
    wait_for("the server of repositories listens", LIMIT, || {
        server.must_run();
        TcpStream::connect(("127.0.0.1", port)).ok()
    });
    let config = plane.kubeconfig(&plane.master()).display().to_string();
    [server, run("controller", format!("--kubeconfig {config} --namespace argocd --repo-server 127.0.0.1:{port}"))]
}
