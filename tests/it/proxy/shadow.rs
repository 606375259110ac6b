//! A gate or a class with `shadow = true`: the gate decides and counts everything, and holds nothing
//! back; clients notice nothing.

use std::sync::Arc;
use std::time::Duration;

use tidegate::config::load_text;
use tidegate::limit::policy::Strategy;
use tidegate::spec;
use tidegate::telemetry::CallLog;
use tidegate::telemetry::call_log::Entry;
use tokio::task::JoinHandle;

use crate::support::{Backend, Proxy, ProxyBuilder, reply, status, within};

fn shadow(backend: &Backend) -> ProxyBuilder {
    Proxy::before(backend.address).with(|options| options.gate.shadow = true)
}

fn get(proxy: &Arc<Proxy>, target: &'static str) -> JoinHandle<(u16, String)> {
    let proxy = Arc::clone(proxy);
    tokio::spawn(async move { proxy.get(target).await })
}

#[tokio::test]
async fn what_would_be_refused_passes_untouched_and_is_counted_apart() {
    let backend = Backend::replying(200).await;
    let proxy = shadow(&backend).bucket(0.000_001, 1).max_wait(Duration::ZERO).start().await;
    for _ in 0..5 {
        let (status, answer) = proxy.get("/a").await;
        assert_eq!(status, 200);
        assert!(!answer.to_ascii_lowercase().contains("tidegate"), "{answer}");
    }
    assert_eq!(backend.targets().len(), 5);
    assert_eq!(proxy.metric("tidegate_shadow", &["class=\"default\""]), 1.0);
    assert_eq!(proxy.metric("tidegate_shadow_refusals_total", &["class=\"default\"", "reason=\"bucket\""]), 4.0);
    assert_eq!(proxy.metric("tidegate_refusals_total", &[]), 0.0);
    assert_eq!(proxy.metric("tidegate_calls_total", &["code=\"2xx\""]), 5.0);
}

#[tokio::test]
async fn what_would_wait_goes_at_once_and_its_wait_is_counted_when_it_is_over() {
    let backend = Backend::replying(200).await;
    let proxy = shadow(&backend).bucket(1.0, 1).start().await;
    within(async {
        for _ in 0..3 {
            assert_eq!(proxy.get("/a").await.0, 200);
        }
    })
    .await;
    assert_eq!(proxy.metric("tidegate_shadow_wait_seconds_count", &[]), 0.0, "nobody waited for them");
    proxy.reaches("tidegate_shadow_wait_seconds_count", &["reason=\"bucket\""], 2.0).await;
    assert!(proxy.metric("tidegate_shadow_wait_seconds_sum", &[]) > 0.0);
    assert_eq!(proxy.metric("tidegate_wait_seconds_count", &[]), 0.0);
}

