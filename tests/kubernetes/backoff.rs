//! Backoff by key, with failures that come from the real API server.

use std::collections::HashSet;
use std::time::Duration;

use http::Method;

use crate::support::audit::{Event, worst_excess};
use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::{Line, Program};
use crate::support::webhook::Webhook;
use crate::support::{block_on, pause, quantile, say, turn, wait_for, widgets};

const BASE: Duration = Duration::from_millis(200);
const MAX: Duration = Duration::from_millis(3_200);

/// The server may record the time of its answer a little after the gate has had the answer.
const AUDIT_SLACK: Duration = Duration::from_millis(5);

const LIMIT: Duration = Duration::from_secs(90);

#[test]
fn one_object_that_always_fails_backs_off_and_does_not_slow_two_hundred_others() {
    let name = "one_object_that_always_fails_backs_off_and_does_not_slow_two_hundred_others";
    let Some(plane) = ControlPlane::shared(name) else { return };
    let _turn = turn::alone();
    widgets::install(plane);
    plane.namespace("control");
    plane.namespace("failing");
    let webhook = Webhook::start(plane, "failing");
    webhook.fail(["broken".to_owned()]);
    let gate = Gate::start(
        plane,
        "preset = \"none\"\n[gates.kubernetes.bucket]\nrate = 20.0\nburst = 30\n\
         [gates.kubernetes.backoff]\nstrategy = \"exponential\"\nbase = \"200ms\"\nmax = \"3200ms\"\nforget_after = \"1m\"",
    );
    let healthy = widgets::names("healthy", 200);
    let (alone, _, _) = converge(plane, &gate, "control", &healthy);
    widgets::set(plane, "failing", &["broken".to_owned()], 1);
    let (beside, manager, user) = converge(plane, &gate, "failing", &healthy);
    say(format_args!("backoff: 200 healthy objects need {alone:.2?} alone, {beside:.2?} beside one that fails"));
    assert!(beside <= alone.mul_f64(1.2), "{beside:.2?} is more than 1.2 times {alone:.2?}");

    let attempts = wait_for("seven attempts on the failing object", LIMIT, || {
        Some(attempts_on(plane, &user, "broken")).filter(|attempts| attempts.len() >= 7)
    });
    drop(manager);
    assert_spaced(&attempts);
    heals(plane, &gate, &webhook, &user);
}

/// Returns the time that the controller takes for all of them, from its first to its last write.
fn converge(plane: &ControlPlane, gate: &Gate, namespace: &str, names: &[String]) -> (Duration, Program, User) {
    widgets::set(plane, namespace, names, 1);
    // The bucket must be full again before anything is measured.
    pause(Duration::from_secs(2));
    let user = plane.master();
    let manager = Program::start(plane, Way::Gate(gate), &user, &["manage", "-namespace", namespace]);
    let written = widgets::wait_written(&manager, names, 1, LIMIT);
    let begin = written.values().map(|line| line.at().saturating_sub(line.took())).min().expect("some");
    let end = written.values().map(Line::at).max().expect("some");
    (end.saturating_sub(begin), manager, user)
}

fn attempts_on(plane: &ControlPlane, user: &User, name: &str) -> Vec<Event> {
    plane
        .audit()
        .of(&user.name)
        .only(|event| event.resource == "widgets" && event.name == name && event.verb == "update")
        .0
}

fn assert_spaced(attempts: &[Event]) {
    let mut least = BASE;
    let mut gaps = Vec::new();
    for pair in attempts.windows(2) {
        assert_eq!(pair[0].code, 500, "{:?}", pair[0]);
        let gap = pair[1].received.saturating_sub(pair[0].answered);
        gaps.push(gap);
        assert!(gap + AUDIT_SLACK >= least, "an attempt came {gap:?} after the last, before {least:?}: {gaps:?}");
        least = (least * 2).min(MAX);
    }
    say(format_args!("backoff: gaps between attempts {gaps:.0?}"));
}

/// One `max` after the cause is gone, the next attempt goes through and the key is forgotten.
fn heals(plane: &ControlPlane, gate: &Gate, webhook: &Webhook, user: &User) {
    webhook.fail([]);
    pause(MAX);
    assert!(gate.failing_keys() >= 1.0, "the key is still known before the attempt");
    let path = "/apis/tidegate.test/v1/namespaces/failing/widgets/broken/status";
    let current = plane.kubectl(&["get", "--raw", path]);
    let (status, body) = block_on(async {
        let mut connection = Connection::open(Way::Gate(gate), user, Protocol::Http2).await;
        connection.call(Method::PUT, path, &current).await
    });
    assert_eq!(status, 200, "{body}");
    wait_for("the key is gone from /metrics", Duration::from_secs(2), || (gate.failing_keys() == 0.0).then_some(()));
}

