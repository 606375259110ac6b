//! An hour of planted operators before a real API server: slow loops, floods, fights, and some that
//! are well. The gate's clock jumps from call to call, and each event of the audit log gets the
//! time of that clock. Each loop is named, by the gate and from a log of each level as far as that
//! level can tell, and nobody else.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::operator::{Operator, log_of};
use super::{audit, hot};
use crate::support::control_plane::ControlPlane;
use crate::support::fake_clock::FakeClock;
use crate::support::gate::{Gate, Way};
use crate::support::{block_on, say, turn, wait_for};

const NAMESPACE: &str = "planted";
const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const OBJECTS: u64 = 60;

/// What an operator does: a call by its number.
struct Planted {
    agent: &'static str,
    /// When it begins, and the time between two calls, in milliseconds.
    begins: u64,
    every: u64,
    call: fn(u64) -> Call,
}

struct Call {
    method: Method,
    path: String,
    body: Value,
}

fn put(name: &str, data: &Value) -> Call {
    Call { method: Method::PUT, path: configmap(name), body: json!({"metadata": {"name": name}, "data": data}) }
}

fn patch(path: String, body: Value) -> Call {
    Call { method: Method::PATCH, path, body }
}

fn create(collection: &str, body: Value) -> Call {
    Call { method: Method::POST, path: format!("/api/v1/namespaces/{NAMESPACE}/{collection}"), body }
}

fn event(name: &str) -> Call {
    let object = json!({"kind": "ConfigMap", "namespace": NAMESPACE, "name": "object-0"});
    create(
        "events",
        json!({"metadata": {"name": name}, "involvedObject": object, "reason": "Synced", "type": "Normal"}),
    )
}

fn configmap(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{name}")
}

fn object(number: u64) -> String {
    format!("object-{}", number % OBJECTS)
}

const PLANTED: [Planted; 13] = [
    // Each minute from the beginning, for as long as a gate needs to tell a flood from a rollout.
    Planted { agent: "flood", begins: 0, every: 5000, call: |number| event(&format!("flood.{number}")) },
    Planted { agent: "talker", begins: 7, every: MINUTE, call: |number| event(&format!("talker.{number}")) },
    Planted {
        agent: "stamper",
        begins: 11,
        every: MINUTE,
        call: |number| {
            patch(configmap("stamped"), json!({"data": {"checked": format!("2026-11-28T10:{number:02}:00Z")}}))
        },
    },
    Planted {
        agent: "cron",
        begins: 13,
        every: MINUTE,
        call: |number| patch(configmap("report"), json!({"data": {"lines": number.to_string()}})),
    },
    Planted {
        agent: "busy",
        begins: 17,
        every: 10_000,
        call: |number| patch(configmap(&object(number)), json!({"data": {"value": number.to_string()}})),
    },
    Planted {
        agent: "one",
        begins: 25 * MINUTE,
        every: 20_000,
        call: |_| patch(configmap("fought"), json!({"data": {"owner": "one"}})),
    },
    Planted {
        agent: "other",
        begins: 25 * MINUTE + 10_000,
        every: 20_000,
        call: |_| patch(configmap("fought"), json!({"data": {"owner": "other"}})),
    },
    Planted { agent: "slow", begins: 40 * MINUTE + 1, every: 3000, call: |_| put("slow", &json!({"a": "b"})) },
    Planted {
        agent: "applier",
        begins: 40 * MINUTE + 2,
        every: 3000,
        call: |_| {
            let body =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "b"}});
            patch(configmap("applied") + "?fieldManager=applier&force=true", body)
        },
    },
    Planted {
        agent: "creator",
        begins: 40 * MINUTE + 3,
        every: 10_000,
        call: |number| create("configmaps", json!({"metadata": {"name": object(number)}})),
    },
    Planted {
        agent: "spread",
        begins: 45 * MINUTE + 4,
        every: MINUTE / 38,
        call: |number| patch(configmap(&format!("pod-{}", number % 38)), json!({"metadata": {"labels": {"a": "b"}}})),
    },
    Planted { agent: "fast", begins: HOUR - MINUTE, every: 125, call: |_| put("fast", &json!({"a": "b"})) },
    Planted {
        agent: "hasty",
        begins: HOUR - MINUTE,
        every: 125,
        call: |_| patch(configmap("hasty"), json!({"data": {"a": "b"}})),
    },
];

