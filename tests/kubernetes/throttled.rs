//! The API server's own priority and fairness says 429, and the gate believes it.

use std::time::Duration;

use crate::support::audit::Event;
use crate::support::control_plane::{ControlPlane, Options, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::{say, turn};

/// What the API server says in Retry-After.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Calls of the key that had left before the gate had the 429 may arrive this much after it.
const ON_THE_WAY: Duration = Duration::from_millis(50);

#[test]
fn a_429_of_priority_and_fairness_pauses_its_key_for_the_time_it_names() {
    let test = "a_429_of_priority_and_fairness_pauses_its_key_for_the_time_it_names";
    let flags = ["--max-requests-inflight=4", "--max-mutating-requests-inflight=2"].map(str::to_owned).to_vec();
    let Some(plane) = ControlPlane::own(test, Options { flags, ..Options::default() }) else { return };
    let _turn = turn::alone();
    plane.namespace("throttled");
    let (direct_user, user) = (plane.tester(), plane.tester());
    one_seat(&plane, &[&direct_user, &user]);
    let gate = Gate::start(&plane, "preset = \"none\"\n[gates.kubernetes.backoff]\nbase = \"100ms\"\nmax = \"1s\"");
    let direct = herd(&plane, Way::Direct(&plane), &direct_user);
    let through = herd(&plane, Way::Gate(&gate), &user);
    let rejected = |events: &[Event]| events.iter().filter(|event| event.code == 429).count();
    say(format_args!(
        "throttled: of {} calls that arrived directly the server refused {}; of {} through the gate {}",
        direct.len(),
        rejected(&direct),
        through.len(),
        rejected(&through)
    ));
    assert!(rejected(&direct) > 0 && rejected(&through) > 0, "the server had to refuse some");
    for refusal in through.iter().filter(|event| event.code == 429) {
        let paused = refusal.answered + ON_THE_WAY..refusal.answered + RETRY_AFTER - ON_THE_WAY / 10;
        let early = through.iter().find(|event| paused.contains(&event.received));
        assert!(early.is_none(), "{:?} came although {:?} had said wait", early, refusal);
    }
}

/// These users share one seat, and nobody queues for it.
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
    let args = ["herd", "-reads", "-namespace", "throttled", "-count", "200", "-concurrency", "50"];
    Program::start(plane, way, user, &args).finish(Duration::from_secs(120));
    plane.audit().of(&user.name).only(|event| event.resource == "configmaps").0
}
