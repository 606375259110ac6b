//! The gate follows an upstream's signals about its limits, and bodies arrive as they were sent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use http_body_util::{BodyExt, Full};
use miniz_oxide::deflate::{compress_to_vec, compress_to_vec_zlib};
use tidegate::api::{Scope, Signal};
use tidegate::classify::{
    ApiKind, CallerSplits, FairBy, Matcher, PatternList, QuotaRules, Rule, RuleMatch, Rules, Traits,
};
use tidegate::limit::ClassId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::support::{AnyBody, Backend, Proxy, ProxyBuilder, raw_backend, reply, rules, status, within};

/// A gate in front of an external API whose signals are honoured.
fn before(upstream: SocketAddr, honour: &[Signal]) -> ProxyBuilder {
    Proxy::before(upstream).with(|options| {
        options.gate.rules = Arc::new(rules(ApiKind::Http));
        options.gate.answers.throttling.kubernetes = false;
        options.gate.answers.throttling.honour = honour.iter().copied().collect();
    })
}

const POST: &str = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody";
const DATE: &str = "Date: Wed, 17 Jul 2019 00:57:57 GMT\r\n";
const THROTTLED: &str =
    r#"{"__type":"com.amazonaws.dynamodb.v20120810#ThrottlingException","message":"Rate exceeded"}"#;

/// Everything that comes back through a gate from an upstream that answers with these bytes and
/// hangs up.
async fn through(honour: &[Signal], answer: Vec<u8>) -> Vec<u8> {
    let (address, upstream) = raw_backend(answer.leak()).await;
    let proxy = before(address, honour).start().await;
    let mut stream = proxy.connect().await;
    stream.write_all(POST.as_bytes()).await.expect("writes");
    let mut got = Vec::new();
    // A body that was cut off upstream may end in a reset here.
    within(stream.read_to_end(&mut got)).await.ok();
    within(upstream).await.expect("one call came");
    got
}

fn answer(head: &str, body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 400 Bad Request\r\n{DATE}{head}\r\n").as_bytes(), body].concat()
}

fn chunked(pieces: &[&[u8]], trailers: &str) -> Vec<u8> {
    let chunk = |piece: &&[u8]| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
    let mut body: Vec<u8> = pieces.iter().flat_map(chunk).collect();
    body.extend(format!("0\r\n{trailers}\r\n").bytes());
    body
}

#[tokio::test]
async fn a_body_that_was_looked_at_arrives_byte_for_byte() {
    let large = [THROTTLED.as_bytes(), &[b' '; 20_000]].concat();
    let broken = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &[0xff; 300]].concat();
    let bomb = gzip(&vec![0; 16 << 20]);
    let length = |body: &[u8]| format!("Content-Length: {}\r\n", body.len());
    let in_chunks = "Transfer-Encoding: chunked\r\n";
    let announced = "Transfer-Encoding: chunked\r\nTrailer: x-sum\r\n";
    let pieces: Vec<&[u8]> = THROTTLED.as_bytes().chunks(7).collect();
    for (name, answer) in [
        ("of known length", answer(&length(THROTTLED.as_bytes()), THROTTLED.as_bytes())),
        ("larger than the peek", answer(&length(&large), &large)),
        ("in chunks", answer(in_chunks, &chunked(&pieces, ""))),
        ("in chunks larger than the peek", answer(in_chunks, &chunked(&[&large, b"end"], ""))),
        ("in chunks with trailers", answer(announced, &chunked(&pieces, "x-sum: 7\r\n"))),
        ("of no chunk", answer(in_chunks, b"0\r\n\r\n")),
        ("empty", answer("Content-Length: 0\r\n", b"")),
        ("compressed", answer(&format!("Content-Encoding: gzip\r\n{}", length(&broken)), &broken)),
        ("a bomb", answer(&format!("Content-Encoding: gzip\r\n{}", length(&bomb)), &bomb)),
        ("until the connection ends", answer("Connection: close\r\n", THROTTLED.as_bytes())),
        ("cut off", answer("Content-Length: 5000\r\n", THROTTLED.as_bytes())),
    ] {
        let untouched = through(&[], answer.clone()).await;
        let looked_at = through(&[Signal::Aws, Signal::Github, Signal::Google], answer.clone()).await;
        assert_eq!(String::from_utf8_lossy(&looked_at), String::from_utf8_lossy(&untouched), "{name}");
        assert!(untouched.starts_with(b"HTTP/1.1 400"), "{name}: {}", String::from_utf8_lossy(&untouched));
        if name.ends_with("length") || name == "compressed" || name == "a bomb" || name == "larger than the peek" {
            let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
            assert!(untouched.ends_with(&answer[end..]), "{name}");
        }
    }
}

