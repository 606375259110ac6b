//! A controller-runtime manager by KUBECONFIG, with leader election and three hundred informers, one for each of three kinds in a hundred
//! namespaces. It lists and watches through the gate as it does directly, with WatchList and without, and sees every object.

use std::time::Duration;

use serde_json::json;

use crate::support::audit::Audit;
use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::{say, turn};

const NAMESPACES: usize = 100;
const INFORMERS: usize = 3 * NAMESPACES;
const START: Duration = Duration::from_secs(60);

#[test]
fn a_manager_with_300_informers_and_watch_list_works_as_it_does_directly() {
    manage("a_manager_with_300_informers_and_watch_list_works_as_it_does_directly", "streamed-", true);
}

#[test]
fn a_manager_with_300_informers_that_list_works_as_it_does_directly() {
    manage("a_manager_with_300_informers_that_list_works_as_it_does_directly", "listed-", false);
}

fn manage(test: &str, prefix: &str, watch_list: bool) {
    let Some(plane) = ControlPlane::shared(test) else { return };
    let _turn = turn::light();
    let names: Vec<String> = (0..NAMESPACES).map(|number| format!("{prefix}{number}")).collect();
    apply(
        plane,
        names.iter().map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).collect(),
    );
    // Its ordinary limits: the gate's own defaults.
    let gate = Gate::start(plane, "");
    let users = [plane.master(), plane.master()];
    let env = [("KUBE_FEATURE_WatchListClient", if watch_list { "true" } else { "false" })];
    let count = NAMESPACES.to_string();
    let start =
        |way, user| Program::start_with(plane, way, user, &["manager", "-prefix", prefix, "-count", &count], &env);

    // One after the other: there is one lease.
    let mut synced = Vec::new();
    for (number, way) in [Way::Direct(plane), Way::Gate(&gate)].into_iter().enumerate() {
        let manager = start(way, &users[number]);
        manager.wait_events("leading", 1, START);
        let line = manager.wait_events("synced", 1, START).remove(0);
        assert_eq!(line.number("count"), 300);
        synced.push(line.took());
        let late = |name: &String| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": name}});
        apply(plane, names.iter().map(late).collect());
        let seen = manager.wait_events("seen", NAMESPACES, START);
        assert_eq!(seen.len(), NAMESPACES, "an object was seen twice");
        manager.process.signal("TERM");
        let last = manager.finish(Duration::from_secs(30));
        assert!(last.iter().any(|line| line.event() == "stopped" && line.text("error").is_empty()), "{last:?}");
        plane.kubectl(&["delete", "configmaps", "--all-namespaces", "--field-selector=metadata.name=late"]);
    }
    let [direct, through] = users.map(|user| Informed::of(&plane.audit(), &user));
    assert_eq!(direct.watches, INFORMERS, "{direct:?}");
    assert_eq!(direct.lists, if watch_list { 0 } else { INFORMERS }, "{direct:?}");
    assert_eq!(through, direct);
    say(format_args!(
        "controller-runtime, {INFORMERS} informers, WatchList {}: in step after {:.1?} directly, {:.1?} through the gate; {through:?}",
        if watch_list { "on" } else { "off" },
        synced[0],
        synced[1]
    ));
}

fn apply(plane: &ControlPlane, items: Vec<serde_json::Value>) {
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
}

/// How the informers asked.
#[derive(Debug, PartialEq, Eq)]
struct Informed {
    lists: usize,
    watches: usize,
    with_initial_events: usize,
    refused: usize,
}

impl Informed {
    fn of(audit: &Audit, user: &User) -> Self {
        let seen = audit
            .of(&user.name)
            .only(|event| ["configmaps", "secrets", "serviceaccounts"].contains(&event.resource.as_str()));
        let count = |verb: &str| seen.only(|event| event.verb == verb).len();
        Self {
            lists: count("list"),
            watches: count("watch"),
            with_initial_events: seen.only(|event| event.uri.contains("sendInitialEvents=true")).len(),
            refused: seen.only(|event| event.code >= 400).len(),
        }
    }
}