#[test]
fn a_thousand_objects_failing_together_do_not_pin_the_worker() {
    let Some(plane) = ControlPlane::shared("a_thousand_objects_failing_together_do_not_pin_the_worker") else { return };
    let _turn = turn::alone();
    widgets::install(plane);
    plane.namespace("thousand");
    let webhook = Webhook::start(plane, "thousand");
    let broken = widgets::names("broken", 1_000);
    webhook.fail(broken.iter().cloned());
    // A retry that must wait for its token is refused at once: if a thousand were held, however
    // briefly, they would keep the only worker busy.
    let gate = Gate::start(
        plane,
        "preset = \"none\"\n[gates.kubernetes.bucket]\nrate = 1000.0\nburst = 1000\n\
         [gates.kubernetes.retry_bucket]\nrate = 10.0\nburst = 10\n[gates.kubernetes.backoff]\nstrategy = \"exponential\"\nbase = \"1s\"\nmax = \"60s\"",
    );
    let healthy = widgets::names("healthy", 40);
    let user = plane.master();
    widgets::set(plane, "thousand", &healthy, 1);
    let manager = Program::start(plane, Way::Gate(&gate), &user, &["manage", "-namespace", "thousand"]);
    widgets::wait_written(&manager, &healthy, 1, LIMIT);
    let control = edit_rounds(plane, &manager, &healthy, 2);
    widgets::set(plane, "thousand", &broken, 1);
    wait_for("all thousand have failed", LIMIT, || (gate.failing_keys() >= 1_000.0).then_some(()));
    let beside = edit_rounds(plane, &manager, &healthy, 10);
    compare(&control, &beside);

    let refused: Vec<Duration> =
        manager.events("reconcile").iter().filter(|line| line.number("code") == 429).map(Line::took).collect();
    let (median, most) = (quantile(&refused, 0.5), quantile(&refused, 0.99));
    say(format_args!(
        "backoff: {} retries refused in {median:.1?} (p50), {most:.1?} (p99); {} refusals",
        refused.len(),
        gate.refusals()
    ));
    assert!(median < Duration::from_millis(50), "a refused retry takes {median:?}: it was held, not refused");
    let excess = worst_excess(&retries(plane, &user), 10.0, 10.0, Duration::from_millis(100));
    say(format_args!("backoff: fullest window of retries {excess:+.1} against the retry bucket's bound"));
    assert!(excess <= 0.0, "a window held {excess:.1} retries too many");
}

/// The arrivals of all attempts on failing objects except the first of each.
fn retries(plane: &ControlPlane, user: &User) -> Vec<Duration> {
    let mut tried = HashSet::new();
    let attempts =
        plane.audit().of(&user.name).only(|event| event.name.starts_with("broken") && event.verb == "update");
    assert!(attempts.0.iter().all(|event| event.code == 500));
    attempts.0.into_iter().filter(|event| !tried.insert(event.name.clone())).map(|event| event.received).collect()
}

/// Edits all of them five times; returns the time that each write took its worker.
fn edit_rounds(plane: &ControlPlane, manager: &Program, names: &[String], first: u64) -> Vec<Duration> {
    let mut took = Vec::new();
    for value in first..first + 5 {
        widgets::set(plane, "thousand", names, i64::try_from(value).expect("small"));
        let written = widgets::wait_written(manager, names, value, LIMIT);
        took.extend(written.values().map(Line::took));
    }
    took
}

fn compare(control: &[Duration], beside: &[Duration]) {
    let (before, after) = (quantile(control, 0.5), quantile(beside, 0.5));
    let (before_p90, after_p90) = (quantile(control, 0.9), quantile(beside, 0.9));
    say(format_args!(
        "backoff: a healthy object's reconcile takes {before:.1?} (p50) {before_p90:.1?} (p90) alone, \
         {after:.1?} (p50) {after_p90:.1?} (p90) beside a thousand that fail"
    ));
    // A few milliseconds are noise of the two cores, not an effect of the gate.
    let most = before.mul_f64(1.5).max(before + Duration::from_millis(5));
    assert!(after <= most, "{after:?} is more than 1.5 times {before:?}");
}