#[tokio::test]
async fn a_slot_is_held_by_those_who_would_have_it_and_given_back_at_the_end() {
    let (backend, answers) = Backend::holding().await;
    let proxy = Arc::new(shadow(&backend).in_flight(1).start().await);
    let calls = [get(&proxy, "/a"), get(&proxy, "/b"), get(&proxy, "/c")];
    within(async {
        while backend.targets().len() < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(proxy.metric("tidegate_waiting", &[]), 0.0, "they have gone");
    answers.add_permits(3);
    for call in calls {
        assert_eq!(within(call).await.expect("no panic").0, 200);
    }
    proxy.reaches("tidegate_shadow_wait_seconds_count", &["reason=\"slot\""], 2.0).await;
    proxy.reaches("tidegate_slots_in_use", &[], 0.0).await;
}

#[tokio::test]
async fn a_key_backs_off_as_if_and_what_would_be_refused_teaches_nothing() {
    let backend =
        Backend::start(|call| async move { reply(if call.headers.contains_key("x-good") { 200 } else { 503 }, "no") });
    let backend = backend.await;
    let proxy = shadow(&backend)
        .policy(|policy| {
            let (base, max) = (Duration::from_secs(60), Duration::from_secs(60));
            policy.classes[1].backoff.strategy = Strategy::Exponential { base, max, jitter: 0.0 };
        })
        .start()
        .await;
    let put = async |more: &str| {
        let head = "PUT /api/v1/nodes/n HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n";
        status(&proxy.exchange(&format!("{head}{more}\r\n")).await)
    };
    assert_eq!(put("").await, 503);
    proxy.reaches("tidegate_keys_failing", &[], 1.0).await;
    assert_eq!(put("").await, 503, "the upstream's answer, not ours");
    assert_eq!(put("X-Good: 1\r\n").await, 200);
    assert_eq!(proxy.metric("tidegate_keys_failing", &[]), 1.0, "a gate would not have sent it");
    assert_eq!(proxy.metric("tidegate_shadow_refusals_total", &["reason=\"backoff\""]), 2.0);
}

#[tokio::test]
async fn what_an_other_self_waits_for_is_told_what_its_call_came_to() {
    let backend = Backend::replying(503).await;
    let proxy = shadow(&backend).bucket(5.0, 1).start().await;
    assert_eq!(proxy.get("/api/v1/nodes/a").await.0, 503);
    assert_eq!(proxy.get("/api/v1/nodes/b").await.0, 503);
    proxy.reaches("tidegate_keys_failing", &[], 2.0).await;
    assert_eq!(proxy.metric("tidegate_shadow_wait_seconds_count", &[]), 1.0, "known when its turn came");
}

/// A gate in force with these limits, and one class in shadow: the calls of the user agent `bulk`.
fn with_class(backend: &Backend, limits: &str, shadow: bool) -> ProxyBuilder {
    let text = format!(
        "[gates.g]\nupstream = \"http://localhost:1\"\npreset = \"none\"\n{limits}\n\
         [[gates.g.classes]]\nname = \"bulk\"\nmatch = {{ user_agents = [\"bulk\"] }}\nshadow = {shadow}\n"
    );
    let loaded = load_text("f.toml".to_owned(), text, &[]).unwrap_or_else(|problems| panic!("{problems:?}"));
    let read = loaded.settings.gates.into_values().next().expect("one");
    Proxy::before(backend.address).with(|options| {
        let (name, listen) = (options.gate.name.clone(), options.gate.listen.clone());
        options.gate = spec::Gate { name, listen, ..read };
    })
}

/// Two tokens, and no call waits.
const TWO: &str = "bucket = { rate = 0.000001, burst = 2 }\nqueue = { max_wait = \"0s\" }\n";
const BULK: &str = "class=\"bulk\"";
const REST: &str = "class=\"default\"";

/// The status of a call of this user agent.
async fn call(proxy: &Proxy, agent: &str, line: &str) -> u16 {
    let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n");
    status(&proxy.exchange(&format!("{head}User-Agent: {agent}\r\n\r\n")).await)
}

#[tokio::test]
async fn a_class_in_shadow_takes_nothing_from_the_others_and_never_waits() {
    let backend = Backend::replying(200).await;
    let proxy = with_class(&backend, TWO, true).start().await;
    for _ in 0..5 {
        assert_eq!(call(&proxy, "bulk", "GET /api/v1/nodes/a").await, 200);
    }
    let mut rest = Vec::new();
    for _ in 0..3 {
        rest.push(call(&proxy, "web", "GET /api/v1/nodes/a").await);
    }
    assert_eq!(rest, [200, 200, 429], "as without the other class");
    assert_eq!(call(&proxy, "bulk", "PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/l").await, 200);
    assert_eq!(call(&proxy, "web", "PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/l").await, 200);
    let shadow = |class| proxy.metric("tidegate_shadow", &[class]);
    assert_eq!([shadow(BULK), shadow(REST), shadow("class=\"leases\"")], [1.0, 0.0, 0.0]);
    assert_eq!(proxy.metric("tidegate_shadow_refusals_total", &[BULK, "reason=\"bucket\""]), 3.0);
    assert_eq!(proxy.metric("tidegate_shadow_refusals_total", &[]), 3.0);
    assert_eq!(proxy.metric("tidegate_refusals_total", &[BULK]), 0.0);
    assert_eq!(proxy.metric("tidegate_refusals_total", &[REST]), 1.0);
    assert_eq!(proxy.metric("tidegate_bypassed_total", &[]), 0.0);
}

#[tokio::test]
async fn calls_in_force_are_felt_by_a_class_in_shadow() {
    let backend = Backend::replying(200).await;
    let proxy = with_class(&backend, TWO, true).start().await;
    assert_eq!(call(&proxy, "web", "GET /api/v1/nodes/a").await, 200);
    for _ in 0..2 {
        assert_eq!(call(&proxy, "bulk", "GET /api/v1/nodes/a").await, 200);
    }
    assert_eq!(proxy.metric("tidegate_shadow_refusals_total", &[BULK]), 1.0, "one token was left for two");
    assert_eq!(call(&proxy, "web", "GET /api/v1/nodes/a").await, 200, "in force it still is");
    assert_eq!(proxy.metric("tidegate_shadow_refusals_total", &[REST]), 0.0, "a call in force is counted as it is");
}

#[tokio::test]
async fn a_class_in_shadow_holds_no_slot_in_force() {
    let (backend, answers) = Backend::holding().await;
    let proxy = Arc::new(with_class(&backend, "in_flight = { max = 1 }", true).start().await);
    let mut calls = Vec::new();
    for (count, agent) in ["bulk", "bulk", "web"].into_iter().enumerate() {
        let proxy = Arc::clone(&proxy);
        calls.push(tokio::spawn(async move { call(&proxy, agent, "GET /api/v1/nodes/a").await }));
        within(async {
            while backend.targets().len() <= count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    let waiting = Arc::clone(&proxy);
    calls.push(tokio::spawn(async move { call(&waiting, "web", "GET /api/v1/nodes/b").await }));
    proxy.reaches("tidegate_waiting", &[], 1.0).await;
    answers.add_permits(4);
    for call in calls {
        assert_eq!(within(call).await.expect("no panic"), 200);
    }
    proxy.reaches("tidegate_shadow_wait_seconds_count", &[BULK, "reason=\"slot\""], 1.0).await;
    assert_eq!(proxy.metric("tidegate_shadow_wait_seconds_count", &[]), 1.0);
    assert!(proxy.metric("tidegate_wait_seconds_count", &[REST, "reason=\"slot\""]) >= 1.0);
    assert_eq!(proxy.metric("tidegate_wait_seconds_count", &[BULK]), 0.0);
    proxy.reaches("tidegate_slots_in_use", &[], 0.0).await;
}

#[tokio::test]
async fn a_failure_in_shadow_holds_no_call_in_force() {
    let backend = Backend::replying(503).await;
    let backoff = "backoff = { strategy = \"exponential\", base = \"60s\", hold = \"0s\", failures = [\"503\"] }";
    let proxy = with_class(&backend, backoff, true).start().await;
    let put = async |agent| call(&proxy, agent, "PUT /api/v1/nodes/n").await;
    assert_eq!(put("bulk").await, 503);
    assert_eq!(proxy.metric("tidegate_keys_failing", &[]), 0.0);
    assert_eq!(put("bulk").await, 503);
    assert_eq!(proxy.metric("tidegate_shadow_refusals_total", &[BULK, "reason=\"backoff\""]), 1.0);
    assert_eq!(put("web").await, 503, "the upstream's answer");
    assert_eq!(proxy.metric("tidegate_keys_failing", &[]), 1.0);
    assert_eq!(put("web").await, 429, "ours");
    assert_eq!(proxy.gate.forget(&|_| true).await, 1);
    assert_eq!(put("bulk").await, 503);
    assert_eq!(proxy.metric("tidegate_shadow_refusals_total", &[BULK]), 1.0, "forgotten in shadow too");
}

#[tokio::test]
async fn a_pause_asked_of_a_call_in_shadow_is_heeded_in_force() {
    let backend = Backend::start(|_| async {
        let mut answer = reply(429, "slow down");
        answer.headers_mut().insert("retry-after", http::HeaderValue::from_static("100"));
        answer
    })
    .await;
    let limits =
        "kind = \"http\"\nqueue = { max_wait = \"0s\" }\nsignals = { honour = [\"retry_after\"], scope = \"gate\" }\n";
    let proxy = with_class(&backend, limits, true).start().await;
    for _ in 0..2 {
        assert_eq!(call(&proxy, "bulk", "GET /api/v1/nodes/a").await, 429);
    }
    assert_eq!(backend.targets().len(), 2);
    assert_eq!(proxy.metric("tidegate_shadow_refusals_total", &[BULK, "reason=\"pause\""]), 1.0);
    assert_eq!(call(&proxy, "web", "GET /api/v1/nodes/b").await, 429);
    assert_eq!(proxy.metric("tidegate_refusals_total", &[REST, "reason=\"pause\""]), 1.0);
    assert_eq!(backend.targets().len(), 2);
}

#[tokio::test]
async fn a_class_enters_and_leaves_shadow_by_a_reload() {
    let backend = Backend::replying(200).await;
    let limits = "bucket = { rate = 0.000001, burst = 1 }\nqueue = { max_wait = \"0s\" }\n";
    let proxy = with_class(&backend, limits, false).start().await;
    let bulk = async || call(&proxy, "bulk", "GET /api/v1/nodes/a").await;
    assert_eq!([bulk().await, bulk().await], [200, 429]);
    proxy.gate.reconfigure(with_class(&backend, limits, true).options());
    assert_eq!([bulk().await, bulk().await], [200, 200]);
    assert_eq!(proxy.metric("tidegate_shadow", &[BULK]), 1.0);
    assert!(proxy.gate.status(false).await.shadow.is_some_and(|shadow| shadow.calls.would_have_been_refused == 1));
    proxy.gate.reconfigure(with_class(&backend, limits, false).options());
    assert_eq!(bulk().await, 429);
    assert_eq!(proxy.metric("tidegate_shadow", &[BULK]), 0.0);
    assert_eq!(proxy.gate.status(false).await.shadow, None);
}

#[tokio::test]
async fn the_call_log_says_which_calls_were_in_shadow() {
    let backend = Backend::replying(200).await;
    let (log, mut lines) = tokio::sync::mpsc::channel(9);
    let proxy = with_class(&backend, "", true).with(|options| options.call_log = Some(CallLog::to(log))).start().await;
    for (agent, in_shadow) in [("bulk", true), ("web", false)] {
        assert_eq!(call(&proxy, agent, "GET /api/v1/nodes/a").await, 200);
        let Some(Entry::Call(record)) = within(lines.recv()).await else { panic!("a line") };
        assert_eq!(record.class.shadow, in_shadow, "{record:?}");
    }
}
