//! A log that a real gate wrote under load, replayed under the same limits: the waits are the same.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;
use tidegate::clock::Clock;
use tidegate::simulate::Limits;
use tidegate::simulate::audit::{WhatIf, audit, what_if};
use tidegate::simulate::replay::{LogSelection, RecordedLog, Replays, replay};
use tidegate::spec::Gate;
use tidegate::telemetry::CallLog;

use super::replayed::limits;
use crate::support::{Backend, Proxy, reply, within};

/// A saturated bucket, failing keys, slots. The burst is half a second of the rate: a busy machine
/// may be that late before it loses tokens, which the replay, never late, would not lose.
const LIMITS: &str = "bucket = { rate = 60, burst = 30 }\nretry_bucket = { rate = 20, burst = 5 }\nin_flight = { max = 20 }\n\
                      backoff = { base = \"200ms\", max = \"2s\" }\n";

/// Healthy calls: the number of herds, and the calls of each.
const HERDS: u64 = 4;
const HERD: u64 = 100;
/// Calls that make the gate connect before anything is measured: a replay has no connections to
/// make.
const WARM: u64 = 25;

#[tokio::test]
async fn a_replay_under_the_same_limits_waits_as_the_live_calls_did() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calls.jsonl");
    let limits = limits("the same", LIMITS);
    let calls = live(&limits.gate, &path).await;
    let log = whole(&path, calls).await;
    let recorded = || vec![RecordedLog { name: "calls.jsonl".to_owned(), input: Box::new(log.as_bytes()) }];
    let selection = LogSelection { gate: gate_of(&log), caller: None };
    let limits = Limits { name: "the same".to_owned(), ..limits };
    let replays = replay(recorded(), &selection, std::slice::from_ref(&limits));
    check(&replays.expect("it can be replayed"), calls);
    let found = audit(recorded(), &selection).expect("it has calls");
    let what_if = what_if(recorded(), &selection, &found, Some(&limits)).expect("it can be replayed");
    foretold(&what_if[0], &log);
}

/// What a gate would have done is what this one did, by its log.
fn foretold(what_if: &WhatIf, log: &str) {
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let nanos = |line: &Value, field: &str| line[field].as_u64();
    let mut waits: Vec<Duration> = lines
        .iter()
        .filter(|line| nanos(line, "sent_ns").is_some())
        .map(|line| Duration::from_nanos(nanos(line, "waited_ns").unwrap_or(0)))
        .collect();
    waits.sort_unstable();
    let p99 = waits[waits.len() * 99 / 100];
    let allowed = p99.mul_f64(0.05).max(Duration::from_millis(20));
    assert!(what_if.wait_p99.abs_diff(p99) <= allowed, "{:?} foretold, {p99:?} live", what_if.wait_p99);
    let mut sent: Vec<u64> =
        lines.iter().filter(|line| line["class"] == "default").filter_map(|line| nanos(line, "sent_ns")).collect();
    sent.sort_unstable();
    let in_second = |from: usize| sent.partition_point(|at| *at < sent[from] + 1_000_000_000) - from;
    let peak = (0..sent.len()).map(in_second).max().expect("calls were sent");
    println!("peak {} foretold, {peak} live; p99 {:?} foretold, {p99:?} live", what_if.peak_sent, what_if.wait_p99);
    assert!(what_if.peak_sent.abs_diff(peak) * 20 <= peak, "{} foretold, {peak} live", what_if.peak_sent);
}

