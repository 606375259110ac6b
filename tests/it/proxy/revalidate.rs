//! Answers that are kept, and asked about: what has not changed comes from the gate, byte for byte,
//! and never to another client than the one that it was for.

mod argo;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tidegate::classify::ApiKind;
use tidegate::spec::Revalidation;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{AnyBody, Backend, Proxy, ProxyBuilder, Seen, bucket, header, reply, rules, status, within};

/// An external API whose answers are kept.
fn keeping(backend: &Backend) -> ProxyBuilder {
    Proxy::before(backend.address).with(|options| {
        options.gate.kind = ApiKind::Http;
        options.gate.answers.throttling.kubernetes = false;
        options.gate.rules = Arc::new(rules(ApiKind::Http));
        options.gate.answers.revalidation = Revalidation { classes: vec![false, true], max_bytes: 1 << 20 };
    })
}

/// An API that calls each answer by one name, whoever asks, and tells each caller who it is. The
/// path has the version.
fn whoami(seen: &Seen) -> Response<AnyBody> {
    let name = format!("\"{}\"", seen.target.len());
    let is_same = seen.headers.get("if-none-match").is_some_and(|asked| *asked == name);
    let who = ["authorization", "x-api-key", "private-token"].iter().find_map(|name| seen.headers.get(*name));
    let who = who.map_or("nobody", |who| who.to_str().expect("text"));
    let body = if is_same { String::new() } else { format!("{{\"you\": \"{who}\"}}\n") };
    let body = Full::from(body).map_err(|never| match never {}).boxed_unsync();
    let answer = Response::builder().status(if is_same { 304 } else { 200 });
    let answer = answer.header("ETag", name).header("X-Left", if is_same { "7" } else { "8" });
    let answer =
        answer.header("Content-Type", "application/json; charset=utf-8").header("X-Two", "a").header("X-Two", "b");
    answer.body(body).expect("valid")
}

async fn api() -> Backend {
    Backend::start(|seen| async move { whoami(&seen) }).await
}

