//! An admission webhook fails for a while, and heals: a controller-runtime operator through a gate as
//! it comes, and the same without one, side by side. The API server's audit log says when the last
//! object was back.
//!
//! `TIDEGATE_RECOVERY="OBJECTS SECONDS WORKERS [classic]"` plays one outage and prints its row.
//! `TIDEGATE_RECOVERY=all` plays 36 of them, which takes three hours, and those near a bar three
//! times. It goes on where it was stopped, because each result is kept in `target/recovery.txt`. Without
//! the variable a short outage is played.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::support::audit::Event;
use crate::support::client::{Connection, Protocol};
use crate::support::control_plane::{ControlPlane, User};
use crate::support::gate::{Gate, Way};
use crate::support::programs::Program;
use crate::support::webhook::Webhook;
use crate::support::{block_on, now, pause, quantile, say, turn, wait_for, widgets};

/// One outage under one operator.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    objects: usize,
    down: Duration,
    workers: usize,
    /// client-go's classic limiter in the operator's work queue.
    classic: bool,
}

/// One operator, and how it calls.
struct Side<'a> {
    plane: &'a ControlPlane,
    namespace: String,
    user: User,
    /// Whoever makes the healthy objects, and marks the heal: the harness is not audited.
    maker: User,
    operator: Program,
    webhook: Webhook,
    objects: Vec<String>,
}

/// What came of it, directly and through the gate.
#[derive(Clone, Copy, Debug)]
struct Played {
    direct: Outcome,
    through: Outcome,
}

#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// From the heal to the last object.
    last: Duration,
    in_vain: usize,
    /// 99 of 100 objects that were made during the outage had their status within this time.
    healthy: Duration,
}

const LIMIT: Duration = Duration::from_secs(600);
/// The time between two healthy objects that are made during the outage.
const BETWEEN: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_secs(3);

impl Cell {
    const SHORT: Self = Self { objects: 40, down: Duration::from_secs(10), workers: 1, classic: false };

    /// Reads a cell as [`Self::words`] writes it.
    fn of(asked: &str) -> Option<Self> {
        let words: Vec<&str> = asked.split_whitespace().collect();
        let number = |place: usize| words.get(place)?.parse::<usize>().ok();
        let down = Duration::from_secs(number(1)?.try_into().ok()?);
        Some(Self { objects: number(0)?, down, workers: number(2)?, classic: words.get(3) == Some(&"classic") })
    }

    fn words(self) -> String {
        let classic = if self.classic { " classic" } else { "" };
        format!("{} {} {}{classic}", self.objects, self.down.as_secs(), self.workers)
    }

    /// The cells of the table.
    fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for (workers, classic) in [(1, false), (10, false), (1, true), (10, true)] {
            for objects in [500, 1000, 2000] {
                let cell = |down| Self { objects, down: Duration::from_secs(down), workers, classic };
                cells.extend([100, 120, 300].map(cell));
            }
        }
        cells
    }

    /// Plays it directly and through a gate as it comes, side by side.
    fn play(self, plane: &ControlPlane, number: usize) -> Played {
        let gate = Gate::start(plane, "");
        let sides = [("direct", Way::Direct(plane)), ("through", Way::Gate(&gate))]
            .map(|(name, way)| Side::start(plane, &format!("{name}-{number}"), way, self));
        // At once, because to change a thousand objects takes many seconds.
        std::thread::scope(|scope| sides.iter().for_each(|side| drop(scope.spawn(|| side.fail()))));
        let begun = now();
        for nth in 0.. {
            if begun.elapsed() >= self.down {
                break;
            }
            sides.iter().for_each(|side| side.make(nth));
            pause(BETWEEN);
        }
        sides.iter().for_each(Side::heal);
        let [direct, through] = sides.each_ref().map(Side::outcome);
        assert!(through.in_vain <= direct.in_vain, "{through:?} {direct:?}");
        wait_for("no key fails any more", LIMIT, || (gate.failing_keys() == 0.0).then_some(()));
        Played { direct, through }
    }
}

