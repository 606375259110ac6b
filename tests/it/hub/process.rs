//! A process with a hub: its folder of clusters is followed, and the kubeconfig that it writes leads
//! to each.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::echo;
use crate::cli::input::get;
use crate::command::{Running, config, end, start, tidegate, with_config};
use crate::ports::free_port;

pub(super) fn kubeconfig(server: SocketAddr, token: &str) -> String {
    format!(
        "clusters: [{{ name: k, cluster: {{ server: 'http://{server}' }} }}]\nusers: [{{ name: u, user: {{ token: {token} }} }}]\n\
         contexts: [{{ name: c, context: {{ cluster: k, user: u }} }}]\n"
    )
}

fn hub(port: u16, clusters: &Path, more: &str) -> String {
    format!("[admin]\nlisten = \"off\"\n[gates.hub]\nclusters = {clusters:?}\nlisten = \"127.0.0.1:{port}\"\n{more}")
}

pub(super) fn running(path: &Path) -> Running {
    let mut gate = start(with_config("run", path));
    gate.ready();
    gate
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_clusters_is_followed_without_a_restart() {
    let (api, port, folder) = (echo("api").await, free_port(), tempfile::tempdir().expect("a folder"));
    let place = folder.path().to_owned();
    let write = move |name: &str, text: String| fs::write(place.join(name), text).expect("it can be written");
    write("a.yaml", kubeconfig(api.address, "canary-a"));
    write("wrong.yaml", "clusters: []".to_owned());
    let (_config, path) = config(&hub(port, folder.path(), ""));
    tokio::task::spawn_blocking(move || {
        let mut gate = running(&path);
        assert!(
            gate.has_said("cluster \"wrong\": cannot be called: ") && gate.has_said("2 clusters"),
            "it is said at the start"
        );
        assert!(get(port, "/c/a/api").ends_with("api /api Bearer canary-a"));
        assert!(get(port, "/c/wrong/api").contains("expected a current-context, or a single context"));
        write("b.yaml", kubeconfig(api.address, "canary-b"));
        write("a.yaml", kubeconfig(api.address, "another"));
        gate.line("the new configuration is in force");
        assert!(get(port, "/c/a/api").ends_with("api /api Bearer another"));
        assert!(get(port, "/c/b/api").ends_with("api /api Bearer canary-b"));
        fs::remove_file(folder.path().join("b.yaml")).expect("it can be removed");
        gate.line("the new configuration is in force");
        assert!(get(port, "/c/b/api").contains("there is no cluster \\\"b\\\""));
        fs::rename(folder.path(), folder.path().with_extension("away")).expect("it can be moved");
        let said = gate.line("stays in force");
        assert!(said.contains("gates.hub.clusters") && said.contains("expected a kubeconfig with contexts"), "{said}");
        assert!(get(port, "/c/a/api").ends_with("api /api Bearer another"), "the old clusters stay");
        fs::rename(folder.path().with_extension("away"), folder.path()).expect("it can be moved");
        assert!(!gate.end().join("\n").contains("canary"));
    })
    .await
    .expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_come_and_go_whatever_else_is_wrong() {
    let (api, port, folder) = (echo("api").await, free_port(), tempfile::tempdir().expect("a folder"));
    fs::write(folder.path().join("a"), kubeconfig(api.address, "x")).expect("it can be written");
    let right = hub(port, folder.path(), "");
    let (_config, path) = config(&right);
    tokio::task::spawn_blocking(move || {
        let mut gate = running(&path);
        for (more, said) in [("colour = \"blue\"\n", "is invalid"), ("shadow = true\n", "needs a restart")] {
            fs::write(&path, format!("{right}{more}")).expect("it can be written");
            gate.signal("-HUP");
            gate.line(said);
            let comes = folder.path().join("comes");
            fs::write(&comes, kubeconfig(api.address, "comes")).expect("it can be written");
            gate.signal("-HUP");
            gate.line("the clusters are as their files say");
            assert!(get(port, "/c/comes/api").ends_with("api /api Bearer comes"));
            fs::remove_file(&comes).expect("it can be removed");
            gate.signal("-HUP");
            gate.line("the clusters are as their files say");
            assert!(get(port, "/c/comes/api").contains("there is no cluster"));
            assert!(get(port, "/c/a/api").ends_with("api /api Bearer x"));
        }
    })
    .await
    .expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_comes_and_goes_a_hundred_times_fails_no_call() {
    let (api, port, folder) = (echo("api").await, free_port(), tempfile::tempdir().expect("a folder"));
    fs::write(folder.path().join("stays"), kubeconfig(api.address, "x")).expect("it can be written");
    let more = "bucket = \"off\"\nin_flight = \"off\"\n";
    let (_config, path) = config(&hub(port, folder.path(), more));
    tokio::task::spawn_blocking(move || {
        let mut gate = running(&path);
        let (over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let load: Vec<_> = (0..2)
            .map(|_| {
                let (over, calls) = (Arc::clone(&over), Arc::clone(&calls));
                std::thread::spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let answer = get(port, "/c/stays/api");
                        assert!(answer.ends_with("api /api Bearer x"), "{answer}");
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let comes = folder.path().join("comes.yaml");
        for _ in 0..100 {
            fs::write(&comes, kubeconfig(api.address, "comes")).expect("it can be written");
            gate.signal("-HUP");
            gate.line("the new configuration is in force");
            let answer = get(port, "/c/comes/api");
            assert!(answer.ends_with("api /api Bearer comes"), "{answer}");
            fs::remove_file(&comes).expect("it can be removed");
            gate.signal("-HUP");
            gate.line("the new configuration is in force");
            assert!(get(port, "/c/comes/api").contains("there is no cluster"));
        }
        over.store(true, Ordering::Relaxed);
        load.into_iter().for_each(|load| load.join().expect("no call failed"));
        assert!(calls.load(Ordering::Relaxed) > 100, "there was load");
    })
    .await
    .expect("no panic");
}

/// The memory of a process that is its own, in KiB.
fn own_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel says");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_idle_clusters_take_less_than_40_mib() {
    let (api, port, folder) = (echo("api").await, free_port(), tempfile::tempdir().expect("a folder"));
    for number in 0..200 {
        fs::write(folder.path().join(format!("c{number}")), kubeconfig(api.address, "x")).expect("it can be written");
    }
    let (_config, path) = config(&hub(port, folder.path(), ""));
    tokio::task::spawn_blocking(move || {
        let gate = running(&path);
        let uncalled = own_memory(gate.id());
        for number in 0..200 {
            assert!(get(port, &format!("/c/c{number}/api")).ends_with("api /api Bearer x"));
        }
        let called = own_memory(gate.id());
        println!("{uncalled} KiB before a call, {called} KiB when each was called");
        assert!(called < 40 << 10, "{called} KiB");
    })
    .await
    .expect("no panic");
}

#[test]
fn a_kubeconfig_of_all_clusters_leads_through_the_hub() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("config");
    let context = |name: &str, user: &str| format!("{{ name: '{name}', context: {{ cluster: k, user: {user} }} }}");
    let text = format!(
        "clusters: [{{ name: k, cluster: {{ server: 'https://x' }} }}]\nusers: [{{ name: u, user: {{ token: canary }} }}, {{ name: v, user: {{}} }}]\n\
         contexts: [{}, {}, {}]\n",
        context("one", "u"),
        context("other", "v"),
        context("a/b", "u")
    );
    fs::write(&source, text).expect("it can be written");
    let written = |more: &str, options: &[&str]| {
        let (_config, path) = config(&hub(8001, &source, more));
        let arguments = ["kubeconfig", "--config", path.to_str().expect("text")];
        end(tidegate(arguments.into_iter().chain(options.iter().copied())))
    };
    let injects = written("", &["--hub"]);
    assert_eq!((injects.code, injects.err.as_str()), (Some(0), ""));
    let expected = "apiVersion: v1\nkind: Config\nclusters:\n- name: \"one\"\n  cluster:\n    server: \"http://127.0.0.1:8001/c/one\"\n\
                    - name: \"other\"\n  cluster:\n    server: \"http://127.0.0.1:8001/c/other\"\nusers:\n- name: tidegate\n  user: {}\n\
                    contexts:\n- name: \"one\"\n  context:\n    cluster: \"one\"\n    user: tidegate\n- name: \"other\"\n  context:\n    \
                    cluster: \"other\"\n    user: tidegate\n";
    assert_eq!(injects.out, expected);
    let passes = written("credentials = \"pass_through\"\n", &["--hub", "--gate", "hub"]).out;
    assert!(passes.starts_with("# The gate passes your credentials on: ") && !passes.contains("users:\n"), "{passes}");
    assert!(passes.contains("cluster: \"other\"\n    user: \"v\"\n") && !passes.contains("canary"), "{passes}");
    assert_eq!(written("", &[]).out, expected, "it is the only gate");
    let two = written("[gates.one]\nupstream = \"https://x\"\nlisten = \"127.0.0.1:8002\"\n", &["--hub"]);
    assert_eq!(two.out, expected, "the only one with clusters");
    let other =
        written("[gates.one]\nupstream = \"https://x\"\nlisten = \"127.0.0.1:8002\"\n", &["--hub", "--gate", "one"]);
    assert!(other.code != Some(0) && other.out.is_empty(), "{}", other.out);
    assert!(other.err.contains("gate \"one\" has one upstream: leave --hub out, or choose"), "{}", other.err);
}

#[test]
fn what_is_wrong_with_the_clusters_is_said_by_check() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("config");
    fs::write(&source, "contexts: []\n").expect("it can be written");
    let (_config, path) = config(&hub(8001, &source, ""));
    let said = end(with_config("check", &path));
    let expected = format!(
        "gates.hub.clusters: {}: it has no cluster; expected a kubeconfig with contexts, or a folder",
        source.display()
    );
    assert!(said.code == Some(78) && said.err.contains(&expected), "{}", said.err);
}
