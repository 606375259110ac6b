//! Three gates as processes that share one bucket, and are given another rate one after the other
//! under load, as by a rolling update: the strictest of those that run holds for all.

use crate::shared::fleet::{LATE, RATE, Shape, length};
use crate::shared::outages::Stage;

/// Half of the usual rate.
const LOWER: f64 = RATE / 2.0;

/// Lets the gates go on, and expects no more calls than the lower rate gives.
fn keeps_to_the_lower(stage: &Stage, when: &str) {
    stage.until_all_ask();
    let seen = stage.watch(length());
    stage.fleet.judge(when, &seen, 0.0, 0.47);
    // And what was promised ahead at the rate before.
    let most = LOWER * (length().as_secs_f64() + LATE) + RATE * 0.2;
    #[expect(clippy::cast_precision_loss, reason = "few calls")]
    let calls = seen.calls as f64;
    assert!(calls <= most, "{when}: {calls} calls, {most} at most");
}

#[test]
fn p11_p13_a_rate_that_is_lowered_holds_with_the_first_gate_and_one_that_is_raised_with_the_last() {
    let Some(mut stage) = Stage::shaped(Shape::default(), |_, store| store) else { return };
    println!("| rates | calls | of 40/s | fair (Jain) | over | asks | light, p99 |");
    stage.until_all_ask();
    stage.fleet.judge("40, 40, 40", &stage.watch(length()), 0.0, 0.97);

    stage.fleet.reload(0, LOWER);
    keeps_to_the_lower(&stage, "20, 40, 40");
    stage.fleet.reload(1, LOWER);
    stage.fleet.reload(2, LOWER);
    keeps_to_the_lower(&stage, "20, 20, 20");
    stage.fleet.reload(0, RATE);
    stage.fleet.reload(1, RATE);
    keeps_to_the_lower(&stage, "40, 40, 20");

    stage.fleet.reload(2, RATE);
    stage.until_all_ask();
    stage.fleet.judge("40, 40, 40", &stage.watch(length()), 0.0, 0.95);
}
