//! Loops of real operators before a real API server: each is named within a minute, with the right
//! words, beside two hundred healthy objects; and where it is enforced, slow.

mod at_rest;
mod judged;
mod operator;
mod planted;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::process::command;
use crate::support::programs::Program;
use crate::support::{now, pause, say, turn, wait_for, widgets};

const MINUTE: Duration = Duration::from_secs(60);

/// An operator with a mistake, in a namespace with one widget.
fn looping(plane: &ControlPlane, gate: &Gate, user: &User, namespace: &str, more: &[&str]) -> Program {
    let args = [&["loop", "-namespace", namespace], more].concat();
    Program::start(plane, Way::Gate(gate), user, &args)
}

fn widget(plane: &ControlPlane, namespace: &str) {
    plane.namespace(namespace);
    widgets::set(plane, namespace, &["looped".to_owned()], 1);
}

/// A service account that may read widgets and not write them.
fn reader(plane: &ControlPlane, namespace: &str) -> User {
    plane.apply(&format!(
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: reader, namespace: {namespace}}}\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: reader, namespace: {namespace}}}\n\
         rules: [{{apiGroups: [tidegate.test], resources: [widgets], verbs: [get, list, watch]}}]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: reader, namespace: {namespace}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}}\n\
         subjects: [{{kind: ServiceAccount, name: reader, namespace: {namespace}}}]\n"
    ));
    let token = plane.kubectl(&["create", "token", "reader", "-n", namespace, "--duration=1h"]);
    User { name: format!("system:serviceaccount:{namespace}:reader"), token: token.trim().to_owned() }
}

