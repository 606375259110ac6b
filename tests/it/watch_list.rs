//! A watch that begins with a list: to the API server a list, and metered like one; in every other
//! way a watch.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Backend, Proxy, status};

const WATCH_LIST: &str =
    "/api/v1/pods?allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true";

/// A gate that lets one call through and holds none.
async fn one_token(backend: &Backend, in_flight: u32) -> Arc<Proxy> {
    let proxy = Proxy::before(backend.address).bucket(0.001, 1).in_flight(in_flight);
    Arc::new(proxy.policy(|policy| policy.queue.max_wait = Duration::ZERO).start().await)
}

#[tokio::test]
async fn the_initial_list_of_a_watch_costs_a_token_like_any_list() {
    for first in ["/api/v1/nodes", WATCH_LIST] {
        let backend = Backend::replying(200).await;
        let proxy = one_token(&backend, 100).await;
        assert_eq!(proxy.get(first).await.0, 200);
        let (code, answer) = proxy.get(WATCH_LIST).await;
        assert_eq!((code, status(&answer)), (429, 429), "{answer}");
        // The reflectors of client-go and kube-rs know how to wait for this.
        assert!(answer.contains("tidegate-refusal: bucket") && answer.contains("retry-after: "), "{answer}");
        for free in [
            "/api/v1/pods?watch=true",
            "/api/v1/pods?watch=true&sendInitialEvents=false",
            "/api/v1/pods?watch=true&sendInitialEvents=0",
            "/api/v1/watch/pods",
        ] {
            assert_eq!(proxy.get(free).await.0, 200, "{free}");
        }
    }
}

#[tokio::test]
async fn a_watch_that_begins_with_a_list_holds_no_slot_and_stands_in_nobodys_way() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).bucket(0.001, 1).in_flight(1);
    let proxy = Arc::new(proxy.policy(|policy| policy.queue.max_wait = Duration::from_secs(3600)).start().await);
    assert_eq!(proxy.get("/api/v1/nodes").await.0, 200);
    let waiting = tokio::spawn({
        let proxy = Arc::clone(&proxy);
        async move { proxy.get(WATCH_LIST).await }
    });
    proxy.reaches("tidegate_waiting", &[], 1.0).await;
    assert_eq!(proxy.get("/api/v1/pods?watch=true").await.0, 200, "a plain watch goes past it");
    assert_eq!(proxy.get("/apis/coordination.k8s.io/v1/namespaces/a/leases/l").await.0, 200);
    waiting.abort();
}
