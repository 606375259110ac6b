//! A gate with `shadow = true`: it decides and counts everything, and holds nothing back; clients
//! notice nothing.

use std::sync::Arc;
use std::time::Duration;

use tidegate::limit::policy::Strategy;
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
    assert_eq!(proxy.metric("tidegate_shadow", &[]), 1.0);
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