async fn get(proxy: &Proxy, target: &str, headers: &str) -> String {
    proxy.exchange(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")).await
}

fn conditions(backend: &Backend) -> Vec<Option<HeaderValue>> {
    backend.seen().iter().map(|seen| seen.headers.get("if-none-match").cloned()).collect()
}

/// An answer without the lines that may differ.
fn same(answer: &str) -> String {
    let differs = |line: &str| {
        ["date: ", "tidegate-cache: ", "x-left: "].iter().any(|name| line.to_lowercase().starts_with(name))
    };
    answer.split_inclusive("\r\n").filter(|line| !differs(line)).collect()
}

#[tokio::test]
async fn what_has_not_changed_comes_again_byte_for_byte() {
    let backend = api().await;
    let proxy = keeping(&backend).start().await;
    let first = get(&proxy, "/user", "Authorization: Bearer one\r\n").await;
    assert_eq!((status(&first), header(&first, "tidegate-cache")), (200, None));
    for _ in 0..2 {
        let again = get(&proxy, "/user", "Authorization: Bearer one\r\n").await;
        assert_eq!(same(&again), same(&first));
        assert_eq!(header(&again, "tidegate-cache"), Some("revalidated"));
        assert_eq!(header(&again, "x-left"), Some("7"), "what the upstream tells of itself is of now");
    }
    let name = Some(HeaderValue::from_static("\"5\""));
    assert_eq!(conditions(&backend), [None, name.clone(), name]);
    assert_eq!(proxy.metric("tidegate_revalidated_total", &["class=\"default\""]), 2.0);
    assert!((300.0..10_000.0).contains(&proxy.metric("tidegate_kept_bytes", &[])));
    let told = proxy.gate.status(true).await;
    assert_eq!(told.revalidated, 2);
    let says = told.remarks(0);
    assert!(says.iter().any(|fact| fact.says.starts_with("2 calls were answered from ")), "{says:?}");
}

#[tokio::test]
async fn two_clients_never_see_each_others_answers() {
    let backend = api().await;
    let proxy = keeping(&backend).start().await;
    let callers = [
        "Authorization: Bearer one\r\n",
        "Authorization: Bearer two\r\n",
        "X-Api-Key: three\r\n",
        "PRIVATE-TOKEN: four\r\n",
        "Authorization: Bearer one\r\nX-Api-Key: five\r\n",
        "Cookie: session=6\r\nAuthorization: Bearer one\r\n",
        "",
    ];
    for round in 0..3 {
        for caller in callers {
            let answer = get(&proxy, "/user", caller).await;
            let who = caller.split_once(": ").map_or("nobody", |(_, who)| who.lines().next().expect("a line"));
            let who = if caller.contains("Bearer one") { "Bearer one" } else { who };
            assert!(answer.ends_with(&format!("\r\n\r\n{{\"you\": \"{who}\"}}\n")), "{caller}: {answer}");
            assert_eq!(header(&answer, "tidegate-cache").is_some(), round > 0, "{caller}");
        }
    }
    assert_eq!(conditions(&backend).iter().filter(|asked| asked.is_none()).count(), callers.len());
}

#[tokio::test]
async fn a_client_with_a_cache_of_its_own_is_left_alone() {
    let backend = api().await;
    let proxy = keeping(&backend).start().await;
    get(&proxy, "/user", "").await;
    let answer = get(&proxy, "/user", "If-None-Match: \"5\"\r\n").await;
    assert_eq!((status(&answer), header(&answer, "tidegate-cache")), (304, None));
    assert_eq!(status(&get(&proxy, "/user", "If-None-Match: \"old\"\r\n").await), 200);
    for own in
        ["Range: bytes=0-1\r\n", "Cache-Control: no-store\r\n", "If-Modified-Since: Tue, 01 Jan 2030 00:00:00 GMT\r\n"]
    {
        get(&proxy, "/user", own).await;
        assert_eq!(conditions(&backend).pop(), Some(None), "{own}");
    }
}

#[tokio::test]
async fn only_classes_that_say_so_keep_answers_and_a_shadow_never_does() {
    let backend = api().await;
    for change in [
        (|gate: &mut tidegate::spec::Gate| gate.answers.revalidation.classes = vec![true, false])
            as fn(&mut tidegate::spec::Gate),
        |gate| gate.shadow = true,
        |gate| gate.answers.revalidation = Revalidation::default(),
    ] {
        let proxy = keeping(&backend).with(|options| change(&mut options.gate)).start().await;
        for _ in 0..2 {
            assert_eq!(header(&get(&proxy, "/user", "").await, "tidegate-cache"), None);
        }
    }
    assert!(conditions(&backend).iter().all(Option::is_none));
}

#[tokio::test]
async fn a_head_is_asked_about_too_and_has_no_body() {
    let backend = api().await;
    let proxy = keeping(&backend).start().await;
    let head = "HEAD /user HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let (first, again) = (proxy.exchange(head).await, proxy.exchange(head).await);
    assert_eq!(same(&again), same(&first));
    assert_eq!(header(&again, "tidegate-cache"), Some("revalidated"));
    assert!(again.ends_with("\r\n\r\n"));
    assert_eq!(header(&get(&proxy, "/user", "").await, "tidegate-cache"), None, "a GET needs the body");
}

#[tokio::test(start_paused = true)]
async fn a_304_gives_its_token_back_to_callers_that_the_upstream_knows() {
    let backend = api().await;
    let start = |max_wait| {
        let builder = keeping(&backend).bucket(0.000_1, 3).max_wait(max_wait);
        builder.policy(|policy| policy.uncounted = Some(bucket(0.000_1, 5))).start()
    };
    let proxy = start(Duration::ZERO).await;
    let known = "Authorization: Bearer one\r\n";
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(status(&get(&proxy, "/user", known).await));
    }
    // One token for the first, five that come back, and the two that are left.
    assert_eq!(statuses, [[200; 8].as_slice(), &[429; 2]].concat());
    let proxy = start(Duration::ZERO).await;
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(status(&get(&proxy, "/user", "").await));
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429], "nobody in particular is counted");
}

#[tokio::test]
async fn an_upstream_that_confirms_what_was_not_asked_is_asked_plainly_from_then_on() {
    let backend = Backend::start(|seen| async move {
        let is_asked = seen.headers.contains_key("if-none-match");
        let mut answer = reply(if is_asked { 304 } else { 200 }, if is_asked { "" } else { "ok" });
        let name = if is_asked { "\"another\"" } else { "\"a\"" };
        answer.headers_mut().insert("etag", HeaderValue::from_static(name));
        answer
    })
    .await;
    let proxy = keeping(&backend).start().await;
    for _ in 0..4 {
        let answer = get(&proxy, "/", "").await;
        assert_eq!((status(&answer), header(&answer, "etag")), (200, Some("\"a\"")));
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    }
    let asked = Some(HeaderValue::from_static("\"a\""));
    assert_eq!(conditions(&backend), [None, asked, None, None, None]);
    assert_eq!(proxy.metric("tidegate_kept_bytes", &[]), 0.0);
}

#[tokio::test]
async fn what_broke_off_is_not_kept() {
    let backend = Backend::start(|seen| async move {
        let mut answer = whoami(&seen);
        if seen.target == "/x" && seen.headers.contains_key("x-break") {
            let frames = [Ok(Frame::data(Bytes::from("half"))), Err(std::io::Error::other("it breaks"))];
            let frames = futures_util::stream::iter(frames).then(async |frame| {
                tokio::task::yield_now().await; // so that the first piece leaves before the end
                frame
            });
            *answer.body_mut() = StreamBody::new(frames).boxed_unsync();
        }
        answer
    })
    .await;
    let proxy = keeping(&backend).start().await;
    for _ in 0..2 {
        let mut stream = proxy.connect().await;
        let request = "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Break: 1\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("writes");
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.ok(); // cut or ended: either way it is no whole answer
    }
    assert_eq!(conditions(&backend), [None, None]);
}
