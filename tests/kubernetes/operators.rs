//! What an ordinary operator is told no to is not a failure: a controller-runtime operator that
//! polls for what is not there, writes over what has changed, creates what exists and comes back
//! all the time is never slowed, also where 401 and 403 count as failures.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::{say, turn, widgets};

const LIMIT: Duration = Duration::from_secs(60);
const OBJECTS: usize = 20;
const ROUNDS: usize = 5;

/// The counts of calls by verb and status.
type Calls = BTreeMap<(String, u64), usize>;

#[test]
fn an_operators_404s_conflicts_and_requeues_are_never_slowed() {
    let test = "an_operators_404s_conflicts_and_requeues_are_never_slowed";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let _turn = turn::light();
    widgets::install(plane);
    let breaker = "bucket = \"off\"\nretry_bucket = \"off\"\n[gates.kubernetes.backoff]\nhold = \"0s\"\n\
        failures = [\"401\", \"403\", \"429\", \"500\", \"502\", \"503\", \"504\", \"transport\", \"left\"]";
    let gate = Gate::start(plane, breaker);
    let [direct, through] =
        [("operated-direct", Way::Direct(plane)), ("operated-through", Way::Gate(&gate))].map(|(namespace, way)| {
            plane.namespace(namespace);
            widgets::set(plane, namespace, &widgets::names("thing", OBJECTS), 1);
            let user = plane.master();
            let args = ["operate", "-namespace", namespace, "-rounds", &ROUNDS.to_string()];
            let operator = Program::start(plane, way, &user, &args);
            operator.wait_events("round", OBJECTS * ROUNDS, LIMIT);
            for line in operator.events("said_no") {
                let code = line.number("code");
                assert!([404, 409, 422].contains(&code), "{code}: {line:?}");
            }
            calls(plane, &user)
        });
    // Each was told no as often as directly, by the server itself, and by nobody else.
    assert_eq!(through, direct);
    let of = |verb: &str, code| through.get(&(verb.to_owned(), code)).copied().unwrap_or_default();
    let rounds = OBJECTS * ROUNDS;
    assert_eq!((of("get", 404), of("delete", 404)), (rounds, rounds), "{through:?}");
    assert_eq!((of("update", 409), of("create", 409)), (rounds, rounds - OBJECTS), "{through:?}");
    let waited = ["backoff", "trial", "one_at_a_time", "pause"]
        .map(|reason| gate.metric("tidegate_wait_seconds_count", &[&format!("reason=\"{reason}\"")]));
    assert_eq!((gate.refusals(), gate.failing_keys(), waited), (0.0, 0.0, [0.0; 4]));
    say(format_args!("{rounds} rounds of an operator, of which the gate refused and held none: {through:?}"));
}

/// Counts the operator's own calls.
fn calls(plane: &ControlPlane, user: &User) -> Calls {
    let mut calls = Calls::new();
    let own = ["configmaps", "secrets"];
    let seen = plane
        .audit()
        .of(&user.name)
        .only(|event| own.contains(&event.resource.as_str()) && event.verb != "watch" && event.verb != "list");
    for event in seen.0 {
        *calls.entry((event.verb, event.code)).or_default() += 1;
    }
    calls
}
