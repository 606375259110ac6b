//! Paths, namespaces and user agents without end: what the gate remembers of them is bounded.

use http::Request;
use http_body_util::{BodyExt as _, Full};

use super::{Flooded, LEASES, many};
use crate::pool::support::soon;

/// Every call fails, so that its key would be remembered, and no name comes twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_never_come_again_are_not_remembered_for_ever() {
    let count = many(20_000, 1_000_000); // a debug build serves some thousands a second
    let flooded = Flooded::start(
        "bucket = \"off\"\nretry_bucket = \"off\"\nqueue = { fair_by = \"user_agent\" }\nbackoff = { max_keys = 1000 }\n",
    )
    .await;
    let clients = [flooded.connect_http2().await, flooded.connect_http2().await];
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..count {
        let mut client = clients[n % 2].clone();
        let target = format!("http://localhost/apis/g{n}.bad/v1/namespaces/n{n}/k{n}/bad?q={n}");
        let request = Request::get(target).header("user-agent", format!("a{n}/v{n}")).body(Full::default());
        let request = request.expect("valid");
        calls.spawn(async move {
            let answer = client.send_request(request).await.expect("answered");
            assert!([503, 429].contains(&answer.status().as_u16()), "{}", answer.status());
            answer.into_body().collect().await.expect("whole");
        });
        while calls.len() >= 100 {
            soon(calls.join_next()).await.expect("some").expect("no panic");
        }
    }
    while let Some(done) = soon(calls.join_next()).await {
        done.expect("no panic");
    }
    let keys = flooded.metric("tidegate_keys_failing");
    assert!((1.0..=1000.0).contains(&keys), "{keys} keys");
    flooded.leases(LEASES).await;
    drop(clients);
    flooded.over(48 << 20).await;
}
