//! A controller-runtime manager with KUBECONFIG, leader election and three hundred informers, one
//! for each of three kinds in a hundred namespaces. It lists and watches through the gate as it
//! does directly, with WatchList and without, and sees every object.

use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::support::audit::Audit;
use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::{block_on, say, turn};

const NAMESPACES: usize = 100;
const INFORMERS: usize = 3 * NAMESPACES;
const STREAMED: &str = "a_manager_with_300_informers_and_watch_list_works_as_it_does_directly";
const LISTED: &str = "a_manager_with_300_informers_that_list_works_as_it_does_directly";
const START: Duration = Duration::from_secs(60);

#[test]
fn a_manager_with_300_informers_and_watch_list_works_as_it_does_directly() {
    let Some(plane) = ControlPlane::shared(STREAMED) else { return };
    // Under ordinary limits: the gate's defaults.
    manage(plane, "streamed-", true, || Gate::start(plane, ""));
}

#[test]
fn a_manager_with_300_informers_that_list_works_as_it_does_directly() {
    let Some(plane) = ControlPlane::shared(LISTED) else { return };
    manage(plane, "listed-", false, || Gate::start(plane, ""));
}

/// Runs the manager directly and through a gate, and compares what the API server sees.
pub(crate) fn manage(plane: &ControlPlane, prefix: &str, watch_list: bool, gate: impl FnOnce() -> Gate) {
    let _turn = turn::light();
    create(plane, "/api/v1/namespaces", (0..NAMESPACES).map(|number| format!("{prefix}{number}")));
    let gate = gate();
    let users = [plane.master(), plane.master()];
    let env = [("KUBE_FEATURE_WatchListClient", if watch_list { "true" } else { "false" })];
    let count = NAMESPACES.to_string();

    // One after the other, because there is one lease.
    let ways = [("direct", Way::Direct(plane)), ("through", Way::Gate(&gate))];
    let synced = [0, 1].map(|number| {
        let (late, way) = ways[number];
        let args = ["manager", "-prefix", prefix, "-count", &count, "-late", late];
        let manager = Program::start_with(plane, way, &users[number], &args, &env);
        manager.wait_events("leading", 1, START);
        let synced = manager.wait_events("synced", 1, START).remove(0);
        assert_eq!(synced.number("count"), 300);
        for number in 0..NAMESPACES {
            create(plane, &format!("/api/v1/namespaces/{prefix}{number}/configmaps"), [late.to_owned()]);
        }
        let seen = manager.wait_events("seen", NAMESPACES, START);
        assert_eq!(seen.len(), NAMESPACES, "an object was seen twice");
        manager.process.signal("TERM");
        let last = manager.finish(Duration::from_secs(30));
        assert!(last.iter().any(|line| line.event() == "stopped" && line.text("error").is_empty()), "{last:?}");
        synced.took()
    });
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

/// Creates objects with these names, past any gate.
fn create(plane: &ControlPlane, path: &str, names: impl IntoIterator<Item = String>) {
    block_on(async {
        let mut connection = Connection::open(Way::Direct(plane), &ControlPlane::harness(), Protocol::Http2).await;
        for name in names {
            let body = json!({"metadata": {"name": name}}).to_string();
            let (status, answer) = connection.call(Method::POST, path, &body).await;
            assert_eq!(status, 201, "{answer}");
        }
    });
}

/// The requests of the informers.
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