impl Played {
    /// Returns how near each bar is: at most 1 if it is met.
    fn bars(self, cell: Cell) -> [f64; 3] {
        let Self { direct, through } = self;
        let of = |part: Duration, whole: Duration| part.as_secs_f64() / whole.as_secs_f64();
        let first = number(cell.objects);
        // Of a first try nothing is known, so that no gate can spare it.
        let few = if cell.classic { first + number(direct.in_vain) / 10.0 } else { number(direct.in_vain) / 4.0 };
        [
            of(through.healthy, direct.healthy.mul_f64(1.5).max(Duration::from_millis(100))),
            of(through.last, direct.last.mul_f64(1.25)),
            number(through.in_vain) / few.max(first),
        ]
    }

    fn row(self, cell: Cell) -> String {
        let Self { direct, through } = self;
        let seconds = |time: Duration| time.as_secs_f64();
        format!(
            "| {}{} | {} | {} s | {:.0} s | {:.0} s | {:.2} | {} | {} | {:.2} | {:.2} s | {:.2} s |",
            cell.workers,
            if cell.classic { ", classic" } else { "" },
            cell.objects,
            cell.down.as_secs(),
            seconds(direct.last),
            seconds(through.last),
            seconds(through.last) / seconds(direct.last),
            direct.in_vain,
            through.in_vain,
            number(through.in_vain) / number(direct.in_vain),
            seconds(direct.healthy),
            seconds(through.healthy),
        )
    }
}

/// The results of `target/recovery.txt`: a cell and its row on each line.
struct Results(String);

impl Results {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/recovery.txt");

    fn read() -> Self {
        Self(fs::read_to_string(Self::FILE).unwrap_or_default())
    }

    /// Returns the rows of a cell.
    fn of(&self, cell: Cell) -> Vec<&str> {
        let rows = self.0.lines().filter_map(|line| line.split_once(": "));
        rows.filter(|(words, _)| *words == cell.words()).map(|(_, row)| row).collect()
    }

    fn add(cell: Cell, played: Played) {
        let file = Path::new(Self::FILE);
        let mut file = fs::OpenOptions::new().create(true).append(true).open(file).expect("target is ours");
        let is_near = played.bars(cell).iter().any(|bar| (0.9..1.1).contains(bar));
        let again = if is_near { " near a bar" } else { "" };
        writeln!(file, "{}: {}{again}", cell.words(), played.row(cell)).expect("target is ours");
    }

    /// Returns true if a cell has its one result, or three if it is near a bar.
    fn has(&self, cell: Cell) -> bool {
        let rows = self.of(cell);
        rows.len() >= if rows.iter().any(|row| row.ends_with("near a bar")) { 3 } else { 1 }
    }
}

fn number(calls: usize) -> f64 {
    f64::from(u32::try_from(calls).expect("few"))
}

impl<'a> Side<'a> {
    fn start(plane: &'a ControlPlane, name: &str, way: Way<'_>, cell: Cell) -> Self {
        let namespace = format!("recovery-{name}");
        plane.namespace(&namespace);
        let webhook = Webhook::start(plane, &namespace);
        let (user, maker, workers) = (plane.master(), plane.master(), cell.workers.to_string());
        let mut args = vec!["manage", "-namespace", &namespace, "-workers", &workers];
        if cell.classic {
            args.push("-classic");
        }
        let objects = widgets::names("object", cell.objects);
        widgets::set(plane, &namespace, &objects, 1);
        let operator = Program::start(plane, way, &user, &args);
        await_written(&operator, &objects, 1);
        Self { plane, namespace, user, maker, operator, webhook, objects }
    }

    /// Every object changes, and no write of it succeeds.
    fn fail(&self) {
        self.webhook.fail(self.objects.iter().cloned());
        widgets::set(self.plane, &self.namespace, &self.objects, 2);
    }

