//! A webhook is down and heals: through the gate, objects are back nearly as soon as without it, for
//! a fraction of the failed calls.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use tidegate::config::scenario::Failure;
use tidegate::simulate::{self, Limits, Setup};

/// One outage under one controller.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    workers: u32,
    objects: u32,
    down: u32,
}

/// The outcome of an outage.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// The moment at which the last object was reconciled.
    last: f64,
    in_vain: u64,
    sent: u64,
}

/// The rate and the burst of the default bucket.
const BUCKET: (f64, f64) = (50.0, 100.0);

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn set_up(cell: Cell, length: u32) -> Setup {
    let Cell { workers, objects, down } = cell;
    let numbers = [
        format!("workers={workers}"),
        format!("objects={objects}"),
        format!("down={down}s"),
        format!("length={length}s"),
    ];
    simulate::find("recovery").and_then(|builtin| builtin.set_up(&numbers).ok()).expect("these numbers make sense")
}

fn play(setup: &Setup, limits: &Limits) -> Value {
    let played = simulate::play(&setup.scenario, limits);
    simulate::report::json(&[played])[0]["controllers"][0].clone()
}

fn outcome(setup: &Setup, limits: &Limits) -> Outcome {
    let row = play(setup, limits);
    assert_eq!(row["reconciled"]["missing"], 0, "{}: {row}", limits.name);
    let count = |key: &str| row[key].as_u64().expect("a count");
    Outcome { last: number(&row["reconciled"]["max"]), in_vain: count("failed"), sent: count("sent") }
}

impl Cell {
    /// Plays it without a gate, and through one as it comes.
    fn outcomes(self) -> [Outcome; 2] {
        // Long enough for the last object of either.
        let length = (3 * self.down).max(self.objects / 12) + 60;
        let setup = set_up(self, length);
        assert_eq!(setup.limits[1].name, "sidecar");
        [outcome(&setup, &setup.limits[0]), outcome(&setup, &setup.limits[1])]
    }
}

impl Outcome {
    /// The moment by which the bucket can have let all of these calls out.
    fn bucket_allows(&self) -> f64 {
        (f64::from(u32::try_from(self.sent).expect("few")) - BUCKET.1) / BUCKET.0
    }
}

/// Plays all cells on all processors.
fn all() -> Vec<(Cell, [Outcome; 2])> {
    let mut cells = Vec::new();
    for workers in [10, 1] {
        for objects in [50, 600, 2_000, 10_000] {
            cells.extend([5, 30, 600].map(|down| Cell { workers, objects, down }));
        }
    }
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                // The longest are last in the list, and begin first.
                while let Some(cell) = cells.iter().rev().nth(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcomes = cell.outcomes();
                    done.lock().expect("no panic").push((*cell, outcomes));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no panic");
    done.sort_by_key(|(cell, _)| cells.iter().position(|other| other == cell));
    done
}

fn table(all: &[(Cell, [Outcome; 2])]) -> String {
    let mut text = String::from(
        "| workers | objects | down | last object back directly | through the gate | | failed calls directly | through the gate | |\n\
         |--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for (Cell { workers, objects, down }, [direct, gate]) in all {
        let vain = |outcome: &Outcome| f64::from(u32::try_from(outcome.in_vain).expect("few"));
        writeln!(
            text,
            "| {workers} | {} | {} | {:.1} s | {:.1} s | {:.2} | {} | {} | {:.2} |",
            thousands(u64::from(*objects)),
            if *down < 60 { format!("{down} s") } else { format!("{} min", down / 60) },
            direct.last,
            gate.last,
            gate.last / direct.last,
            thousands(direct.in_vain),
            thousands(gate.in_vain),
            vain(gate) / vain(direct),
        )
        .expect("text");
    }
    text
}

fn thousands(number: u64) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", number / 1000, number % 1000) }
}

#[test]
fn objects_are_back_nearly_as_soon_as_without_a_gate_for_a_fraction_of_the_calls() {
    let all = all();
    // Where its own backoff decides, or the moment at which its queue comes back.
    let others = [Cell { workers: 10, objects: 50, down: 5 }, Cell { workers: 1, objects: 50, down: 30 }];
    for (cell, [direct, gate]) in &all {
        // As soon as the bucket can let the calls out, whatever is retried.
        let least = gate.bucket_allows() + 0.1;
        assert!(
            gate.last <= (1.25 * direct.last).max(least) || others.contains(cell),
            "{cell:?}: {gate:?}, {direct:?} without a gate"
        );
        // First calls of objects fail too, and nothing is known of them; most keys are
        // forgotten once in ten minutes.
        let first = u64::from(cell.objects) * if cell.down == 600 { 3 } else { 1 };
        assert!(gate.in_vain <= (direct.in_vain / 4).max(first + 300), "{cell:?}: {gate:?}, {direct:?} without a gate");
        assert!(gate.in_vain <= direct.in_vain, "{cell:?}");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tuning.md");
    let text = std::fs::read_to_string(&path).expect("it is there");
    let kept = text.split("\n\n").find(|part| part.starts_with("| workers | objects |")).expect("the table is there");
    let made = table(&all);
    if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
        std::fs::write(&path, text.replace(kept, made.trim_end())).expect("it can be written");
    } else {
        assert!(kept == made.trim_end(), "docs/tuning.md is stale, run this test with TIDEGATE_WRITE_DOCS=1:\n{made}");
    }
}

#[test]
fn all_objects_of_the_scenario_are_back_after_a_quarter_more_time_and_a_quarter_of_the_calls_in_vain() {
    let setup = set_up(Cell { workers: 10, objects: 600, down: 30 }, 150);
    let [direct, gate] = [0, 1].map(|limits| outcome(&setup, &setup.limits[limits]));
    assert!(gate.last <= 1.25 * direct.last, "{gate:?}, {direct:?} without a gate");
    assert!(4 * gate.in_vain <= direct.in_vain, "{gate:?}, {direct:?} without a gate");
}

/// The webhook heals for three seconds and fails again for a minute.
#[test]
fn a_relapse_costs_no_more_retries_than_the_bucket_has_for_a_minute_of_failures() {
    for (workers, objects) in [(1, 50), (1, 600), (10, 50), (10, 600), (10, 2_000)] {
        let mut setup = set_up(Cell { workers, objects, down: 30 }, 93);
        let mut second = setup.scenario.upstream.failures[0].clone();
        second = Failure { from: Duration::from_secs(33), to: Duration::from_secs(93), ..second };
        let before = retries_in_vain(&setup);
        setup.scenario.upstream.failures.push(second);
        let after = retries_in_vain(&setup);
        // Its burst, 2.5 a second, and those whose answers come after the end of the run.
        let bound = 100.0 + 2.5 * 60.0;
        let relapse = after - before;
        assert!(relapse <= bound, "{workers} workers, {objects} objects: {relapse} of {bound}");
    }
}

/// The retries through the gate that were answered with a failure.
fn retries_in_vain(setup: &Setup) -> f64 {
    let csv = simulate::report::csv(&[simulate::play(&setup.scenario, &setup.limits[1])]);
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().expect("a head");
    let [seconds, retries] =
        ["seconds", "retries"].map(|name| head.iter().position(|column| *column == name).expect("a column"));
    let value = |line: &[&str], column: usize| line[column].parse::<f64>().expect("a number");
    let is_down = |at: f64| {
        let failures = &setup.scenario.upstream.failures;
        failures.iter().any(|failure| (failure.from.as_secs_f64()..failure.to.as_secs_f64()).contains(&at))
    };
    lines.filter(|line| is_down(value(line, seconds))).map(|line| value(&line, retries)).sum()
}