/// The hot objects of a gate.
fn hot(gate: &Gate) -> Vec<Value> {
    gate.status().pointer("/gates/0/hot").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// The same in words.
fn named(gate: &Gate) -> Vec<String> {
    let text = |hot: &Value, field: &str| hot[field].as_str().unwrap_or_default().to_owned();
    hot(gate).iter().map(|hot| format!("{}: {}", text(hot, "object"), text(hot, "says"))).collect()
}

/// The loops that `tidegate audit` finds in a log.
fn audit(log: &Path) -> Vec<Value> {
    let found = log.with_extension("json");
    let mut run = command(env!("CARGO_BIN_EXE_tidegate"), ["audit"]);
    let out = run.arg(log).arg("--json").arg(&found).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found = std::fs::read_to_string(&found).expect("it is written");
    let mut found: Value = serde_json::from_str(&found).expect("JSON");
    let Value::Array(loops) = found["loops"].take() else { panic!("no list: {found}") };
    loops
}

/// Those in these namespaces, in words.
fn audited(plane: &ControlPlane, namespaces: &[&str]) -> Vec<String> {
    let mut loops: Vec<String> = audit(&plane.audit_log())
        .iter()
        .filter_map(|found| {
            let object = found["object"].as_str()?;
            let status = found["status"].as_u64().map(|status| format!(" {status}")).unwrap_or_default();
            let is_ours = namespaces.iter().any(|namespace| object.split('/').next() == Some(namespace));
            is_ours.then(|| format!("{} {object}{status}", found["kind"].as_str().unwrap_or_default()))
        })
        .collect();
    loops.sort();
    loops
}

#[test]
fn each_loop_is_named_within_a_minute_beside_two_hundred_healthy_objects() {
    let Some(plane) = ControlPlane::shared("each_loop_is_named_within_a_minute_beside_two_hundred_healthy_objects")
    else {
        return;
    };
    let _turn = turn::alone();
    widgets::install(plane);
    plane.namespace("calm");
    let healthy = widgets::names("healthy", 200);
    widgets::set(plane, "calm", &healthy, 1);
    let gate = Gate::start(plane, "");
    let manager = Program::start(plane, Way::Gate(&gate), &plane.master(), &["manage", "-namespace", "calm"]);
    widgets::wait_written(&manager, &healthy, 1, MINUTE);

    ["feeds", "fights", "denied"].into_iter().for_each(|namespace| widget(plane, namespace));
    let (user, reader) = (plane.master(), reader(plane, "denied"));
    let begin = now();
    let _loops = [
        looping(plane, &gate, &user, "feeds", &["-agent", "restless/1"]),
        looping(plane, &gate, &user, "fights", &["-agent", "kustomize-controller/1", "-label", "us"]),
        looping(plane, &gate, &user, "fights", &["-agent", "my-operator/2", "-label", "them"]),
        looping(plane, &gate, &reader, "denied", &["-agent", "denied/1"]),
    ];
    let says = wait_for("three loops are named", MINUTE + Duration::from_secs(15), || {
        Some(named(&gate)).filter(|named| named.len() >= 3)
    });
    say(format_args!("loops: named after {:.0?}: {says:#?}", begin.elapsed()));
    let line = |namespace: &str| {
        let begins = format!("widgets.tidegate.test {namespace}/looped: ");
        says.iter().find_map(|line| line.strip_prefix(&begins)).unwrap_or_else(|| panic!("{namespace}: {says:#?}"))
    };
    assert!(line("feeds").starts_with("written ") && line("feeds").contains(" by restless/1, another body each time"));
    assert!(line("fights").contains(": two writers take turns, kustomize-controller/1 and my-operator/2"));
    assert!(line("denied").starts_with("403 for ever: every update of its status by denied/1 got it, "));
    assert_eq!(says.len(), 3, "and no healthy one: {says:#?}");
    assert_eq!(
        audited(plane, &["feeds", "fights", "denied", "calm"]),
        ["denied denied/looped 403", "fast feeds/looped", "two_writers fights/looped"]
    );

    // They are written again, and are no loop.
    widgets::set(plane, "calm", &healthy, 2);
    widgets::wait_written(&manager, &healthy, 2, MINUTE);
    assert_eq!(named(&gate).len(), 3, "{:#?}", named(&gate));
}

#[test]
fn an_event_on_the_object_tells_its_owner_once() {
    let Some(plane) = ControlPlane::shared("an_event_on_the_object_tells_its_owner_once") else { return };
    let _turn = turn::alone();
    widgets::install(plane);
    widget(plane, "told");
    let user = plane.tester();
    let gate = Gate::injecting_with(plane, &user, "events = true");
    let _loop = looping(plane, &gate, &user, "told", &["-agent", "restless/1"]);
    let events = || {
        let fields = "jsonpath={range .items[*]}{.involvedObject.kind} {.involvedObject.name} {.message}{\"\\n\"}{end}";
        plane.kubectl(&["get", "events", "-n", "told", "--field-selector", "reason=HotObject", "-o", fields])
    };
    let told = wait_for("an Event", 2 * MINUTE, || Some(events()).filter(|told| !told.is_empty()));
    say(format_args!("loops: {told}"));
    assert!(told.starts_with("Widget looped written ") && told.contains(" by restless/1, another body each time"));
    let uid = plane.kubectl(&["get", "widget", "looped", "-n", "told", "-o", "jsonpath={.metadata.uid}"]);
    let described = plane.kubectl(&["describe", "widget", "looped", "-n", "told"]);
    assert!(described.contains("HotObject") && described.contains(&uid), "{described}");
    pause(Duration::from_secs(10));
    assert_eq!(events().lines().count(), 1, "{}", events());
}

#[test]
fn where_it_is_enforced_a_loop_is_below_one_write_in_a_second_and_no_other_object_waits() {
    let name = "where_it_is_enforced_a_loop_is_below_one_write_in_a_second_and_no_other_object_waits";
    let Some(plane) = ControlPlane::shared(name) else { return };
    let _turn = turn::alone();
    widgets::install(plane);
    plane.namespace("others");
    widget(plane, "held");
    let healthy = widgets::names("healthy", 200);
    let gate = Gate::start(plane, "per_key = { writes = \"30/min\", enforce = true }");
    let manager = Program::start(plane, Way::Gate(&gate), &plane.master(), &["manage", "-namespace", "others"]);
    let user = plane.master();
    let _loop = looping(plane, &gate, &user, "held", &["-agent", "restless/1"]);
    wait_for("the loop is held", MINUTE, || {
        (gate.metric("tidegate_refusals_total", &["reason=\"per_key\""]) >= 20.0).then_some(())
    });
    widgets::set(plane, "others", &healthy, 1);
    widgets::wait_written(&manager, &healthy, 1, MINUTE);

    // Half a minute of the audit log, in which it goes on.
    let writes = || {
        let writes = plane.audit().of(&user.name).only(|event| event.name == "looped" && event.verb == "update");
        writes.only(|event| event.code == 200).arrivals()
    };
    let before = writes().len();
    pause(Duration::from_secs(30));
    let in_half_a_minute = writes().len() - before;
    say(format_args!("loops: {before} writes before, {in_half_a_minute} in half a minute"));
    assert!((1..30).contains(&in_half_a_minute), "{in_half_a_minute}");
    let refused = |labels: &[&str]| gate.metric("tidegate_refusals_total", labels);
    assert_eq!(refused(&[]), refused(&["reason=\"per_key\""]), "only the loop is refused");
    assert!(named(&gate).iter().any(|line| line.contains("refused by this gate")), "{:#?}", named(&gate));
}
