//! The wall clock jumps, with libfaketime under the gate alone: a day ahead, then two days back.
//! The gate uses monotonic time, so no limit may notice.

use std::time::Duration;

use crate::support::audit::worst_excess;
use crate::support::control_plane::ControlPlane;
use crate::support::fake_clock::FakeClock;
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::{say, turn};

#[test]
fn a_wall_clock_that_jumps_moves_no_limit_and_fails_no_call() {
    let test = "a_wall_clock_that_jumps_moves_no_limit_and_fails_no_call";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let Some(clock) = FakeClock::or_skip(test) else { return };
    let _turn = turn::light();
    plane.namespace("jumping");
    let settings = "preset = \"none\"\n[gates.kubernetes.bucket]\nrate = 50.0\nburst = 10\nadapt = \"off\"\n[gates.kubernetes.queue]\nmax_wait = \"30s\"";
    let gate = Gate::start_with(plane, settings, |run| {
        clock.put_under(run);
        run.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    });
    let user = plane.master();
    let args = ["herd", "-namespace", "jumping", "-reads", "-count", "600", "-concurrency", "20"];
    let herd = Program::start(plane, Way::Gate(&gate), &user, &args);
    let limit = Duration::from_secs(60);
    for (offset, calls) in [("+1d", 150), ("-1d", 300), ("+0", 450)] {
        herd.wait_events("get", calls, limit);
        clock.set(offset);
    }
    let lines = herd.finish(limit);
    let errors = lines.last().expect("it reports when it is done").number("errors");
    let left = gate.metered_departures(600);
    let excess = worst_excess(&left, 50.0, 10.0, Duration::from_millis(2));
    let walls = gate.wall_times();
    let (first, last) = (walls.iter().min().expect("calls"), walls.iter().max().expect("calls"));
    say(format_args!(
        "clock: the gate's wall clock went over {:.0} hours while 600 calls took {:.1?}: {errors} errors, fullest window {excess:+.2}",
        (*last - *first).as_secs_f64() / 3600.0,
        left[left.len() - 1] - left[0]
    ));
    assert!(*last - *first > Duration::from_secs(40 * 3600), "the clock did not jump: {:?}", *last - *first);
    assert_eq!(errors, 0);
    assert!(excess <= 1e-6, "{excess:.2} calls too many left in one window");
}
