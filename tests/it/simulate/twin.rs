//! The twin of a live gate and a replay of its log under the candidate count the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use tidegate::clock::Clock;
use tidegate::limit::Policy;
use tidegate::simulate::replay::ReplayResult;
use tidegate::simulate::{Limits, Row};
use tidegate::spec::Gate;
use tidegate::status::Shadow;
use tidegate::telemetry::CallLog;

use super::live::{gate_of, whole};
use super::replayed::{limits, replayed_of};
use crate::support::{Backend, Proxy, ProxyBuilder, reply};

/// A candidate that is stricter than no limits. It has no slots: a log has the length of a
/// body from the moment that the client was answered, which is a little later on a busy machine.
const STRICT: &str = "bucket = \"off\"\nretry_bucket = \"off\"\n\
                      backoff = \"off\"\n\
                      [gates.api.candidate]\nbucket = { rate = 40, burst = 10 }\nretry_bucket = { rate = 4, burst = 2 }\n\
                      queue = { max_wait = \"300ms\" }\nbackoff = { strategy = \"exponential\", base = \"200ms\", max = \"2s\" }\n";
/// A candidate that is wider than limits that refuse. What a refused call would have met is not known,
/// so nothing depends on it.
const WIDE: &str = "bucket = { rate = 1, burst = 20, adapt = \"off\" }\nqueue = { max_wait = \"0s\" }\nretry_bucket = \"off\"\n\
                    backoff = \"off\"\n\
                    [gates.api.candidate]\nbucket = { rate = 50, burst = 30 }\nqueue = { max_wait = \"2s\" }\n";

/// The counts of one limits for a class.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    waited: u64,
    refused: BTreeMap<String, u64>,
}

#[tokio::test]
async fn a_stricter_candidate_counts_as_a_replay_of_the_log_does() {
    let both = compared(STRICT).await;
    assert!(both.candidate.waited > 20 && both.candidate.refused.len() >= 3, "{both:?}");
    assert_eq!(both.in_force.refused, BTreeMap::new());
}

#[tokio::test]
async fn a_wider_candidate_counts_as_a_replay_of_the_log_does() {
    let both = compared(WIDE).await;
    assert!(both.candidate.waited > 20, "{both:?}");
    assert!(both.in_force.refused.get("bucket") > Some(&100), "{both:?}");
}

/// The counts of both limits.
#[derive(Debug)]
struct Compared {
    in_force: Counts,
    candidate: Counts,
}

/// Returns the counts of a gate with these limits, once those of its twin are those of a replay.
async fn compared(lines: &str) -> Compared {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calls.jsonl");
    let live = limits("live", lines);
    let backend = backend().await;
    let log = CallLog::open(Some(&path), None, Clock::start()).expect("opens");
    let unlimited =
        Gate { policy: Policy { bucket: None, ..live.gate.policy.clone() }, candidate: None, ..live.gate.clone() };
    let proxy = before(&backend, &unlimited, &log).start().await;
    // A replay has no connections to make.
    let warm = send(&proxy, (0..60).map(|number| (0, format!("/api/v1/namespaces/n/pods/slow-{number}")))).await;
    whole(&path, warm).await;
    proxy.gate.reconfigure(before(&backend, &live.gate, &log).options());
    let calls = send(&proxy, schedule()).await;
    let log = whole(&path, warm + calls).await;
    let log: String = log.split_inclusive('\n').skip(warm).collect();
    let candidate = live.gate.candidate.as_deref().cloned().expect("it has one");
    let gate = Gate { policy: candidate, candidate: None, ..live.gate };
    let replays = replayed_of(&log, &gate_of(&log), &[Limits { name: "candidate".to_owned(), gate }]);
    let replays = replays.expect("it can be replayed");
    assert_eq!((replays.read.unreadable, replays.read.aside, replays.read.late), (0, 0, 0));
    let [_, replay] = &replays.replayed[..] else { panic!("two columns") };
    let replay = counts_of_rows(replay);
    let clock = Clock::start();
    let end = clock.now() + Duration::from_secs(20);
    loop {
        let told = proxy.gate.status(true).await.candidate.expect("it has a candidate");
        let both = Compared { in_force: counts(&told.in_force), candidate: counts(&told.candidate) };
        if both.candidate == replay {
            assert_eq!(told.calls, calls as u64);
            return both;
        }
        assert!(clock.now() < end, "{both:?}, and a replay {replay:?}");
        clock.sleep(Duration::from_millis(10)).await;
    }
}

