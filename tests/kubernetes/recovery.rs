//! An admission webhook fails for a while, and heals: a controller-runtime operator through a gate as
//! it comes, and the same without one, side by side. The API server's audit log says when the last
//! object was back.
//!
//! `TIDEGATE_RECOVERY="OBJECTS SECONDS WORKERS [classic]"` plays one outage and prints a row of the
//! table in docs/tuning.md; without it a short one is played.

use std::collections::HashMap;
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
#[derive(Clone, Copy, Debug)]
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

/// What came of it.
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
    fn asked() -> Option<Self> {
        let asked = std::env::var("TIDEGATE_RECOVERY").ok()?;
        let words: Vec<&str> = asked.split_whitespace().collect();
        let number = |place: usize| words.get(place).and_then(|word| word.parse::<usize>().ok());
        let (Some(objects), Some(down), Some(workers)) = (number(0), number(1), number(2)) else {
            panic!("TIDEGATE_RECOVERY is {asked:?}, expected \"OBJECTS SECONDS WORKERS\", and \"classic\" if wanted");
        };
        let down = Duration::from_secs(u64::try_from(down).expect("some seconds"));
        Some(Self { objects, down, workers, classic: words.get(3) == Some(&"classic") })
    }
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
    let short = Cell { objects: 40, down: Duration::from_secs(10), workers: 1, classic: false };
    let cell = Cell::asked().unwrap_or(short);
    widgets::install(plane);
    let gate = Gate::start(plane, "");
    let sides = [("direct", Way::Direct(plane)), ("through", Way::Gate(&gate))]
        .map(|(name, way)| Side::start(plane, name, way, cell));
    sides.iter().for_each(Side::fail);
    let begun = now();
    for nth in 0.. {
        if begun.elapsed() >= cell.down {
            break;
        }
        sides.iter().for_each(|side| side.make(nth));
        pause(BETWEEN);
    }
    sides.iter().for_each(Side::heal);
    let [direct, through] = sides.each_ref().map(Side::outcome);
    let seconds = |time: Duration| time.as_secs_f64();
    let number = |calls: usize| f64::from(u32::try_from(calls).expect("few"));
    say(format_args!(
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
    ));
    assert!(through.in_vain <= direct.in_vain, "{through:?} {direct:?}");
    wait_for("no key fails any more", LIMIT, || (gate.failing_keys() == 0.0).then_some(()));
}
