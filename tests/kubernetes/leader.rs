//! The lease while everything else is saturated, and its release at the end.

use std::time::Duration;

use crate::support::control_plane::ControlPlane;
use crate::support::gate::{Gate, Way};
use crate::support::programs::{Line, Program};
use crate::support::{pause, quantile, say, turn, wait_for};

/// Seconds for which calls wait in vain; `TIDEGATE_SATURATION` changes it.
const SATURATION: u64 = 120;

#[test]
fn the_leader_keeps_its_lease_while_a_thousand_calls_wait() {
    let Some(plane) = ControlPlane::shared("the_leader_keeps_its_lease_while_a_thousand_calls_wait") else { return };
    let _turn = turn::alone();
    plane.namespace("leader");
    let gate = Gate::start(
        plane,
        "preset = \"none\"\n[gates.kubernetes.bucket]\nrate = 1.0\nburst = 1\n[gates.kubernetes.queue]\nmax_wait = \"30m\"",
    );
    let (user, herd_user) = (plane.master(), plane.master());
    let args = ["leader", "-namespace", "leader", "-retry", "500ms", "-name"];
    let through = Program::start(plane, Way::Gate(&gate), &user, &[&args[..], &["through"]].concat());
    let direct = Program::start(plane, Way::Direct(plane), &user, &[&args[..], &["direct"]].concat());
    let watches = Program::start(plane, Way::Gate(&gate), &user, &["watches", "-namespace", "leader", "-count", "20"]);
    let start = Duration::from_secs(30);
    through.wait_events("leading", 1, start);
    direct.wait_events("leading", 1, start);
    watches.wait_events("probe", 3, start);
    let herd_args = ["herd", "-reads", "-namespace", "leader", "-count", "1000000", "-concurrency", "1000"];
    let herd = Program::start(plane, Way::Gate(&gate), &herd_user, &herd_args);
    wait_for("a thousand calls wait", start, || (gate.waiting() >= 995.0).then_some(()));
    // A thousand clients that start are a matter of the two cores, not of the lease.
    pause(Duration::from_secs(2));
    let settled = (through.events("lease").len(), direct.events("lease").len());
    let seconds = std::env::var("TIDEGATE_SATURATION").ok().and_then(|text| text.parse().ok()).unwrap_or(SATURATION);
    pause(Duration::from_secs(seconds));
    assert!(gate.waiting() >= 990.0, "only {} calls wait", gate.waiting());

    herd.process.must_run();
    assert!(herd.events("failed").is_empty(), "{:?}", herd.events("failed").first());
    assert_eq!(through.events("leading").len(), 1);
    assert!(through.events("stopped").is_empty(), "the lease was lost");
    assert!(
        watches.events("interrupted").is_empty(),
        "{} watches were interrupted",
        watches.events("interrupted").len()
    );
    let calls = |program: &Program, from: usize| program.events("lease")[from..].to_vec();
    let (gate_calls, direct_calls) = (calls(&through, settled.0), calls(&direct, settled.1));
    assert!(gate_calls.iter().all(|line| line.number("code") == 200), "{gate_calls:?}");
    print_and_check(seconds, &gate_calls, &direct_calls);
}

fn print_and_check(seconds: u64, through: &[Line], direct: &[Line]) {
    let times = |lines: &[Line]| lines.iter().map(Line::took).collect::<Vec<_>>();
    let (through, direct) = (times(through), times(direct));
    let (p99, direct_p99) = (quantile(&through, 0.99), quantile(&direct, 0.99));
    say(format_args!(
        "leader: {seconds} s with 1,000 calls waiting, {} lease calls: p50 {:.1?} p99 {p99:.1?} most {:.1?} through the gate, \
         p50 {:.1?} p99 {direct_p99:.1?} most {:.1?} directly",
        through.len(),
        quantile(&through, 0.5),
        quantile(&through, 1.0),
        quantile(&direct, 0.5),
        quantile(&direct, 1.0)
    ));
    assert!(p99 < Duration::from_secs(1) + direct_p99, "lease calls take {p99:?}, {direct_p99:?} directly");
}

#[test]
fn a_gate_and_its_controller_told_to_stop_together_release_the_lease() {
    let Some(plane) = ControlPlane::shared("a_gate_and_its_controller_told_to_stop_together_release_the_lease") else {
        return;
    };
    let _turn = turn::light();
    crate::support::widgets::install(plane);
    plane.namespace("stopping");
    let gate = Gate::start(plane, "");
    let user = plane.master();
    let manager = Program::start(plane, Way::Gate(&gate), &user, &["manage", "-namespace", "stopping"]);
    manager.wait_events("leading", 1, Duration::from_secs(30));
    let holder = || {
        plane.kubectl(&["get", "lease", "widget-controller", "-n", "stopping", "-o", "jsonpath={.spec.holderIdentity}"])
    };
    assert!(!holder().is_empty(), "somebody leads");
    let before = plane.audit().of(&user.name).len();

    // The gate first: this is the worse order, and one that the kubelet may choose.
    gate.signal("TERM");
    manager.process.signal("TERM");
    manager.finish(Duration::from_secs(30));
    let status = gate.wait(Duration::from_secs(30));
    assert!(status.success(), "the gate ended with {status}");
    assert_eq!(holder(), "", "the lease was not released");
    let after = plane.audit().of(&user.name);
    let released = after.0[before..].iter().any(|event| event.resource == "leases" && event.code == 200);
    assert!(released, "the release is not in the audit log");
}
