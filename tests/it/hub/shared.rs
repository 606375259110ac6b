//! Hubs in processes of their own that share a bucket for each cluster through a real store.

use std::fs;

use super::echo;
use super::process::{kubeconfig, running};
use crate::cli::input::get;
use crate::command::config;
use crate::ports::free_port;
use crate::store_server::{members, program, spawn};

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_ends_leaves_its_share_of_each_cluster_at_once() {
    let Some(program) = program() else { return };
    let (api, folder) = (echo("api").await, tempfile::tempdir().expect("a folder"));
    let clusters = folder.path().join("clusters");
    fs::create_dir(&clusters).expect("it can be made");
    for name in ["a", "b"] {
        fs::write(clusters.join(name), kubeconfig(api.address, "x")).expect("it can be written");
    }
    tokio::task::spawn_blocking(move || {
        let _store = spawn(&program, folder.path(), &[]);
        let socket = folder.path().join("s");
        let hub = || {
            let port = free_port();
            let text = format!(
                "[admin]\nlisten = \"off\"\nsocket = \"off\"\n[stores.main]\nurl = \"unix:{}\"\ntimeout = \"2s\"\n[gates.hub]\n\
                 clusters = {clusters:?}\nlisten = \"127.0.0.1:{port}\"\nbucket = {{ rate = 40, burst = 20, shared = \"fleet\" }}\n",
                socket.display()
            );
            let (config, path) = config(&text);
            (running(&path), port, config)
        };
        let (first, second) = (hub(), hub());
        for (_, port, _) in [&first, &second] {
            for name in ["a", "b"] {
                assert!(get(*port, &format!("/c/{name}/api/v1/pods")).ends_with("api /api/v1/pods Bearer x"));
            }
        }
        assert_eq!(members(&socket), [2, 2]);
        assert_eq!(first.0.terminate(), Some(0));
        assert_eq!(members(&socket), [1, 1]);
    })
    .await
    .expect("no panic");
}
