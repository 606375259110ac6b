//! The identity that RBAC sees: that of the client if the gate passes credentials on, and the
//! gate's if it adds its own.

use std::process::Output;

use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::turn;

const WHOAMI: [&str; 4] = ["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
const AS_ALICE: [&str; 2] = ["--as=alice", "--as-group=tidegate:testers"];

fn kubectl(plane: &ControlPlane, gate: &Gate, user: &User, args: &[&str]) -> Output {
    let mut run = Way::Gate(gate).command(&plane.binaries().path("kubectl"), user, args);
    run.env("HOME", plane.file("")).output().expect("kubectl runs")
}

fn printed(said: &Output) -> String {
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8_lossy(&said.stdout).into_owned()
}

#[test]
fn a_gate_that_passes_credentials_through_is_nobody_itself() {
    let Some(plane) = ControlPlane::shared("a_gate_that_passes_credentials_through_is_nobody_itself") else { return };
    let _turn = turn::light();
    let gate = Gate::start(plane, "");
    let user = plane.tester();
    assert_eq!(printed(&kubectl(plane, &gate, &user, &WHOAMI)), user.name);
    assert_eq!(printed(&kubectl(plane, &gate, &user, &[&WHOAMI[..], &AS_ALICE].concat())), "alice");
    let nobody = User { name: "nobody".to_owned(), token: "wrong".to_owned() };
    let said = kubectl(plane, &gate, &nobody, &["get", "configmaps"]);
    assert!(!said.status.success() && said.stdout.is_empty(), "a wrong token got through");
}

#[test]
fn a_gate_that_injects_lets_nobody_be_anybody_else() {
    let Some(plane) = ControlPlane::shared("a_gate_that_injects_lets_nobody_be_anybody_else") else { return };
    let _turn = turn::light();
    let own = plane.tester();
    let gate = Gate::injecting(plane, &own);
    // In-cluster clients send the token that the gate has written for the pod's containers.
    let token = std::fs::read_to_string(gate.folder().join("token")).expect("the gate has written it");
    let client = User { name: "the pod".to_owned(), token };
    assert_eq!(printed(&kubectl(plane, &gate, &client, &WHOAMI)), own.name);
    let said = kubectl(
        plane,
        &gate,
        &client,
        &[&["get", "--raw", "/api/v1/namespaces/default/configmaps"][..], &AS_ALICE].concat(),
    );
    let stderr = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success(), "the gate let the client impersonate");
    assert!(stderr.contains("(Forbidden)") && stderr.contains("impersonation is off at this gate"), "{stderr}");
    // On loopback any client that reaches the port acts as the gate, with any identity of its own.
    let stranger = plane.master();
    assert_eq!(printed(&kubectl(plane, &gate, &stranger, &WHOAMI)), own.name);
    let seen = plane.audit();
    assert_eq!(seen.of(&stranger.name).len(), 0, "a stranger's credentials reached the API server");
    let calls = seen.of(&own.name);
    assert!(calls.0.iter().all(|event| event.code < 400 && !event.uri.contains("/configmaps")), "{calls:?}");
}
