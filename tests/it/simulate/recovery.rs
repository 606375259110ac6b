//! A webhook is down and heals: through the gate, objects are back as soon as without it, for a
//! fraction of the failed calls, and objects that are well do not wait.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use tidegate::config::scenario::{ControllerModel, FailureSpan, OverallBucket, Requeue, Upstream};
use tidegate::simulate::{self, Limits, ScenarioRun, Setup};

/// One outage under one controller.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    workers: usize,
    /// client-go's classic limiter in the controller's queue.
    classic: bool,
    objects: usize,
    down: u32,
}

/// The outcome of an outage.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// The time from the heal to the last object.
    last: f64,
    in_vain: f64,
    /// 99 of 100 objects that are well were reconciled within this time.
    healthy: f64,
}

/// An outage directly and through the gate.
#[derive(Clone, Copy, Debug)]
struct Played {
    direct: Outcome,
    gate: Outcome,
}

/// The time to an answer of a real kube-apiserver with a webhook.
const LATENCY: Duration = Duration::from_millis(10);

fn seconds(number: u32) -> Duration {
    Duration::from_secs(number.into())
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn built_in() -> Setup {
    simulate::find("recovery").and_then(|builtin| builtin.set_up(&[]).ok()).expect("it is built in")
}

impl Cell {
    /// The cells that `tests/kubernetes/recovery.rs` plays live.
    fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for (workers, classic) in [(1, false), (10, false), (1, true), (10, true)] {
            for objects in [500, 1000, 2000] {
                cells.extend([100, 120, 300].map(|down| Self { workers, classic, objects, down }));
            }
        }
        cells
    }

    /// All objects change at once, and fail; and one object a second that is well changes beside them.
    fn set_up(self) -> Setup {
        let mut setup = built_in();
        let first = setup.scenario.controllers.remove(0);
        let Requeue::Backoff { base, max, .. } = Requeue::default() else { unreachable!("it is a backoff") };
        let overall = self.classic.then_some(OverallBucket { rate: 10.0, burst: 100 });
        let verbs = vec![tidegate::api::Verb::Update];
        let failing = ControllerModel {
            name: "failing".to_owned(),
            objects: self.objects,
            workers: self.workers,
            requeue: Requeue::Backoff { base, max, overall },
            verbs,
            ..first
        };
        let healthy = ControllerModel {
            name: "healthy".to_owned(),
            namespace: "healthy".to_owned(),
            objects: 300,
            workers_of: Some("failing".to_owned()),
            changes: Some(1.0),
            from: seconds(1),
            to: Some(seconds(self.down)),
            ..failing.clone()
        };
        let outage = FailureSpan {
            from: Duration::ZERO,
            to: seconds(self.down),
            status: 500,
            controllers: vec!["failing".to_owned()],
            share: 1.0,
        };
        setup.scenario.upstream = Upstream { latency: LATENCY, failures: vec![outage], ..Upstream::default() };
        setup.scenario.controllers = vec![failing, healthy];
        setup.scenario.length = seconds(2 * self.down + 700);
        setup
    }

    fn play(self) -> Played {
        let setup = self.set_up();
        assert_eq!(setup.limits[1].name, "sidecar");
        let [direct, gate] = [0, 1].map(|limits| self.outcome(&setup, &setup.limits[limits]));
        Played { direct, gate }
    }

    fn outcome(self, setup: &Setup, limits: &Limits) -> Outcome {
        let report = simulate::report::json(&[simulate::play(&setup.scenario, limits)]);
        let [failing, healthy] = [0, 1].map(|row| &report[0]["controllers"][row]);
        assert_eq!(failing["reconciled"]["missing"], 0, "{self:?}, {}: {failing}", limits.name);
        Outcome {
            last: number(&failing["reconciled"]["max"]) - f64::from(self.down),
            in_vain: number(&failing["failed"]),
            healthy: number(&healthy["reconciled"]["p99"]),
        }
    }
}

/// Plays all cells on all processors.
fn all() -> Vec<(Cell, Played)> {
    let cells = Cell::all();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let played = cell.play();
                    done.lock().expect("no panic").push((*cell, played));
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
    Cell { workers: 1, classic: false, objects: 2000, down: 300 },
    Cell { workers: 10, classic: false, objects: 1000, down: 120 },
    Cell { workers: 10, classic: true, objects: 500, down: 300 },
];

