//! A long run of mixed load with random faults: a separate `tidegate` process with two gates, a
//! scripted API that fails in every way it can, and clients that read, write, watch, renew leases
//! and hang up. The gate's records are then held against its promises.
//!
//! `TIDEGATE_SOAK_SECONDS` sets its length (20 by default, 180 in CI), `TIDEGATE_SOAK_SEED` the
//! seed (1). Nothing is timed, so it may run beside other work. Halfway and at the end everything
//! comes to rest, and the two states are compared.

mod clients;
mod dice;
mod process;
mod promises;
mod upstream;
mod weather;

use testing::{command, ports, window};

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock;

use self::clients::Clients;
use self::dice::Dice;
use self::process::Process;
use self::weather::Sky;

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a whole number")))
}

/// A line of the report, past libtest's capture.
fn say(line: impl Display) {
    drop(writeln!(std::io::stdout().lock(), "soak: {line}"));
}

#[test]
fn chaos_ends_with_every_promise_kept_and_nothing_held() {
    run(1);
}

#[test]
fn chaos_on_two_threads_ends_with_every_promise_kept_and_nothing_held() {
    run(2);
}

/// Runs it with a gate of so many threads.
fn run(threads: u8) {
    let (seconds, seed) = (number("TIDEGATE_SOAK_SECONDS", 20), number("TIDEGATE_SOAK_SEED", 1));
    let what = format!("{seconds} s by seed {seed}, {threads} of [process] threads");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(soak(Duration::from_secs(seconds), Dice::new(seed), threads, &what));
}

async fn soak(time: Duration, dice: Dice, threads: u8, what: &str) {
    let sky = Arc::new(Sky::new());
    let apis = [
        upstream::start(dice.child(), Arc::clone(&sky), false).await,
        upstream::start(dice.child(), Arc::clone(&sky), true).await,
    ];
    let process = Process::start(&apis, threads).await;
    let weather = dice.child();

    let middle = half(&process, &sky, &dice.child(), &weather, time / 2).await;
    let end = half(&process, &sky, &dice.child(), &weather, time / 2).await;
    let said = process.end();
    let panics: Vec<&String> = said.log.iter().filter(|line| line.contains("panic")).collect();
    assert!(panics.is_empty(), "{panics:#?}");
    let found = promises::check(&said.calls);
    say(format_args!(
        "{what}: {}; {}; at rest in the middle {middle}, at the end {end}; 0 panics",
        sky.report(),
        found
    ));
    assert!(end.descriptors <= middle.descriptors + 4, "descriptors are left: {middle}, {end}");
    // A tenth, and never less than one page of the allocator's.
    let most = middle.kib + (middle.kib / 10).max(2048);
    assert!(end.kib <= most, "memory grows: {middle}, {end}");
}

/// Puts load on the gate under changing weather, then lets it rest.
async fn half(process: &Process, sky: &Arc<Sky>, dice: &Dice, weather: &Dice, time: Duration) -> process::Rest {
    let clock = Clock::start();
    let clients = Clients::start(process, dice);
    while clock.now().since_start() < time {
        sky.change(weather);
        if weather.one_in(6) {
            process.reload(weather);
        }
        clock.sleep(Duration::from_millis(200 + weather.below(1500))).await;
    }
    sky.clear();
    clients.stop().await;
    process.rest().await
}