    /// Makes a healthy object.
    fn make(&self, nth: usize) {
        let path = format!("/apis/tidegate.test/v1/namespaces/{}/widgets", self.namespace);
        let widget = json!({
            "apiVersion": "tidegate.test/v1", "kind": "Widget",
            "metadata": {"name": format!("healthy-{nth}")}, "spec": {"value": 1},
        });
        self.post(&path, &widget);
    }

    /// The moment of the heal is that of a mark in the audit log.
    fn heal(&self) {
        let path = format!("/api/v1/namespaces/{}/configmaps", self.namespace);
        self.post(&path, &json!({"metadata": {"name": "healed"}}));
        self.webhook.fail([]);
    }

    fn post(&self, path: &str, body: &Value) {
        block_on(async {
            let mut connection = Connection::open(Way::Direct(self.plane), &self.maker, Protocol::Http2).await;
            let (status, answer) = connection.call(Method::POST, path, &body.to_string()).await;
            assert_eq!(status, 201, "{answer}");
        });
    }

    fn outcome(&self) -> Outcome {
        await_written(&self.operator, &self.objects, 2);
        let audit = self.plane.audit();
        let made = audit.of(&self.maker.name);
        let healed = made.only(|event| event.resource == "configmaps").0.last().expect("the mark").received;
        let writes = audit.of(&self.user.name).only(|event| event.resource == "widgets" && event.verb == "update");
        let backs = writes.0.iter().filter(|event| event.code == 200 && event.name.starts_with("object-"));
        let last = backs.map(|event| event.answered).max().unwrap_or_default();
        Outcome {
            last: last.saturating_sub(healed),
            in_vain: writes.0.iter().filter(|event| event.code >= 500).count(),
            healthy: quantile(&latencies(&made.0, &writes.0), 0.99),
        }
    }
}

/// Waits until the operator has written every object at this value. It looks rarely, because to
/// read a long report takes a core, which the operators need.
fn await_written(operator: &Program, objects: &[String], value: u64) {
    wait_for(&format!("{} widgets at {value}", objects.len()), LIMIT, || {
        operator.process.must_run();
        let written = widgets::written(&operator.lines(), value);
        let are_all = objects.iter().all(|name| written.contains_key(name));
        are_all.then_some(()).or_else(|| {
            pause(BETWEEN_LOOKS);
            None
        })
    });
}

/// Returns the times from each healthy object to its status.
fn latencies(made: &[Event], writes: &[Event]) -> Vec<Duration> {
    let written = writes.iter().rev().filter(|write| write.code == 200);
    let written: HashMap<&str, Duration> = written.map(|write| (write.name.as_str(), write.answered)).collect();
    let healthy = made.iter().filter(|event| event.resource == "widgets");
    healthy.filter_map(|made| Some(written.get(made.name.as_str())?.saturating_sub(made.answered))).collect()
}

#[test]
fn an_operator_is_back_after_an_outage_with_fewer_calls_in_vain_than_without_a_gate() {
    let test = "an_operator_is_back_after_an_outage_with_fewer_calls_in_vain_than_without_a_gate";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let _turn = turn::alone();
    widgets::install(plane);
    let asked = std::env::var("TIDEGATE_RECOVERY").ok();
    if asked.as_deref() != Some("all") {
        let cell = asked.map_or(Some(Cell::SHORT), |asked| Cell::of(&asked));
        let cell =
            cell.expect("TIDEGATE_RECOVERY is \"all\", or \"OBJECTS SECONDS WORKERS\" with \"classic\" if wanted");
        let played = cell.play(plane, 0);
        say(format_args!("{} {:.2?}", played.row(cell), played.bars(cell)));
        return;
    }
    for (number, cell) in Cell::all().into_iter().flat_map(|cell| [cell; 3]).enumerate() {
        if !Results::read().has(cell) {
            Results::add(cell, cell.play(plane, number));
        }
    }
    let results = Results::read();
    Cell::all().into_iter().flat_map(|cell| results.of(cell)).for_each(|row| say(format_args!("{row}")));
}
