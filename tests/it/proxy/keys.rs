//! P2 through a whole gate: the reads of a controller before a failing write do not let that write
//! out early.
//!
//! Delays are an hour, so that one of each failing write may reach the upstream within a test, on a
//! machine of any speed.

use std::sync::Arc;
use std::time::Duration;

use tidegate::classify::ApiKind;
use tidegate::limit::policy::Strategy;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Backend, Proxy, header, reply, rules, status, within};

/// An upstream that answers each call as its `X-Answer` says, `404` or `429 30` (with a
/// Retry-After), and a gate in front of it.
async fn scripted(kind: ApiKind) -> (Backend, Proxy) {
    let backend = Backend::start(|seen| async move {
        let script = seen.headers["x-answer"].to_str().expect("text").to_owned();
        let (status, after) = script.split_once(' ').unwrap_or((&script, ""));
        let mut answer = reply(status.parse().expect("a status"), "{}");
        if !after.is_empty() {
            answer.headers_mut().insert("retry-after", after.parse().expect("a number"));
        }
        answer
    })
    .await;
    let hour = Duration::from_secs(3600);
    let proxy = Proxy::before(backend.address).with(|options| {
        options.gate.rules = Arc::new(rules(kind));
        options.gate.answers.throttling.kubernetes = kind == ApiKind::Kubernetes;
        let backoff = &mut options.gate.policy.classes[1].backoff;
        backoff.strategy = Strategy::Exponential { base: hour, max: hour, jitter: 0.0 };
        backoff.forget_after = 2 * hour;
    });
    (backend, proxy.start().await)
}

/// Sends `METHOD TARGET [BODY]`, and returns the answer.
async fn send(proxy: &Proxy, line: &str, answer: &str) -> String {
    let mut words = line.splitn(3, ' ');
    let (method, target) = (words.next().expect("a method"), words.next().expect("a target"));
    let body = words.next().unwrap_or_default();
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Answer: {answer}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    proxy.exchange(&request).await
}

/// The number of calls with this script that reached the upstream.
fn reached(backend: &Backend, answer: &str) -> usize {
    backend.seen().iter().filter(|seen| seen.headers["x-answer"] == answer).count()
}

const CREATE: &str = r#"POST /api/v1/namespaces/a/configmaps {"metadata":{"name":"c"}}"#;
const GET: &str = "GET /api/v1/namespaces/a/configmaps/c";
const PUT: &str = "PUT /api/v1/namespaces/a/configmaps/c {}";
const PATCH: &str = "PATCH /api/v1/namespaces/a/configmaps/c {}";
const DELETE: &str = "DELETE /api/v1/namespaces/a/configmaps/c";

#[tokio::test]
async fn get_or_create_does_not_let_the_failing_write_out_early() {
    let kubernetes = [
        (GET, CREATE, "500"),
        (GET, CREATE, "429 30"),
        (GET, PUT, "500"),
        (GET, PATCH, "429 30"),
        (GET, PUT, "503 30"),
        ("GET /api/v1/namespaces/a/configmaps/c/status", PUT, "500"),
        ("PUT /api/v1/namespaces/a/configmaps/c/status {}", PUT, "429 30"),
        ("PATCH /api/v1/namespaces/a/configmaps/c/scale {}", PATCH, "500"),
        ("GET /api/v1/namespaces/a/pods/p/log", "PUT /api/v1/namespaces/a/pods/p {}", "500"),
        ("PUT /api/v1/namespaces/a/configmaps/c?dryRun=All {}", "DELETE /api/v1/namespaces/a/configmaps/c", "500"),
        ("DELETE /api/v1/namespaces/a/configmaps/c?dryRun=All", PUT, "500"),
        ("PATCH /api/v1/namespaces/a/configmaps/c?dryRun=All {}", CREATE, "429 30"),
    ];
    let http = [
        ("GET /repos/a/b", "PUT /repos/a/b {}", "429 30"),
        ("GET /repos/a/b", "PATCH /repos/a/b {}", "500"),
        ("HEAD /repos/a/b", "DELETE /repos/a/b", "500"),
        ("POST /repos/a/b {}", "PUT /repos/a/b {}", "500"),
    ];
    let all = kubernetes.map(|row| (ApiKind::Kubernetes, row)).into_iter().chain(http.map(|row| (ApiKind::Http, row)));
    for (kind, (read, write, answer)) in all {
        let (backend, proxy) = scripted(kind).await;
        let dry = read.contains("dryRun") && !write.starts_with("DELETE") && !read.starts_with("DELETE");
        for round in 0..20 {
            // A dry run has the key of the write that it tries: it is refused when that write
            // fails, and so finds out nothing.
            let found = status(&send(&proxy, read, "404").await);
            assert!(found == 404 || found == 429 && dry && round > 0, "{read}: {found}");
            send(&proxy, write, answer).await;
        }
        assert_eq!(reached(&backend, answer), 1, "{read} 404, then {write} {answer}");
        assert!(dry || reached(&backend, "404") == 20, "{read} beside {write} {answer}");
    }
}

