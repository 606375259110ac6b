//! Three gates as processes that share one bucket, each with a relay between it and the store: one
//! that answers nothing, one that is cut, and one as slow as a store in another region. And a store
//! that forgets the script all the time.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::shared::fleet::{BURST, Fleet, RATE, Shape, is_long, length, wait};
use crate::shared::outages::Stage;
use crate::shared::relay::{How, Relay};

/// Starts gates with a relay each.
fn relayed(shape: Shape) -> Option<(Stage, Vec<Relay>, tempfile::TempDir)> {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |gate: usize| folder.path().join(gate.to_string());
    let relays = std::cell::RefCell::new(Vec::new());
    let stage = Stage::shaped(shape, |gate, store: PathBuf| {
        relays.borrow_mut().push(Relay::start(&at(gate), store));
        at(gate)
    })?;
    Some((stage, relays.into_inner(), folder))
}

#[test]
fn p13_p16_no_call_fails_while_relays_swallow_questions_one_gate_is_cut_off_or_the_script_is_forgotten() {
    let Some((stage, relays, _folder)) = relayed(Shape::default()) else { return };
    let length = length();
    println!("| fault | calls | of the rate | fair (Jain) | over | asks | light, p99 |");
    stage.until_all_ask();
    stage.fleet.judge("relays", &stage.watch(length), 0.0, 0.97);

    relays.iter().for_each(|relay| relay.set(How::Swallows));
    let seen = stage.watch(length);
    relays.iter().for_each(|relay| relay.set(How::Passes));
    stage.fleet.judge("relays swallow", &seen, 0.0, 0.9);
    stage.until_all_ask();

    // The gate of most clients; alone it goes on at a third, beside the others that share it all.
    relays[0].set(How::Cuts);
    let seen = stage.watch(length);
    relays[0].set(How::Passes);
    stage.fleet.judge("one gate cut off", &seen, RATE / 3.0 * length.as_secs_f64() + BURST / 3.0, 1.0);
    stage.until_all_ask();

    let seen = stage.fleet.watch_while(
        || stage.asks(),
        || {
            let (mut connection, clock) = (stage.connection(), stage.fleet.clock);
            let began = clock.now();
            while clock.now() - began < length {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).expect("it flushes");
                wait(Duration::from_millis(10));
            }
        },
    );
    stage.fleet.judge("SCRIPT FLUSH every 10 ms", &seen, 0.0, 0.95);
    let told: String = stage.run(&["INFO", "errorstats"]);
    let forgot = told.split("errorstat_NOSCRIPT:count=").nth(1).and_then(|told| told.lines().next()?.parse().ok());
    assert!(forgot.is_some_and(|count: u64| count > 10), "questions met a store without the script: {told}");
    stage.until_all_ask();
    stage.fleet.judge("none, again", &stage.watch(length), 0.0, 0.95);
}

#[test]
fn p13_p14_gates_of_unequal_weight_and_demand_share_by_weight() {
    let shape = Shape { burst: 2.0 * RATE, weights: [4, 2, 1], ..Shape::default() };
    let Some(stage) = Stage::shaped(shape, |_, store| store) else { return };
    println!("| weights 4:2:1 | calls | of the rate | fair (Jain) | over | asks | light, p99 |");
    stage.until_all_ask();
    wait(length() / 2);
    let before = stage.micros();
    let seen = stage.watch(length());
    #[expect(clippy::cast_precision_loss, reason = "a few seconds")]
    let busy = (stage.micros() - before) as f64 / 1e6 / length().as_secs_f64();
    println!("the store is busy with the script for {:.2}% of the time", busy * 100.0);
    assert!(!is_long() || busy <= 0.01, "{busy}");
    stage.fleet.judge("none", &seen, 0.0, 0.99);
    assert!(!is_long() || seen.fair >= 0.99, "{seen:?}");
    // SHARED-QUOTA, "Targets": in a shortage the smaller of the rate and 5 + 5 for each member.
    #[expect(clippy::cast_precision_loss, reason = "few questions")]
    let asks = seen.asks as f64 / length().as_secs_f64();
    assert!(!is_long() || asks <= RATE.min(5.0 + 5.0 * 3.0) + 1.0, "{asks} questions a second");
}

/// What a gate's counters say of its calls: that left at once, and all.
fn decided(fleet: &Fleet, gate: usize) -> (f64, f64) {
    let mut stream = UnixStream::connect(fleet.socket(gate)).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut told = String::new();
    stream.read_to_string(&mut told).expect("an answer");
    let sum = |decision: &str| -> f64 {
        let lines =
            told.lines().filter(|line| line.starts_with("tidegate_decisions_total{") && line.contains(decision));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    (sum("decision=\"go\""), sum("decision="))
}

#[test]
fn p15_half_of_the_calls_wait_for_nothing_at_half_the_rate_though_the_store_is_50_ms_away() {
    let shape = Shape { burst: 2.0 * RATE, clients: [0; 3], ..Shape::default() };
    let Some((stage, relays, _folder)) = relayed(shape) else { return };
    relays.iter().for_each(|relay| relay.set(How::Delays(Duration::from_millis(25))));
    let ends = Arc::new(AtomicBool::new(false));
    // Each call begins when it is due, whatever becomes of those before it.
    let clients: Vec<_> = [0.5, 0.25, 0.25]
        .into_iter()
        .enumerate()
        .map(|(gate, part)| {
            let (world, ends, clock) = (Arc::clone(&stage.fleet.world), Arc::clone(&ends), stage.fleet.clock);
            thread::spawn(move || {
                let (began, every) = (clock.now(), 1.0 / (RATE / 2.0 * part));
                for number in 0_u32.. {
                    wait(began + Duration::from_secs_f64(every * f64::from(number)) - clock.now());
                    if ends.load(Ordering::SeqCst) {
                        return;
                    }
                    let world = Arc::clone(&world);
                    thread::spawn(move || {
                        let answer = world.call(gate, &format!("/{gate}/0/{number}"));
                        if !answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ")) {
                            world.wrong.lock().expect("unpoisoned").push(format!("{answer:?}"));
                        }
                    });
                }
            })
        })
        .collect();
    // A new bucket is empty, and full when it has had the time for a burst twice.
    wait(Duration::from_secs(4));
    let before = [0, 1, 2].map(|gate| decided(&stage.fleet, gate));
    let seen = stage.watch(2 * length());
    let after = [0, 1, 2].map(|gate| decided(&stage.fleet, gate));
    ends.store(true, Ordering::SeqCst);
    clients.into_iter().for_each(|client| client.join().expect("it ends"));
    println!("| half the rate, 50 ms away | calls | of the rate | fair (Jain) | over | asks | light, p99 |");
    stage.fleet.judge("none", &seen, 0.0, 0.45);
    let (mut at_once, mut all) = (0.0, 0.0);
    for (gate, (before, after)) in before.into_iter().zip(after).enumerate() {
        println!("gate {gate}: {} of {} calls left at once", after.0 - before.0, after.1 - before.1);
        (at_once, all) = (at_once + after.0 - before.0, all + after.1 - before.1);
    }
    assert!(at_once > 0.5 * all, "the median of the added waits is not zero: {at_once} of {all} left at once");
    assert!(seen.asks <= seen.calls as u64, "fewer questions than calls: {seen:?}");
}
