//! The bucket, as the API server's audit log shows it.

use std::time::Duration;

use crate::support::audit::{Audit, worst_excess};
use crate::support::control_plane::ControlPlane;
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::{say, turn, widgets};

const RATE: f64 = 20.0;
const BURST: f64 = 30.0;
const OBJECTS: usize = 500;

/// The time between the gate releasing a call and the API server noting its arrival.
const AUDIT_SLACK: Duration = Duration::from_millis(100);

/// The time that a late driver may make up for, by the gate's own clock.
const LATENESS: Duration = Duration::from_millis(2);

#[test]
fn no_window_of_the_audit_log_holds_more_than_burst_and_rate_allow() {
    let Some(plane) = ControlPlane::shared("no_window_of_the_audit_log_holds_more_than_burst_and_rate_allow") else {
        return;
    };
    let _turn = turn::alone();
    let user = plane.master();
    widgets::install(plane);
    plane.namespace("rate");
    let gate = Gate::start(
        plane,
        "preset = \"none\"\n[gates.kubernetes.bucket]\nrate = 20.0\nburst = 30\n[gates.kubernetes.queue]\nmax_wait = \"30s\"",
    );
    let args = ["manage", "-namespace", "rate", "-create", "500", "-creators", "4"];
    let manager = Program::start(plane, Way::Gate(&gate), &user, &args);
    let limit = Duration::from_secs(120);
    manager.wait_events("created", 1, limit);
    widgets::wait_written(&manager, &widgets::names("widget", OBJECTS), 1, limit);
    assert!(manager.events("create_failed").is_empty(), "{:?}", manager.events("create_failed"));

    let metered = plane.audit().of(&user.name).only(|event| event.is_metered());
    let excess = worst_excess(&metered.arrivals(), RATE, BURST, AUDIT_SLACK);
    let used = share_of_rate_used(&metered);
    say(format_args!(
        "rate: {} metered calls; fullest window {excess:+.1} calls against burst + rate * (t + 100 ms); {:.2}% of the rate used",
        metered.len(),
        used * 100.0
    ));
    assert!(excess <= 0.0, "a window held {excess:.1} calls more than the bucket allows");
    assert!(used >= 0.99, "only {:.2}% of the rate was used while calls waited", used * 100.0);
    let left = gate.metered_departures(2 * OBJECTS);
    let excess = worst_excess(&left, RATE, BURST, LATENESS);
    say(format_args!("rate: the gate's own log of {} calls: fullest window {excess:+.2}", left.len()));
    assert!(excess <= 1e-6, "by its own log the gate let {excess:.2} calls too many out");
}

/// The share of the rate that was used between the moment when the burst was surely gone and the
/// last creation: some call always waited in that time.
fn share_of_rate_used(metered: &Audit) -> f64 {
    let arrivals = metered.only(|event| event.verb == "create").arrivals();
    let (begin, end) = (arrivals[arrivals.len() / 4], arrivals[arrivals.len() - 1]);
    let between = metered.only(|event| event.received > begin && event.received <= end).len();
    let between = f64::from(u32::try_from(between).expect("some hundreds"));
    between / (RATE * (end - begin).as_secs_f64())
}