fn table(all: &[(Cell, Played)]) -> String {
    let mut text = String::from(
        "| workers | objects | down | last object back directly | through the gate | failed calls directly | through the \
         gate | healthy directly | through the gate |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for (Cell { workers, classic, objects, down }, Played { direct, gate }) in
        all.iter().filter(|(cell, _)| SHOWN.contains(cell))
    {
        let classic = if *classic { ", classic" } else { "" };
        writeln!(
            text,
            "| {workers}{classic} | {objects} | {down} s | {:.1} s | {:.1} s | {} | {} | {:.2} s | {:.2} s |",
            direct.last, gate.last, direct.in_vain, gate.in_vain, direct.healthy, gate.healthy,
        )
        .expect("text");
    }
    text
}

#[test]
fn objects_are_back_as_soon_as_without_a_gate_for_a_fraction_of_the_calls() {
    let all = all();
    for (cell, played @ Played { direct, gate }) in &all {
        assert!(gate.healthy <= (1.5 * direct.healthy).max(0.1), "{cell:?}: {played:?}");
        assert!(gate.last <= 1.25 * direct.last, "{cell:?}: {played:?}");
        let first = f64::from(u32::try_from(cell.objects).expect("few"));
        // Of a first try nothing is known, and client-go's own limiter leaves few others.
        let most = if cell.classic { first + direct.in_vain / 10.0 } else { direct.in_vain / 4.0 };
        assert!(gate.in_vain <= most, "{cell:?}: {played:?}");
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

/// A queue doubles the delay of an object at each refusal. If refusals are faster than failures, it
/// has run through more delays when the API heals.
#[test]
fn with_refusals_at_once_the_last_object_is_back_much_later() {
    let cell = Cell { workers: 1, classic: false, objects: 500, down: 120 };
    let setup = cell.set_up();
    let mut limits = setup.limits[1].clone();
    limits.gate.policy.slow_refusals = false;
    let [slow, fast] = [&setup.limits[1], &limits].map(|limits| cell.outcome(&setup, limits));
    assert!(fast.last > 3.0 * slow.last, "{fast:?}, {slow:?}");
}

/// The webhook heals for three seconds and fails again for a minute.
#[test]
fn a_relapse_costs_no_more_retries_than_the_bucket_has_for_a_minute_of_failures() {
    for (workers, objects) in [(1, 50), (1, 600), (10, 50), (10, 600), (10, 2_000)] {
        let numbers = [
            format!("workers={workers}"),
            format!("objects={objects}"),
            "down=30s".to_owned(),
            "length=93s".to_owned(),
        ];
        let builtin = simulate::find("recovery").expect("it is built in");
        let Ok(mut setup) = builtin.set_up(&numbers) else { panic!("these numbers make sense") };
        let mut second = setup.scenario.upstream.failures[0].clone();
        second = FailureSpan { from: seconds(33), to: seconds(93), ..second };
        let before = retries_in_vain(&setup);
        setup.scenario.upstream.failures.push(second);
        let after = retries_in_vain(&setup);
        // Its burst, one in two seconds, one for nineteen refusals, and those whose answers come
        // after the end of the run.
        let bound = 100.0 + 0.5 * 60.0 + (after.refused - before.refused).max(0.0) / 19.0;
        let relapse = after.retries - before.retries;
        assert!(relapse <= bound, "{workers} workers, {objects} objects: {relapse} of {bound}");
    }
}

/// The counts of the times in which the API fails.
struct InVain {
    retries: f64,
    refused: f64,
}

fn retries_in_vain(setup: &Setup) -> InVain {
    let played: [ScenarioRun; 1] = [simulate::play(&setup.scenario, &setup.limits[1])];
    let csv = simulate::report::csv(&played);
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().expect("a head");
    let place = |name: &str| head.iter().position(|column| *column == name).expect("a column");
    let [begins, retries, refused] = ["seconds", "retries", "refused"].map(place);
    let mut sum = InVain { retries: 0.0, refused: 0.0 };
    for line in lines {
        let number = |column: usize| line[column].parse::<f64>().expect("a number");
        let failures = &setup.scenario.upstream.failures;
        let at = number(begins);
        if failures.iter().any(|failure| (failure.from.as_secs_f64()..failure.to.as_secs_f64()).contains(&at)) {
            sum.retries += number(retries);
            sum.refused += number(refused);
        }
    }
    sum
}
