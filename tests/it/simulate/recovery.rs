//! A webhook is down and heals: through the gate, objects are back nearly as soon as without it, for
//! a fraction of the failed calls.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use tidegate::config::scenario::FailureSpan;
use tidegate::simulate::{self, Limits, ScenarioRun, Setup};

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
    /// The tries that the gate refused when the upstream had healed.
    refused_after: u64,
}

/// The counts of a time.
#[derive(Clone, Copy, Debug)]
struct Step {
    begins: f64,
    ends: f64,
    retries: u64,
    refused: u64,
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

/// Plays an outage that ends after `down` seconds.
fn outcome(setup: &Setup, limits: &Limits, down: u32) -> Outcome {
    let played = [simulate::play(&setup.scenario, limits)];
    let row = &simulate::report::json(&played)[0]["controllers"][0];
    assert_eq!(row["reconciled"]["missing"], 0, "{}: {row}", limits.name);
    let count = |key: &str| row[key].as_u64().expect("a count");
    let (steps, healed) = (steps(&played), f64::from(down));
    assert!(steps.iter().any(|step| (step.begins - healed).abs() < 1e-9), "no step begins with the heal: {row}");
    let during = |step: &&Step| step.ends < healed + 1e-9;
    Outcome {
        last: number(&row["reconciled"]["max"]),
        in_vain: count("failed"),
        sent: count("sent"),
        refused_after: steps.iter().filter(|step| !during(step)).map(|step| step.refused).sum(),
    }
}

/// Reads the numbers over time.
fn steps(played: &[ScenarioRun]) -> Vec<Step> {
    let csv = simulate::report::csv(played);
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().expect("a head");
    let place = |name: &str| head.iter().position(|column| *column == name).expect("a column");
    let [seconds, length, retries, refused] = ["seconds", "step_seconds", "retries", "refused"].map(place);
    let step = |line: Vec<&str>| {
        let [begins, length] = [seconds, length].map(|column| line[column].parse::<f64>().expect("a number"));
        let [retries, refused] = [retries, refused].map(|column| line[column].parse().expect("a count"));
        Step { begins, ends: begins + length, retries, refused }
    };
    lines.map(step).collect()
}

impl Cell {
    /// Plays it without a gate, and through one as it comes.
    fn outcomes(self) -> [Outcome; 2] {
        // Long enough for the last object of either, and counted in steps one of which begins with
        // the heal.
        let length = match (self.objects, self.down) {
            (10_000.., 600) => 1_860,
            (10_000.., _) => 1_200,
            (objects, down) => (3 * down).max(objects / 12) + 60,
        };
        let setup = set_up(self, length);
        assert_eq!(setup.limits[1].name, "sidecar");
        [0, 1].map(|limits| outcome(&setup, &setup.limits[limits], self.down))
    }

    /// Returns how much later than without a gate the last object is back.
    fn ratio(self) -> f64 {
        let [direct, gate] = self.outcomes();
        gate.last / direct.last
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

/// The outages that docs/tuning.md shows.
const SHOWN: [Cell; 3] = [
    Cell { workers: 10, objects: 50, down: 600 },
    Cell { workers: 10, objects: 600, down: 30 },
    Cell { workers: 10, objects: 2_000, down: 5 },
];

fn table(all: &[(Cell, [Outcome; 2])]) -> String {
    let mut text = String::from(
        "| workers | objects | down | last object done directly | through the gate | | failed calls directly | \
         through the gate | |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for (Cell { workers, objects, down }, [direct, gate]) in all.iter().filter(|(cell, _)| SHOWN.contains(cell)) {
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
    for (cell, [direct, gate]) in &all {
        // As soon as the bucket can let the calls out, or as soon as the controller's own queue
        // makes its tries: of those the gate refuses hardly any.
        let least = gate.bucket_allows() + 0.1;
        let few = gate.refused_after <= 10 && cell.objects == 50;
        assert!(gate.last <= (1.25 * direct.last).max(least) || few, "{cell:?}: {gate:?}, {direct:?} without a gate");
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
    let [direct, gate] = [0, 1].map(|limits| outcome(&setup, &setup.limits[limits], 30));
    assert!(gate.last <= 1.25 * direct.last, "{gate:?}, {direct:?} without a gate");
    assert!(4 * gate.in_vain <= direct.in_vain, "{gate:?}, {direct:?} without a gate");
}

/// A queue's next try comes after as long again as the outage has lasted, so that the ratio of one
/// outage tells most of all where in that time it has ended. These are outages of any length.
#[test]
fn over_outages_of_any_length_the_gate_is_as_fast_as_its_controllers_queue() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tuning.md");
    let text = std::fs::read_to_string(&path).expect("it is there").split_whitespace().collect::<Vec<_>>().join(" ");
    let medians = [(10, 50), (1, 50), (10, 200)].map(|(workers, objects)| {
        let outages = (4..=60).step_by(2).map(|down| Cell { workers, objects, down }.ratio());
        let mut ratios: Vec<f64> = outages.collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    });
    let [ten, one, many] = medians.map(|median| format!("{median:.2}"));
    let told = format!(
        "the median is {ten} with 10 workers and 50 objects, {one} with one worker, and {many} with 10 workers and 200"
    );
    assert!(text.contains(&told), "docs/tuning.md is stale, expected: {told}");
}

/// With client-go's classic limiter a third of the failed calls would be left if retries failed 0.7
/// times a second instead of 2.5 times. Then the heal is found out too late.
#[test]
fn with_fewer_trials_objects_would_be_refused_after_the_heal() {
    let setup = set_up(Cell { workers: 10, objects: 600, down: 30 }, 150);
    let mut limits = setup.limits[1].clone();
    limits.gate.policy.retry_bucket.as_mut().expect("it has one").rate = 0.7;
    let direct = outcome(&setup, &setup.limits[0], 30);
    let [usual, rare] = [&setup.limits[1], &limits].map(|limits| outcome(&setup, limits, 30));
    assert_eq!((usual.refused_after, rare.refused_after), (0, 565));
    assert!(rare.last > 1.5 * direct.last && rare.in_vain + 20 > usual.in_vain, "{rare:?}, {usual:?} usually");
}

/// The webhook heals for three seconds and fails again for a minute.
#[test]
fn a_relapse_costs_no_more_retries_than_the_bucket_has_for_a_minute_of_failures() {
    for (workers, objects) in [(1, 50), (1, 600), (10, 50), (10, 600), (10, 2_000)] {
        let mut setup = set_up(Cell { workers, objects, down: 30 }, 93);
        let mut second = setup.scenario.upstream.failures[0].clone();
        second = FailureSpan { from: Duration::from_secs(33), to: Duration::from_secs(93), ..second };
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
    let steps = steps(&[simulate::play(&setup.scenario, &setup.limits[1])]);
    let is_down = |step: &&Step| {
        let failures = &setup.scenario.upstream.failures;
        failures.iter().any(|failure| (failure.from.as_secs_f64()..failure.to.as_secs_f64()).contains(&step.begins))
    };
    let retries: u64 = steps.iter().filter(is_down).map(|step| step.retries).sum();
    f64::from(u32::try_from(retries).expect("few"))
}
