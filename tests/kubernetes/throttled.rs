//! The API server's own priority and fairness answers 429, and the gate pauses accordingly.

use std::time::Duration;

use http::Method;

use crate::support::audit::Event;
use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, Options, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::{block_on, large, pause, say, turn};

/// The API server's Retry-After.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The time for which the herd runs.
const HERDING: Duration = Duration::from_secs(8);

/// The path that the herd asks for.
const PATH: &str = "/api/v1/namespaces/throttled/configmaps/herd-0";

/// The server may record the time of its answer a little after the gate has had the answer.
const AUDIT_SLACK: Duration = Duration::from_millis(5);

/// Calls of the key that had left before the gate had the 429 may arrive this much after it.
const ON_THE_WAY: Duration = Duration::from_millis(50);

#[test]
fn a_429_of_priority_and_fairness_pauses_its_key_for_the_time_it_names() {
    let test = "a_429_of_priority_and_fairness_pauses_its_key_for_the_time_it_names";
    let _turn = turn::alone();
    let flags = ["--max-requests-inflight=4", "--max-mutating-requests-inflight=2"].map(str::to_owned).to_vec();
    let Some(plane) = ControlPlane::own(test, Options { flags, ..Options::default() }) else { return };
    plane.namespace("throttled");
    large::fill(&plane, "large");
    let (sitter, user) = (plane.tester(), plane.tester());
    one_seat(&plane, &[&sitter, &user]);
    let gate = Gate::start(
        &plane,
        "preset = \"none\"\n[gates.kubernetes.backoff]\nstrategy = \"exponential\"\nbase = \"100ms\"\nmax = \"1s\"\nforget_after = \"1m\"",
    );
    let through = block_on(async {
        let way = Way::Direct(&plane);
        // A client that does not read its list keeps the only seat.
        let mut sitting = Connection::open(way, &sitter, Protocol::Http1).await;
        let seat = large::stall(&mut sitting, "large").await;
        let herd = herd(&plane, Way::Gate(&gate), &user);
        drop(seat);
        herd
    });
    let waves = assert_paused(&through);
    say(format_args!(
        "throttled: {} calls reached the server in {HERDING:?}, in {waves} waves; all were refused",
        through.len()
    ));
    block_on(async {
        let mut connection = Connection::open(Way::Gate(&gate), &user, Protocol::Http2).await;
        pause(RETRY_AFTER);
        let (status, body) = connection.call(Method::GET, PATH, "").await;
        assert_eq!(status, 404, "the seat is free again: {body}");
        assert!(gate.failing_keys() > 0.0, "that there is no such object says nothing of the key");
        plane.apply("{apiVersion: v1, kind: ConfigMap, metadata: {namespace: throttled, name: herd-0}}");
        let (status, body) = connection.call(Method::GET, PATH, "").await;
        assert_eq!(status, 200, "{body}");
    });
    assert!(gate.failing_keys() == 0.0, "a success forgets the key");
}

/// Only calls that had left before the first refusal may come with it; then none for as long as the
/// server asked.
fn assert_paused(events: &[Event]) -> usize {
    assert!(events.iter().all(|event| event.code == 429), "the server had to refuse all: {events:?}");
    let mut waves = 0;
    let mut trials = 0;
    let mut until = Duration::ZERO;
    let mut wave_ends = Duration::ZERO;
    for event in events {
        if event.received > wave_ends {
            assert!(event.received >= until, "{event:?} came {:?} too early", until.saturating_sub(event.received));
            waves += 1;
            trials = 0;
            wave_ends = event.answered + ON_THE_WAY;
        }
        trials += 1;
        assert!(waves == 1 || trials == 1, "{event:?} came while another of its key was being tried");
        until = event.answered + RETRY_AFTER - AUDIT_SLACK;
    }
    assert!((3..=10).contains(&waves), "{waves} waves in {HERDING:?}");
    waves
}

/// These users share one seat, and none of their calls queues for it.
fn one_seat(plane: &ControlPlane, users: &[&User]) {
    plane.apply(
        "{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: PriorityLevelConfiguration, metadata: {name: one-seat}, spec: {type: Limited, \
         limited: {nominalConcurrencyShares: 1, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}}}",
    );
    let subjects: Vec<String> =
        users.iter().map(|user| format!("{{kind: User, user: {{name: {}}}}}", user.name)).collect();
    plane.apply(&format!(
        "{{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {{name: one-seat}}, spec: {{matchingPrecedence: 100, \
         priorityLevelConfiguration: {{name: one-seat}}, rules: [{{subjects: [{}], \
         resourceRules: [{{verbs: ['*'], apiGroups: ['*'], resources: ['*'], namespaces: ['*'], clusterScope: true}}]}}]}}}}",
        subjects.join(", ")
    ));
    // The server takes a moment to follow its own configuration.
    plane.kubectl(&["wait", "--for=condition=Dangling=False", "flowschema/one-seat", "--timeout=30s"]);
}

fn herd(plane: &ControlPlane, way: Way<'_>, user: &User) -> Vec<Event> {
    let args = ["herd", "-reads", "-namespace", "throttled", "-count", "1000000", "-concurrency", "20"];
    let herd = Program::start(plane, way, user, &args);
    herd.wait_events("started", 1, Duration::from_secs(10));
    pause(HERDING);
    herd.process.signal("TERM");
    herd.finish(Duration::from_secs(30));
    plane.audit().of(&user.name).only(|event| event.resource == "configmaps").0
}