/// The record and the replay agree.
fn check(replays: &Replays, calls: usize) {
    let [recorded, replayed] = &replays.replayed[..] else { panic!("two columns") };
    assert_eq!((replays.read.unreadable, replays.read.aside, replays.read.late), (0, 0, 0));
    let of = |name: &str| {
        let find =
            |rows: &[tidegate::simulate::Row]| rows.iter().find(|row| row.name == name).cloned().expect("a class");
        (find(&recorded.rows), find(&replayed.rows))
    };
    let (live, again) = of("default");
    let (leases, leases_again) = of("leases");
    assert_eq!(live.arrived + leases.arrived, calls as u64);
    assert!(
        live.waits.quantile(500) > Duration::from_millis(200),
        "the bucket was saturated: {:?}",
        live.waits.quantile(500)
    );
    assert!(live.refusals() > 20, "keys failed: {} refusals", live.refusals());
    for permille in [500, 990] {
        let (one, other) = (live.waits.quantile(permille), again.waits.quantile(permille));
        let allowed = Duration::from_millis(2).max(one.mul_f64(0.05));
        assert!(one.abs_diff(other) <= allowed, "{permille}: {one:?} live, {other:?} replayed");
    }
    assert!(live.sent.abs_diff(again.sent) * 50 <= live.sent, "{} live, {} replayed", live.sent, again.sent);
    assert_eq!((leases.waits.max, leases_again.waits.max), (Duration::ZERO, Duration::ZERO));
}

/// Sends herds of healthy calls, calls to objects that fail each time, and a lease, through a gate
/// with a log. Returns the number of calls.
async fn live(gate: &Gate, path: &std::path::Path) -> usize {
    let backend = Backend::start(|seen| async move {
        Clock::start().sleep(Duration::from_millis(5)).await;
        if seen.target.contains("/failing-") { reply(503, "no") } else { reply(200, "ok") }
    })
    .await;
    let log = CallLog::open(Some(path), None, Clock::start()).expect("opens");
    let proxy = Proxy::before(backend.address)
        .with(|options| {
            options.gate.rules = Arc::clone(&gate.rules);
            options.gate.policy = gate.policy.clone();
            options.gate.answers.failures.clone_from(&gate.answers.failures);
            options.gate.answers.throttling = gate.answers.throttling;
            options.call_log = Some(log);
        })
        .start()
        .await;
    let sender = proxy.connect_http2().await;
    let get = |target: String| {
        let mut sender = sender.clone();
        async move {
            let uri = format!("http://localhost{target}");
            let request = http::Request::get(uri).body(Full::<Bytes>::default()).expect("valid");
            let answer = sender.send_request(request).await.expect("answered");
            answer.into_body().collect().await.expect("whole");
        }
    };
    let clock = Clock::start();
    let mut clients = tokio::task::JoinSet::new();
    for object in 0..WARM {
        clients.spawn(get(format!("/api/v1/namespaces/n/pods/warm-{object}")));
    }
    for (herd, object) in (0..HERDS).flat_map(|herd| (0..HERD).map(move |object| (herd, object))) {
        let call = get(format!("/api/v1/namespaces/n/configmaps/healthy-{object}"));
        clients.spawn(async move {
            clock.sleep(Duration::from_millis(1000 + 1000 * herd + object)).await;
            call.await;
        });
    }
    for (round, object) in (0..30).flat_map(|round| (0..5).map(move |object| (round, object))) {
        let call = get(format!("/api/v1/namespaces/n/secrets/failing-{object}"));
        clients.spawn(async move {
            clock.sleep(Duration::from_millis(1000 + 150 * round)).await;
            call.await;
        });
    }
    for round in 0..20 {
        let call = get("/apis/coordination.k8s.io/v1/namespaces/n/leases/leader".to_owned());
        clients.spawn(async move {
            clock.sleep(Duration::from_millis(200 * round)).await;
            call.await;
        });
    }
    let calls = clients.len();
    clients.join_all().await;
    proxy.stop.cancel();
    calls
}

/// Returns the log once it has a line for each call.
pub(super) async fn whole(path: &std::path::Path, calls: usize) -> String {
    within(async {
        loop {
            let text = std::fs::read_to_string(path).expect("readable");
            if text.ends_with('\n') && text.lines().count() >= calls {
                return text;
            }
            Clock::start().sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

pub(super) fn gate_of(log: &str) -> String {
    let first: Value = serde_json::from_str(log.lines().next().expect("a line")).expect("JSON");
    first["gate"].as_str().expect("a gate").to_owned()
}
