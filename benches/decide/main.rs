//! The cost of a decision: nanoseconds and instructions of each thing the limiter does, bytes of
//! each thing it keeps, beside bare governor and client-go.
//!
//! ```text
//! cargo bench -p decide                               the whole table, and those of the other benches
//! cargo bench -p decide -- check                      compares instructions and bytes with the
//!                                                     bars in scenes.rs and holds.rs, and fails
//!                                                     above them
//! cargo bench -p decide --bench decide -- SCENE ...   lines of the table
//! ```
//!
//! Instructions need valgrind, and client-go needs Go; what is missing is said. It is linked as
//! what ships is: same flags, fat link-time optimisation, one unit. Nanoseconds are those of the
//! best of five rounds, as what disturbs a round only ever adds; they are never asserted, because a
//! shared machine's clock proves nothing.

#[expect(dead_code, reason = "`holds` uses the rest")]
mod gate;
mod golang;
mod instructions;
mod memory;
mod reading;
mod scenes;

use std::env;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tidegate::limit::Verdict;

use crate::gate::Gate;
use crate::scenes::{HOARDS, Hoard, MARGINS, Margin, SCENES, Scene};

fn main() -> ExitCode {
    // `cargo bench` adds a flag of its own.
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["play", name, times] => instructions::play(find(name), times.parse().expect("a number")),
        ["keep", name] => memory::keep(hoard(name)),
        ["check"] => return check(),
        [] => table(),
        names => costs(&names.iter().map(|name| find(name)).collect::<Vec<_>>()),
    }
    ExitCode::SUCCESS
}

/// Prints every figure.
fn table() {
    costs(&SCENES.iter().collect::<Vec<_>>());
    println!("{:<80} {:>8.0}", "a call, the usual limits, two threads at one mutex", two_threads());
    println!("\n{:<80} {:>8} {:>12}", "", "bytes", "resident");
    for hoard in HOARDS {
        let kept = memory::of(hoard);
        println!("{:<80} {:>8} {:>12}", hoard.what, kept.allocated, kept.resident);
    }
    println!("\n{:<80} {:>8} {:>12}", "client-go and golang.org/x/time", "ns", "bytes");
    match golang::limiters() {
        Ok(lines) => lines.iter().for_each(|line| {
            let bytes = line.bytes.map_or_else(String::new, |bytes| format!("{bytes:.0}"));
            println!("{:<80} {:>8.0} {bytes:>12}", line.what, line.nanos);
        }),
        Err(why) => println!("left out: {why}"),
    }
}

fn costs(scenes: &[&Scene]) {
    let counts = instructions::can_count();
    if !counts {
        println!("instructions are left out: valgrind is not installed");
    }
    println!("{:<80} {:>8} {:>12}", "", "ns", "instructions");
    for scene in scenes {
        let nanos = nanos(scene);
        let instructions = counts.then(|| instructions::of(scene));
        let instructions = match instructions {
            Some(Ok(count)) => count.to_string(),
            Some(Err(why)) => why,
            None => String::new(),
        };
        println!("{:<80} {nanos:>8.0} {instructions:>12}", scene.what);
    }
}

/// Compares everything that has a bar with it.
fn check() -> ExitCode {
    if !instructions::can_count() {
        eprintln!("valgrind is not installed, and nothing else counts instructions");
        return ExitCode::FAILURE;
    }
    let mut above = false;
    let mut line = |what: &str, unit: &str, cost: u64, bar: u64| {
        let verdict = if cost > bar { "ABOVE" } else { "of at most" };
        above |= cost > bar;
        println!("{what:<80} {cost:>6} {unit} {verdict} {bar}");
    };
    for (scene, bar) in SCENES.iter().filter_map(|scene| Some((scene, scene.bar?))) {
        match instructions::of(scene) {
            Ok(cost) => line(scene.what, "instructions", cost, bar),
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        }
    }
    for Margin { of, than, most } in MARGINS {
        let (scene, other) = (find(of), find(than));
        match instructions::of(scene).and_then(|cost| Ok((cost, instructions::of(other)?))) {
            Ok((cost, other)) => {
                line(&format!("{} (more)", scene.what), "instructions", cost.saturating_sub(other), *most)
            }
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        }
    }
    for hoard in HOARDS {
        line(hoard.what, "bytes", memory::of(hoard).allocated, hoard.bar);
    }
    if above { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The best of five rounds, in nanoseconds of one decision.
fn nanos(scene: &Scene) -> f64 {
    let mut once = (scene.stage)();
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let began = now();
        (0..TIMES).for_each(|_| once());
        best = best.min(each(began.elapsed(), TIMES));
    }
    best
}

fn two_threads() -> f64 {
    let gate = Mutex::new(Gate::new(gate::roomy()));
    let calls = || {
        for _ in 0..TIMES {
            // As in the proxy, the lock is taken again for the end of a call.
            let lock = || gate.lock().expect("no thread panics");
            let object = lock().fresh();
            let verdict = lock().arrive(object, 0);
            let Verdict::Admit(permit) = verdict else { panic!("nothing is in its way") };
            lock().finish(permit);
        }
    };
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let began = now();
        std::thread::scope(|scope| {
            scope.spawn(calls);
            scope.spawn(calls);
        });
        best = best.min(each(began.elapsed(), 2 * TIMES));
    }
    best
}

fn each(all: Duration, times: u32) -> f64 {
    all.as_secs_f64() * 1e9 / f64::from(times)
}

fn find(name: &str) -> &'static Scene {
    let names = || SCENES.iter().map(|scene| scene.name).collect::<Vec<_>>().join(", ");
    SCENES.iter().find(|scene| scene.name == name).unwrap_or_else(|| panic!("{name}: expected one of {}", names()))
}

fn hoard(name: &str) -> &'static Hoard {
    HOARDS.iter().find(|hoard| hoard.name == name).expect("only this program asks")
}

#[expect(clippy::disallowed_methods, reason = "this measures the machine, not the limiter's time")]
fn now() -> Instant {
    Instant::now()
}

const ROUNDS: usize = 5;

/// Decisions in each round.
const TIMES: u32 = 50_000;