/// The kind of each loop by its callers: from a gate, and from an audit log of each level.
#[rustfmt::skip]
const NAMED: [(&str, [&str; 4]); 9] = [
    // by                gate             RequestResponse  Request          Metadata
    ("applier",         ["unchanged",     "unchanged",     "unchanged",     ""]),
    ("creator",         ["already_there", "already_there", "already_there", "already_there"]),
    ("fast",            ["fast",          "unchanged",     "unchanged",     "fast"]),
    ("flood",           ["event_flood",   "event_flood",   "event_flood",   "event_flood"]),
    ("hasty",           ["fast",          "unchanged",     "unchanged",     "fast"]),
    ("one and other",   ["two_writers",   "two_writers",   "two_writers",   "two_writers"]),
    ("slow",            ["unchanged",     "unchanged",     "unchanged",     ""]),
    ("spread",          ["spread",        "spread",        "spread",        ""]),
    ("stamper",         ["unchanged",     "unchanged",     "unchanged",     ""]),
];

#[test]
fn every_planted_loop_is_named_by_gate_and_log_and_nobody_else() {
    let test = "every_planted_loop_is_named_by_gate_and_log_and_nobody_else";
    let Some(plane) = ControlPlane::shared(test) else { return };
    let Some(clock) = FakeClock::or_skip(test) else { return };
    let _turn = turn::light();
    plane.namespace(NAMESPACE);
    let objects = (0..OBJECTS).map(object).chain((0..38).map(|number| format!("pod-{number}")));
    let others = ["stamped", "report", "fought", "slow", "applied", "fast", "hasty"].map(str::to_owned);
    let maps = objects.chain(others).map(
        |name| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}}),
    );
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": maps.collect::<Vec<_>>()}).to_string());
    let settings = "bucket = \"off\"\nretry_bucket = \"off\"\n[gates.kubernetes.backoff]\nhold = \"0s\"";
    let gate = Gate::start_with(plane, settings, |run| clock.put_under(run));

    let mut agenda: Vec<(u64, usize, u64)> = Vec::new();
    for (index, one) in PLANTED.iter().enumerate() {
        let calls = (HOUR - one.begins) / one.every;
        agenda.extend((0..calls).map(|number| (one.begins + number * one.every, index, number)));
    }
    agenda.sort_unstable();
    let user = plane.master();
    let mut operators = PLANTED.map(|one| Operator::new(Way::Gate(&gate), &user, one.agent));
    block_on(async {
        for (at, index, number) in &agenda {
            clock.set(&format!("+{}.{:03}", at / 1000, at % 1000));
            let Call { method, path, body } = (PLANTED[*index].call)(*number);
            let (status, answer) = operators[*index].call(&method, &path, &body.to_string()).await;
            let wanted = if PLANTED[*index].agent == "creator" { 409 } else { 200 };
            assert!(status == wanted || status == 201 && wanted == 200, "{method} {path}: {status} {answer}");
        }
    });
    let wanted = |column: usize| -> BTreeSet<(String, String)> {
        let named = NAMED.iter().map(|(callers, kinds)| ((*callers).to_owned(), kinds[column].to_owned()));
        named.filter(|(_, kind)| !kind.is_empty()).collect()
    };
    let says = wait_for("the loops are named", Duration::from_secs(20), || {
        Some(hot(&gate)).filter(|hot| hot.len() >= wanted(0).len())
    });
    say(format_args!("loops: {} planted calls; the gate says {says:#?}", agenda.len()));
    assert_eq!(says.iter().map(|one| named(one, "loop")).collect::<BTreeSet<_>>(), wanted(0));
    for (agent, end) in [
        ("slow", "; 100% of the writes changed nothing"),
        ("stamper", "% of the writes repeated an earlier one, times aside"),
        ("spread", "; 100% of the writes changed nothing"),
        ("fast", ", the same body each time"),
    ] {
        let one = says.iter().find(|one| one["callers"][0] == agent).expect("it was named");
        assert!(one["says"].as_str().is_some_and(|says| says.ends_with(end)), "{one}");
    }

    for (column, level) in ["RequestResponse", "Request", "Metadata"].into_iter().enumerate() {
        let mut times = agenda.iter().map(|(at, ..)| Duration::from_millis(*at));
        let log = log_of(plane, NAMESPACE, level, || times.next());
        assert_eq!(times.next(), None, "each call is in the log once");
        let found: BTreeSet<_> = audit(&log).iter().map(|one| named(one, "kind")).collect();
        assert_eq!(found, wanted(column + 1), "{level}");
    }
}

/// The callers of a loop, and its kind. A log has the user, too.
fn named(found: &Value, kind: &str) -> (String, String) {
    let callers = found["callers"].as_array().expect("a list").iter().filter_map(Value::as_str);
    let agent =
        |caller: &str| caller.rsplit_once(" (").map_or(caller, |(_, agent)| agent.trim_end_matches(')')).to_owned();
    let mut callers: Vec<String> = callers.map(agent).collect();
    callers.sort();
    (callers.join(" and "), found[kind].as_str().unwrap_or_default().to_owned())
}