#[tokio::test]
async fn a_throttle_that_is_told_as_a_400_is_one() {
    let backend = Backend::start(|_| async { error(400, THROTTLED) }).await;
    let proxy = before(backend.address, &[Signal::Aws]).start().await;
    let first = proxy.exchange(POST).await;
    assert!(first.starts_with("HTTP/1.1 400") && first.ends_with(THROTTLED), "{first}");
    let again = proxy.exchange(POST).await;
    assert!(again.contains("tidegate-refusal: backoff"), "{again}");
    assert!(again.contains("retry-after: 1\r\n"), "{again}");
    assert_eq!(backend.targets().len(), 1, "the retry was refused by the gate");
    proxy.reaches("tidegate_signals_total", &["signal=\"aws\"", "class=\"default\""], 1.0).await;

    let wrong = Backend::start(|_| async { error(400, r#"{"__type":"ValidationException"}"#) }).await;
    let proxy = before(wrong.address, &[Signal::Aws]).start().await;
    for _ in 0..3 {
        assert_eq!(status(&proxy.exchange(POST).await), 400);
    }
    assert_eq!(wrong.targets().len(), 3, "the caller's own mistake is not held against it");
}

#[tokio::test]
async fn a_slow_body_holds_its_head_back_for_a_moment_only() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let go_on = Arc::new(Notify::new());
    let wait = Arc::clone(&go_on);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut request = [0; 1024];
        assert!(stream.read(&mut request).await.expect("reads") > 0);
        let head = format!("HTTP/1.1 400 Bad Request\r\n{DATE}Content-Length: {}\r\n\r\n", THROTTLED.len());
        stream.write_all(head.as_bytes()).await.expect("writes");
        wait.notified().await; // only once the client has the head
        stream.write_all(THROTTLED.as_bytes()).await.expect("writes");
    });
    let proxy = before(address, &[Signal::Aws]).start().await;
    let mut stream = proxy.connect().await;
    stream.write_all(POST.as_bytes()).await.expect("writes");
    let mut got = Vec::new();
    while !got.windows(4).any(|four| four == b"\r\n\r\n") {
        assert!(within(stream.read_buf(&mut got)).await.expect("reads") > 0, "the head comes without its body");
    }
    go_on.notify_one();
    within(stream.read_to_end(&mut got)).await.expect("reads");
    assert!(got.ends_with(THROTTLED.as_bytes()), "{}", String::from_utf8_lossy(&got));
}

fn error(status: u16, body: &'static str) -> Response<AnyBody> {
    let body = Full::from(body).map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(status).header("content-type", "application/x-amz-json-1.0").body(body).expect("valid")
}