fn counts(shadow: &Shadow) -> Counts {
    let refused = |counts: &mut BTreeMap<String, u64>, reason: &str, count| {
        *counts.entry(reason.to_owned()).or_default() += count;
    };
    let mut counts = Counts { waited: shadow.calls.would_have_waited, ..Counts::default() };
    for by in shadow.by.iter().filter(|by| by.would_have_been_refused > 0) {
        refused(&mut counts.refused, &by.reason, by.would_have_been_refused);
    }
    counts
}

fn counts_of_rows(replay: &ReplayResult) -> Counts {
    let mut counts = Counts { waited: replay.rows.iter().map(waited).sum(), ..Counts::default() };
    for (reason, count) in replay.rows.iter().flat_map(Row::refusals_by_reason) {
        *counts.refused.entry(reason.word().to_owned()).or_default() += count;
    }
    counts
}

/// The sent calls of at most a thousand that waited: those above the last rank without a wait.
fn waited(row: &Row) -> u64 {
    let rank = |permille: u64| (row.sent * permille).div_ceil(1000).max(1);
    let at_once = (1..=1000).filter(|permille| row.waits.quantile(*permille).is_zero()).map(rank).max();
    row.sent - at_once.unwrap_or(0).min(row.sent)
}

async fn backend() -> Backend {
    Backend::start(|seen| async move {
        let slow = if seen.target.contains("/slow-") { 60 } else { 7 };
        Clock::start().sleep(Duration::from_millis(slow)).await;
        if seen.target.contains("/failing-") { reply(503, "no") } else { reply(200, "ok") }
    })
    .await
}

/// A gate with these limits, their candidate, and a log.
fn before(backend: &Backend, gate: &Gate, log: &CallLog) -> ProxyBuilder {
    Proxy::before(backend.address).with(|options| {
        options.gate.rules = Arc::clone(&gate.rules);
        options.gate.policy = gate.policy.clone();
        options.gate.candidate.clone_from(&gate.candidate);
        options.gate.answers.failures.clone_from(&gate.answers.failures);
        options.gate.answers.throttling = gate.answers.throttling;
        options.call_log = Some(log.clone());
    })
}

/// Sends calls at their milliseconds, and returns their number.
async fn send(proxy: &Proxy, calls: impl Iterator<Item = (u64, String)>) -> usize {
    let sender = proxy.connect_http2().await;
    let clock = Clock::start();
    let mut clients = tokio::task::JoinSet::new();
    for (at, target) in calls {
        let mut sender = sender.clone();
        clients.spawn(async move {
            clock.sleep(Duration::from_millis(at)).await;
            let request = http::Request::get(format!("http://localhost{target}")).body(Full::<Bytes>::default());
            let answer = sender.send_request(request.expect("valid")).await.expect("answered");
            answer.into_body().collect().await.expect("whole");
        });
    }
    let count = clients.len();
    clients.join_all().await;
    count
}

/// The calls and their times in milliseconds: herds of healthy ones, those of objects that fail each
/// time, and a lease.
fn schedule() -> impl Iterator<Item = (u64, String)> {
    let healthy = (0..240).map(|number| {
        let kind = if number % 10 == 0 { "slow" } else { "healthy" };
        let at = 500 * (number / 60) + number % 60;
        (at, format!("/api/v1/namespaces/n{}/configmaps/{kind}-{number}", number % 3))
    });
    let failing = (0..120).map(|number| (17 * number, format!("/api/v1/namespaces/n/secrets/failing-{}", number % 4)));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/n/leases/leader";
    healthy.chain(failing).chain((0..10).map(|round| (200 * round, lease.to_owned())))
}
