//! A controller written with kube-rs, the other ecosystem whose clients stand behind the gate.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Client, Config, ResourceExt};
use serde_json::json;

use crate::support::audit::worst_excess;
use crate::support::control_plane::ControlPlane;
use crate::support::gate::{Gate, Way};
use crate::support::{block_on, now, say, turn};

const OBJECTS: usize = 100;

/// The script of the clients in every language, in another process of this program.
pub(crate) const KUBE_RS: &str = "kube_rs::the_script_of_every_client";

/// The variable with the path of the file for its output.
pub(crate) const REPORT: &str = "TIDEGATE_REPORT";

#[test]
#[ignore = "a client that the tests of in-cluster configuration start"]
fn the_script_of_every_client() {
    let of = variable("TIDEGATE_SCRIPT");
    let (namespace, name) = of.split_once(' ').expect("a namespace and a name");
    let printed = block_on(script(namespace, name)).expect("every call is answered");
    std::fs::write(variable(REPORT), printed).expect("the folder is the test's");
}

async fn script(namespace: &str, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    let client = Client::try_from(Config::infer().await?)?;
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    let selector = format!("metadata.name={name}");
    let mine = ListParams::default().fields(&selector);
    let value = |map: &ConfigMap| map.data.as_ref().and_then(|data| data.get("value").cloned()).unwrap_or_default();
    let mut printed = String::new();
    let found = maps.list(&mine).await?;
    writeln!(printed, "list {}", found.items.len())?;
    let version = found.metadata.resource_version.unwrap_or_default();
    let mut seen = maps.watch(&WatchParams::default().fields(&selector), &version).await?.boxed();
    let one: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}, "data": {"value": "one"}}))?;
    writeln!(printed, "created {}", value(&maps.create(&PostParams::default(), &one).await?))?;
    let two = Patch::Merge(json!({"data": {"value": "two"}}));
    writeln!(printed, "patched {}", value(&maps.patch(name, &PatchParams::default(), &two).await?))?;
    writeln!(printed, "list {}", maps.list(&mine).await?.items.len())?;
    let reason = |answer: Result<ConfigMap, kube::Error>| match answer {
        Err(kube::Error::Api(status)) => format!("{} {}", status.code, status.reason),
        other => format!("{other:?}"),
    };
    writeln!(printed, "create again: {}", reason(maps.create(&PostParams::default(), &one).await))?;
    writeln!(printed, "get absent: {}", reason(maps.get(&format!("{name}-absent")).await))?;
    maps.delete(name, &DeleteParams::default()).await?;
    writeln!(printed, "deleted")?;
    let mut events = Vec::new();
    while let Some(event) = seen.next().await {
        match event? {
            WatchEvent::Added(map) => events.push(format!("ADDED {}", value(&map))),
            WatchEvent::Modified(map) => events.push(format!("MODIFIED {}", value(&map))),
            WatchEvent::Deleted(map) => {
                events.push(format!("DELETED {}", value(&map)));
                break;
            }
            other => events.push(format!("{other:?}")),
        }
    }
    writeln!(printed, "watch {}", events.join(", "))?;
    writeln!(printed, "list {}", maps.list(&mine).await?.items.len())?;
    Ok(printed)
}

fn variable(name: &str) -> String {
    std::env::var(name).expect("the test that starts it says so")
}

#[test]
fn a_kube_rs_controller_converges_through_the_gate() {
    let Some(plane) = ControlPlane::shared("a_kube_rs_controller_converges_through_the_gate") else { return };
    let _turn = turn::light();
    plane.namespace("kube-rs");
    let maps: Vec<_> = (0..OBJECTS)
        .map(|number| {
            let metadata = json!({"name": format!("map-{number}"), "namespace": "kube-rs"});
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": "1"}})
        })
        .collect();
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": maps}).to_string());
    let gate = Gate::start(plane, "preset = \"none\"\n[gates.kubernetes.bucket]\nrate = 20.0\nburst = 10");
    let user = plane.master();
    let took = block_on(async {
        let maps = maps_of(&Way::Gate(&gate).kubeconfig(&user)).await;
        let all = maps_of(&plane.kubeconfig(&ControlPlane::harness())).await;
        let begin = now();
        tokio::select! {
            () = run(maps) => panic!("the controller ended"),
            () = converged(all) => begin.elapsed(),
            () = deadline(Duration::from_secs(60)) => panic!("not converged within a minute"),
        }
    });
    let metered = plane.audit().of(&user.name).only(|event| event.is_metered());
    let patches = metered.only(|event| event.verb == "patch" && event.code == 200).len();
    // Other tests run beside this one, so this does not judge the API server's punctuality.
    let excess = worst_excess(&gate.metered_departures(patches), 20.0, 10.0, Duration::from_millis(2));
    say(format_args!(
        "kube-rs: {patches} patches in {took:.1?}; fullest window {excess:+.2} against the bucket's bound"
    ));
    assert_eq!(patches, OBJECTS);
    assert!(excess <= 1e-6, "a window held {excess:.1} calls too many");
}

async fn maps_of(kubeconfig: &std::path::Path) -> Api<ConfigMap> {
    let file = Kubeconfig::read_from(kubeconfig).expect("a valid kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a valid kubeconfig");
    Api::namespaced(Client::try_from(config).expect("a client"), "kube-rs")
}

async fn run(maps: Api<ConfigMap>) {
    let controller = Controller::new(maps.clone(), watcher::Config::default());
    controller
        .run(observe, |_, _, _| Action::requeue(Duration::from_secs(1)), Arc::new(maps))
        .for_each(|_| async {})
        .await;
}

async fn observe(map: Arc<ConfigMap>, maps: Arc<Api<ConfigMap>>) -> Result<Action, kube::Error> {
    let field = |name: &str| map.data.as_ref().and_then(|data| data.get(name)).cloned();
    if let Some(value) = field("value").filter(|value| field("observed").as_ref() != Some(value)) {
        let patch = Patch::Merge(json!({"data": {"observed": value}}));
        maps.patch(&map.name_any(), &PatchParams::default(), &patch).await?;
    }
    Ok(Action::await_change())
}

async fn converged(maps: Api<ConfigMap>) {
    loop {
        let list = maps.list(&ListParams::default()).await.expect("the API server answers");
        let done =
            list.iter().filter(|map| map.data.as_ref().is_some_and(|data| data.contains_key("observed"))).count();
        if done == OBJECTS {
            return;
        }
        deadline(Duration::from_millis(100)).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "a real control plane runs on real time")]
async fn deadline(time: Duration) {
    tokio::time::sleep(time).await;
}