#[tokio::test]
async fn a_secondary_limit_of_github_is_told_by_its_text_alone() {
    let text = r#"{"message":"You have exceeded a secondary rate limit."}"#;
    let backend = Backend::start(move |_| async move { error(403, text) }).await;
    let proxy = before(backend.address, &[Signal::Github]).start().await;
    assert_eq!(proxy.get("/repos/a/b").await.0, 403);
    let (refused, answer) = proxy.get("/repos/a/b").await;
    assert_eq!(refused, 429);
    assert!(answer.contains("retry-after: 60\r\n"), "{answer}");
    let denied = Backend::start(|_| async { reply(403, r#"{"message":"Must have admin rights"}"#) }).await;
    let proxy =
        before(denied.address, &[Signal::Github]).with(|o| o.gate.answers.throttling.scope = Scope::Gate).start().await;
    assert_eq!(proxy.get("/repos/a/b").await.0, 403);
    assert_eq!(proxy.get("/repos/a/b").await.0, 403);
}

fn gzip(text: &[u8]) -> Vec<u8> {
    [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &compress_to_vec(text, 6)].concat() // no reader checks the sum behind it
}

#[tokio::test]
async fn a_compressed_refusal_is_heard_and_arrives_as_it_was_sent() {
    let text = br#"{"message":"You have exceeded a secondary rate limit."}"#;
    let long = [&text[..], &vec![b' '; 1 << 20]].concat();
    for (coding, body) in [
        ("gzip", gzip(text)),
        ("GZIP", gzip(text)),
        ("x-gzip", gzip(text)),
        ("deflate", compress_to_vec_zlib(text, 6)),
        ("gzip", gzip(&long)),
    ] {
        let sent = body.clone();
        let backend = Backend::start(move |_| {
            let body = Full::from(sent.clone()).map_err(|never| match never {}).boxed_unsync();
            let answer = Response::builder().status(403).header("content-encoding", coding).body(body);
            async move { answer.expect("valid") }
        })
        .await;
        let proxy = before(backend.address, &[Signal::Github]).start().await;
        let mut stream = proxy.connect().await;
        stream
            .write_all(b"GET /repos/a/b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .expect("writes");
        let mut got = Vec::new();
        within(stream.read_to_end(&mut got)).await.expect("reads");
        assert!(got.starts_with(b"HTTP/1.1 403") && got.ends_with(&body), "{coding}: as it was sent");
        for _ in 0..14 {
            assert_eq!(proxy.get("/repos/a/b").await.0, 429, "{coding}");
        }
        assert_eq!(backend.targets().len(), 1, "{coding}");
    }
}

#[tokio::test]
async fn a_time_of_day_without_a_date_beside_it_is_reckoned_by_the_gates_own_clock() {
    for (honour, fields) in [
        (Signal::RetryAfter, "Retry-After: Fri, 31 Dec 2100 23:59:59 GMT\r\n"),
        (Signal::Github, "X-RateLimit-Limit: 60\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 4133980799\r\n"),
    ] {
        let answer = format!("HTTP/1.1 429 Too Many Requests\r\n{fields}Content-Length: 0\r\n\r\n");
        let (address, upstream) = raw_backend(answer.into_bytes().leak()).await;
        let proxy = before(address, &[honour]).start().await;
        assert_eq!(proxy.get("/a").await.0, 429);
        within(upstream).await.expect("one call came");
        let (refused, answer) = proxy.get("/a").await;
        assert!(refused == 429 && answer.contains("tidegate-refusal"), "{answer}");
        assert!(answer.contains("retry-after: 900\r\n"), "as long as is allowed: {answer}");
    }
}

/// An answer as GitHub gives it, a minute before the reset.
fn quota(status: u16, left: &'static str) -> Response<AnyBody> {
    let body = Full::from("{}").map_err(|never| match never {}).boxed_unsync();
    Response::builder()
        .status(status)
        .header("date", "Wed, 17 Jul 2019 00:57:57 GMT")
        .header("x-ratelimit-limit", "5000")
        .header("x-ratelimit-remaining", left)
        .header("x-ratelimit-reset", "1563325137")
        .header("x-ratelimit-resource", "core")
        .body(body)
        .expect("valid")
}

async fn get(proxy: &Proxy, path: &str, token: &str) -> String {
    let head = "Host: localhost\r\nConnection: close\r\n";
    proxy.exchange(&format!("GET {path} HTTP/1.1\r\n{head}Authorization: Bearer {token}\r\n\r\n")).await
}

#[tokio::test]
async fn a_quota_that_is_used_up_but_for_the_reserve_pauses_its_credential() {
    let backend = Backend::start(|seen| async move {
        let one = seen.headers["authorization"] == "Bearer one";
        quota(200, if one { "500" } else { "501" })
    })
    .await;
    let exempt = Matcher::default().with(PatternList::Paths, vec!["/rate_limit".to_owned()]);
    let exempt = Rule { class: ClassId(0), matching: RuleMatch::Patterns(Box::new(exempt)) };
    let traits =
        |exempt| Traits { exempt, remembers: !exempt, strictness: 0, cost: tidegate::classify::CostBy::Number(1) };
    let rules = Rules::new(ApiKind::Http, FairBy::Resource, vec![traits(true), traits(false)], vec![exempt]);
    let honour = [Signal::Github].into_iter().collect();
    let quotas = QuotaRules { scope: Scope::Credential, honour };
    let of_gate = Some(tidegate::limit::policy::Per::Credential);
    let splits = CallerSplits { of_gate, quotas, ..CallerSplits::default() };
    let rules = rules.with_splits(splits);
    let proxy = before(backend.address, &[Signal::Github])
        .max_wait(Duration::from_secs(1))
        .with(|options| {
            options.gate.rules = Arc::new(rules);
            options.gate.answers.throttling.scope = Scope::Credential;
            options.gate.answers.throttling.reserve = 0.1;
        })
        .start()
        .await;
    assert_eq!(status(&get(&proxy, "/repos/a/b", "one").await), 200);
    let paused = get(&proxy, "/repos/c/d", "one").await;
    assert_eq!(status(&paused), 429, "{paused}");
    assert!(paused.contains("tidegate-refusal: pause"), "{paused}");
    assert!(paused.contains("500 of 5000 left; `signals.reserve` keeps them"), "{paused}");
    assert!(!paused.contains("upstream asked"), "it asked for nothing: {paused}");
    let after = paused.split_once("retry-after: ").and_then(|(_, rest)| rest.split("\r\n").next()?.parse::<u64>().ok());
    assert!(after.is_some_and(|after| (61..=74).contains(&after)), "spread, never sooner: {paused}");
    assert_eq!(status(&get(&proxy, "/repos/c/d", "two").await), 200, "another token has a quota of its own");
    assert_eq!(status(&get(&proxy, "/repos/c/d", "two").await), 200, "and more than the reserve left of it");
    assert_eq!(status(&get(&proxy, "/rate_limit", "one").await), 200, "exempt calls never pause");
    assert_eq!(backend.targets(), ["/repos/a/b", "/repos/c/d", "/repos/c/d", "/rate_limit"]);
    proxy.reaches("tidegate_refusals_total", &["reason=\"pause\""], 1.0).await;
    proxy.reaches("tidegate_signals_total", &["signal=\"github\"", "class=\"default\""], 1.0).await;
    let shown = proxy.gate.status(false).await;
    assert_eq!((shown.pauses[0].left, shown.pauses[0].limit), (Some(500), Some(5000)), "{:?}", shown.pauses);
    let explained =
        proxy.gate.explain(&http::Method::GET, &"/repos/a/b".parse().expect("a path"), &http::HeaderMap::new());
    let note = "1 of 2 credentials in use is paused: 500 of 5000 left; `signals.reserve` keeps them";
    assert!(explained.notes.iter().any(|says| says.starts_with(note)), "{:?}", explained.notes);
    let told = shown.quotas;
    let left = |n: usize| (told[n].resource.as_str(), told[n].limit, told[n].remaining, told[n].resets_ms.is_some());
    let mut both = [left(0), left(1)];
    both.sort_unstable();
    assert_eq!((told.len(), both), (2, [("core", Some(5000), 500, true), ("core", Some(5000), 501, true)]));
    assert!(told[0].account.len() == 6 && told[0].account != told[1].account, "{told:?}");
    let of = format!("account=\"{}\"", told[0].account);
    proxy.reaches("tidegate_quota_limit", &["resource=\"core\"", &of], 5000.0).await;
}

#[tokio::test]
async fn a_shadow_shows_the_upstreams_quota_too() {
    let backend = Backend::start(|_| async { quota(200, "77") }).await;
    let proxy = before(backend.address, &[Signal::Github]).with(|options| options.gate.shadow = true).start().await;
    assert_eq!(status(&get(&proxy, "/repos/a/b", "one").await), 200);
    let told = proxy.gate.status(false).await.quotas;
    assert_eq!((told[0].remaining, told[0].account.as_str()), (77, ""), "callers are not told apart");
    proxy.reaches("tidegate_quota_remaining", &["resource=\"core\""], 77.0).await;
}

#[tokio::test]
async fn a_refused_quota_pauses_more_than_its_key() {
    let backend = Backend::start(|_| async { quota(403, "0") }).await;
    let proxy = before(backend.address, &[Signal::Github])
        .max_wait(Duration::from_secs(1))
        .with(|options| options.gate.answers.throttling.scope = Scope::Gate)
        .start()
        .await;
    assert_eq!(status(&get(&proxy, "/repos/a/b", "one").await), 403, "the client sees what the upstream said");
    for path in ["/repos/a/b", "/repos/c/d"] {
        assert_eq!(status(&get(&proxy, path, "one").await), 429);
    }
    assert_eq!(backend.targets().len(), 1);
}
