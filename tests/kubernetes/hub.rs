//! A gate before many clusters: below `/c/NAME/`, kubectl, a manager of controller-runtime and the
//! tests of its client find what they find directly. For kubectl's streams, `exec` shows it.

use std::fs;

use serde_json::Value;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::gate::{Gate, Way};
use crate::support::{installed, now, say, turn, widgets};
use crate::{kubectl, manager};

#[test]
fn kubectl_cannot_tell_a_cluster_of_the_hub_from_the_api_server() {
    let test = "kubectl_cannot_tell_a_cluster_of_the_hub_from_the_api_server";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let _turn = turn::light();
    widgets::install(plane);
    kubectl::create_many(plane);
    let gate = Gate::hub(plane, &["one"], "preset = \"none\"");
    kubectl::compare(plane, &gate, &plane.master(), "hub");
    kubectl::compare_odd_paths(plane, &gate);
}

#[test]
fn a_controller_runtime_manager_works_through_the_hub_as_it_does_directly() {
    let test = "a_controller_runtime_manager_works_through_the_hub_as_it_does_directly";
    let Some(plane) = ControlPlane::shared(test) else { return };
    manager::manage(plane, "hub-", true, || Gate::hub(plane, &["one"], ""));
}

#[test]
fn controller_runtimes_client_tests_pass_through_the_hub() {
    let test = "controller_runtimes_client_tests_pass_through_the_hub";
    // As controller-runtime starts the API server for them; what they leave behind is in nobody's way.
    let flags = vec!["--disable-admission-plugins=ServiceAccount".to_owned()];
    let Some(folder) = installed::or_skip(test, installed::client_tests()) else { return };
    let _turn = turn::light();
    let Some(plane) = ControlPlane::own(test, Options { flags, ..Options::default() }) else { return };
    let gate = Gate::hub(&plane, &["one"], "");
    let user = plane.master();
    let report = plane.file("report.json");
    let flags = ["-test.run=^TestClient$".to_owned(), format!("--ginkgo.json-report={}", report.display())];
    let flags = flags.each_ref().map(String::as_str);
    let mut run = Way::Gate(&gate).command(&folder.join("client.test"), &user, &flags);
    run.current_dir(folder).env("USE_EXISTING_CLUSTER", "true");
    let begin = now();
    let ran = run.output().expect("it runs");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    let report: Value = serde_json::from_slice(&fs::read(&report).expect("it was written")).expect("JSON");
    let tests = report[0]["SpecReports"].as_array().expect("a list").iter().filter(|test| test["LeafNodeType"] == "It");
    let passed = tests.filter(|test| test["State"] == "passed").count();
    let took = begin.elapsed();
    let calls = plane.audit().of(&user.name).len();
    assert!(passed > 290 && calls > 1000 && gate.refusals() == 0.0, "{passed} passed, {calls} calls");
    say(format_args!(
        "controller-runtime: {passed} tests of its client passed through the hub, {calls} calls, {took:.1?}"
    ));
}
