//! The gate's own failures, and the ways in which a gate stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Backend, Proxy, status, within};

/// An address where no server listens.
async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("bound")
}

#[tokio::test]
async fn without_an_upstream_a_watch_gets_429_and_everything_else_502_and_nothing_waits() {
    let proxy = Proxy::before(nobody().await).start().await;
    for (target, expected) in [("/api/v1/pods?watch=1", 429), ("/api/v1/pods", 502), ("/api/v1/nodes/n", 502)] {
        for _ in 0..3 {
            let (status, answer) = within(proxy.get(target)).await;
            assert_eq!(status, expected, "{target}");
            let lower = answer.to_lowercase();
            assert!(!lower.contains("retry-after") && !lower.contains("tidegate-refusal"), "{answer}");
            assert!(answer.contains("\"kind\":\"Status\"") && answer.contains("cannot be reached"), "{answer}");
        }
    }
    let lease = "/apis/coordination.k8s.io/v1/namespaces/n/leases/leader";
    assert_eq!(within(proxy.get(lease)).await.0, 502);
    assert_eq!(proxy.metric("tidegate_keys_failing", &[]), 0.0, "failing to connect counts against no key");
    assert_eq!(proxy.metric("tidegate_failures_total", &["kind=\"unconnected\""]), 10.0);
}

#[tokio::test]
async fn the_gate_serves_again_once_the_upstream_is_there() {
    let address = nobody().await;
    let proxy = Proxy::before(address).start().await;
    assert_eq!(within(proxy.get("/api/v1/nodes/n")).await.0, 502);
    let listener = TcpListener::bind(address).await.expect("still free");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
                    if head.ends_with(b"\r\n\r\n") {
                        head.clear();
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.expect("writes");
                    }
                }
            });
        }
    });
    within(async { while proxy.get("/api/v1/nodes/n").await.0 != 200 {} }).await;
}

#[tokio::test]
async fn sent_and_then_lost_is_502_and_only_reads_are_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
                stream.write_all(b"HTTP/1.1 2").await.expect("writes");
            });
        }
    });
    let proxy = Proxy::before(address).start().await;
    let (got, answer) = within(proxy.get("/api/v1/nodes/read")).await;
    assert_eq!(got, 502, "{answer}");
    assert!(answer.to_lowercase().contains("\r\nretry-after: 1\r\n"), "{answer}");
    let put = "PUT /api/v1/nodes/write HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let answer = within(proxy.exchange(put)).await;
    assert_eq!(status(&answer), 502);
    assert!(!answer.to_lowercase().contains("retry-after"), "{answer}");
    assert_eq!(proxy.metric("tidegate_keys_failing", &[]), 2.0, "lost counts as a failure");
}

#[tokio::test]
async fn no_answer_in_time_is_504() {
    let backend = Backend::start(|_| std::future::pending()).await;
    let proxy = Proxy::before(backend.address)
        .with(|options| options.upstream.response_timeout = Some(Duration::from_millis(50)))
        .start()
        .await;
    let (status, answer) = within(proxy.get("/api/v1/nodes/n")).await;
    assert_eq!(status, 504, "{answer}");
    assert_eq!(proxy.metric("tidegate_failures_total", &["kind=\"timeout\""]), 1.0);
}

#[tokio::test]
async fn after_stop_it_serves_on_until_the_last_client_is_gone() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let mut client = proxy.connect().await;
    let mut ask = async |target: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.write_all(request.as_bytes()).await.expect("writes");
        let mut answer = Vec::new();
        within(async {
            while !answer.ends_with(b"ok") {
                assert!(client.read_buf(&mut answer).await.expect("reads") > 0);
            }
        })
        .await;
        status(&String::from_utf8_lossy(&answer))
    };
    assert_eq!(ask("/before").await, 200);
    proxy.stop.cancel();
    assert_eq!(ask("/on/the/same/connection").await, 200);
    assert_eq!(proxy.get("/on/a/new/one").await.0, 200);
    drop(client);
    within(proxy.gate.finished()).await;
    tokio::net::TcpStream::connect(proxy.address).await.expect_err("closed");
}

#[tokio::test]
async fn when_the_drain_is_over_calls_finish_and_idle_clients_are_sent_away() {
    let (backend, answers) = Backend::holding().await;
    let proxy = Arc::new(
        Proxy::before(backend.address).with(|options| options.drain = Duration::from_millis(20)).start().await,
    );
    let mut idle = proxy.connect().await;
    let busy = {
        let proxy = Arc::clone(&proxy);
        tokio::spawn(async move { proxy.get("/slow").await.0 })
    };
    proxy.reaches("tidegate_in_flight", &[], 1.0).await;
    proxy.stop.cancel();
    let mut end = Vec::new();
    within(idle.read_to_end(&mut end)).await.expect("closed");
    answers.add_permits(1);
    assert_eq!(within(busy).await.expect("no panic"), 200);
    within(proxy.gate.finished()).await;
}

#[tokio::test]
async fn the_metrics_tell_what_happened() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).bucket(50.0, 5).start().await;
    for target in ["/api/v1/nodes/a", "/api/v1/nodes/b", "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"] {
        assert_eq!(proxy.get(target).await.0, 200);
    }
    let count = |name, labels: &[&str]| proxy.metric(name, labels);
    assert_eq!(
        count("tidegate_calls_total", &["class=\"default\"", "lane=\"normal\"", "verb=\"get\"", "code=\"2xx\""]),
        2.0
    );
    assert_eq!(count("tidegate_calls_total", &["class=\"leases\"", "lane=\"exempt\""]), 1.0);
    assert_eq!(count("tidegate_upstream_seconds_count", &["class=\"default\""]), 2.0);
    assert_eq!(count("tidegate_bucket_rate", &["bucket=\"gate\""]), 50.0);
    assert_eq!(count("tidegate_upstream_connections", &["group=\"short\""]), 1.0);
    assert_eq!(count("tidegate_waiting", &[]), 0.0);
    assert_eq!(count("tidegate_slots_in_use", &[]), 0.0);
    proxy.reaches("tidegate_in_flight", &[], 0.0).await;
    proxy.reaches("tidegate_client_connections", &[], 0.0).await;
    let unreachable = Proxy::before(nobody().await).start().await;
    assert_eq!(unreachable.get("/x").await.0, 502);
    assert!(unreachable.metric("tidegate_upstream_dial_failures_total", &["group=\"short\""]) >= 1.0);
}
