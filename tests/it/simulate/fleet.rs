//! A thousand gates on one store, with what a question costs a real server (`shared::store`), and
//! what happens past the most that it can answer.

use std::time::Duration;

use tidegate::simulate;

/// What a question of one of a thousand gates takes a Valkey or Redis on a busy machine.
const COST: Duration = Duration::from_micros(1_900);

/// The calls of a fleet within its quota, and how busy it keeps its store.
struct FleetRun {
    used: f64,
    over: f64,
    busy: f64,
}

/// Plays a thousand gates that want a fifth more than their common rate, each as much.
fn played(rate: u32, seconds: u32) -> FleetRun {
    let numbers =
        ["replicas=1000".into(), format!("rate={rate}"), format!("burst={rate}"), format!("length={seconds}s")];
    let mut setup = simulate::find("shared-account").expect("built in").set_up(&numbers).expect("they make sense");
    setup.scenario.store.cost = COST;
    for one in &mut setup.scenario.controllers {
        one.objects = 100;
        one.changes = Some(1.2 * f64::from(rate) / 1_000.0);
    }
    let shared = setup.limits.iter().find(|limits| limits.name == "shared").expect("it has them");
    let together = simulate::play(&setup.scenario, shared).together;
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let run = FleetRun {
        used: together.sent as f64 / f64::from(rate * seconds),
        over: together.over,
        busy: together.asks as f64 * COST.as_secs_f64() / f64::from(seconds),
    };
    println!(
        "1,000 gates, {rate}/s: {:.0}% used, {:.1} over, store {:.0}% busy",
        run.used * 100.0,
        run.over,
        run.busy * 100.0
    );
    run
}

#[test]
fn p13_a_thousand_gates_keep_one_rate_and_leave_their_store_time() {
    let run = played(100, 10);
    assert!(run.over <= 0.0 && run.used >= 0.95 && run.busy < 0.5, "{} {} {}", run.over, run.used, run.busy);
}

#[test]
fn p13_p16_a_store_that_cannot_keep_up_leaves_each_gate_its_part() {
    let run = played(1_000, 3);
    assert!(run.busy > 0.95, "{}", run.busy);
    // In three seconds, of which the first asks in vain.
    assert!(run.over <= 0.0 && run.used >= 0.6, "{} {}", run.over, run.used);
}