#[tokio::test]
async fn a_failing_write_does_not_hold_up_a_delete_and_a_failing_delete_holds_up_itself() {
    let external = ["PATCH /repos/a/b {}", "PUT /repos/a/b {}", "DELETE /repos/a/b"];
    for (kind, [patch, put, delete]) in [(ApiKind::Kubernetes, [PATCH, PUT, DELETE]), (ApiKind::Http, external)] {
        let (backend, proxy) = scripted(kind).await;
        send(&proxy, patch, "429 30").await;
        let refused = send(&proxy, put, "200").await;
        assert_eq!(header(&refused, "tidegate-refusal"), Some("backoff"), "{refused}");
        assert_eq!(status(&send(&proxy, delete, "503").await), 503, "it was sent");
        let refused = send(&proxy, delete, "200").await;
        assert_eq!(header(&refused, "tidegate-refusal"), Some("backoff"), "{refused}");
        assert_eq!(reached(&backend, "200"), 0);
    }
}

#[tokio::test]
async fn a_delete_forgets_the_failures_of_its_object_but_no_time_that_the_upstream_named() {
    let external = ["PUT /repos/a/b {}", "DELETE /repos/a/b"];
    for (kind, [put, delete]) in [(ApiKind::Kubernetes, [PUT, DELETE]), (ApiKind::Http, external)] {
        for gone in ["404", "204"] {
            let (_, proxy) = scripted(kind).await;
            send(&proxy, put, "500").await;
            assert_eq!(status(&send(&proxy, put, "201").await), 429);
            send(&proxy, delete, gone).await;
            assert_eq!(status(&send(&proxy, put, "201").await), 201, "after {delete} {gone}");

            send(&proxy, put, "429 30").await;
            send(&proxy, delete, gone).await;
            let refused = send(&proxy, put, "201").await;
            assert_eq!(header(&refused, "tidegate-refusal"), Some("backoff"), "after {delete} {gone}: {refused}");
        }
    }
}

/// The head of a create of `c`, whose body is sent later.
const LATE: &str = "POST /api/v1/namespaces/a/configmaps HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
     X-Answer: 500\r\nContent-Length: 25\r\n";
const BODY: &[u8] = br#"{"metadata":{"name":"c"}}"#;

async fn rest(client: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    within(client.read_to_end(&mut answer)).await.expect("reads");
    String::from_utf8(answer).expect("text")
}

#[tokio::test]
async fn an_expectation_hides_no_failing_key() {
    let (backend, proxy) = scripted(ApiKind::Kubernetes).await;
    assert_eq!(status(&send(&proxy, CREATE, "500").await), 500);
    let mut client = proxy.connect().await;
    client.write_all(format!("{LATE}Expect: 100-continue\r\n\r\n").as_bytes()).await.expect("writes");
    let mut goes_on = vec![0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    within(client.read_exact(&mut goes_on)).await.expect("an interim answer");
    client.write_all(BODY).await.expect("writes");
    let answer = rest(&mut client).await;
    assert_eq!((status(&answer), header(&answer, "tidegate-refusal")), (429, Some("backoff")), "{answer}");
    assert_eq!(reached(&backend, "500"), 1);
}

/// Who may send a body slowly may send it so again, and each time costs a token and a slot.
#[tokio::test]
async fn a_create_whose_body_dawdles_is_sent_once() {
    let (backend, proxy) = scripted(ApiKind::Kubernetes).await;
    assert_eq!(status(&send(&proxy, CREATE, "500").await), 500);
    let mut client = proxy.connect().await;
    client.write_all(format!("{LATE}\r\n").as_bytes()).await.expect("writes");
    proxy.reaches("tidegate_upstream_streams", &["group=\"short\""], 1.0).await;
    client.write_all(BODY).await.expect("writes");
    assert_eq!(status(&rest(&mut client).await), 500, "it had left before its name was known");
    let answer = send(&proxy, CREATE, "500").await;
    assert_eq!(header(&answer, "tidegate-refusal"), Some("backoff"), "{answer}");
    assert_eq!(reached(&backend, "500"), 2);
}
