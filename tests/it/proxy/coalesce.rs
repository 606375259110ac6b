//! Identical GETs that wait become one: one request goes upstream, and its answer is for all of
//! them, but never across identities.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tidegate::classify::Kind;
use tidegate::limit::policy::Strategy;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::support::{AnyBody, Backend, Proxy, Seen, reply, rules, status, within};

/// An upstream that answers only with a permit, behind a gate with one slot, and a call that holds
/// the slot.
struct Scene {
    backend: Backend,
    proxy: Arc<Proxy>,
    answers: Arc<Semaphore>,
    holder: JoinHandle<String>,
}

impl Scene {
    async fn start(answer: impl Fn(&Seen) -> Response<AnyBody> + Send + Sync + 'static) -> Self {
        Self::of(Kind::Kubernetes, answer).await
    }

    async fn of(kind: Kind, answer: impl Fn(&Seen) -> Response<AnyBody> + Send + Sync + 'static) -> Self {
        let answers = Arc::new(Semaphore::new(0));
        let (gate, answer) = (Arc::clone(&answers), Arc::new(answer));
        let backend = Backend::start(move |seen| {
            let (gate, answer) = (Arc::clone(&gate), Arc::clone(&answer));
            async move {
                gate.acquire().await.expect("open").forget();
                answer(&seen)
            }
        })
        .await;
        let proxy = Proxy::before(backend.address).in_flight(1).with(|options| {
            options.gate.coalesce = true;
            options.gate.throttling.kubernetes = kind == Kind::Kubernetes;
            options.gate.rules = Arc::new(rules(kind));
        });
        let proxy = Arc::new(proxy.start().await);
        let scene = Self { holder: get(&proxy, "/holder", ""), backend, proxy, answers };
        scene.arrived(1).await;
        scene
    }

    /// Sends a GET, and returns once it is the n-th that waits inside the gate.
    async fn waiting(&self, nth: f64, headers: &str) -> JoinHandle<String> {
        let call = get(&self.proxy, "/same", headers);
        self.proxy.reaches("tidegate_in_flight", &[], nth).await;
        call
    }

    /// Returns when this many calls have reached the upstream.
    async fn arrived(&self, calls: usize) {
        within(async {
            while self.backend.targets().len() < calls {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn answer_one(&self) {
        self.answers.add_permits(1);
    }
}

fn get(proxy: &Arc<Proxy>, target: &'static str, headers: &str) -> JoinHandle<String> {
    let proxy = Arc::clone(proxy);
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    tokio::spawn(async move { proxy.exchange(&request).await })
}

async fn answer(call: JoinHandle<String>) -> String {
    within(call).await.expect("no panic")
}

/// An answer without its own Server-Timing, and that header.
fn told(answer: &str) -> (String, String) {
    let (own, rest): (Vec<&str>, Vec<&str>) =
        answer.split_inclusive("\r\n").partition(|line| line.starts_with("server-timing: tidegate"));
    (rest.concat(), own.concat())
}

/// A chunked answer with a trailer.
fn chunked() -> Response<AnyBody> {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("7"));
    let frames = [Frame::data(Bytes::from("half ")), Frame::data(Bytes::from("whole")), Frame::trailers(trailers)];
    let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, std::io::Error>)));
    let response = Response::builder().header("trailer", "x-sum").header("x-note", "a").header("x-note", "b");
    response.body(BodyExt::boxed_unsync(body)).expect("valid")
}

#[tokio::test]
async fn those_who_wait_with_the_same_call_are_answered_from_one_byte_for_byte() {
    let scene = Scene::start(|seen| if seen.target == "/same" { chunked() } else { reply(200, "ok") }).await;
    let calls = [
        scene.waiting(2.0, "TE: trailers\r\n").await,
        scene.waiting(3.0, "TE: trailers\r\n").await,
        scene.waiting(4.0, "TE: trailers\r\n").await,
    ];
    scene.answer_one().await;
    scene.arrived(2).await;
    scene.answer_one().await;
    let mut answers = Vec::new();
    for call in calls {
        answers.push(told(&answer(call).await));
    }
    assert_eq!(status(&answers[0].0), 200);
    assert!(
        answers[0].0.contains("x-note: a\r\nx-note: b\r\n") && answers[0].0.contains("x-sum: 7"),
        "{}",
        answers[0].0
    );
    let reassembled =
        answers.iter().map(|(rest, _)| rest.replace("a\r\nhalf whole\r\n", "5\r\nhalf \r\n5\r\nwhole\r\n"));
    let reassembled: Vec<String> = reassembled.collect();
    assert!(reassembled.iter().all(|rest| *rest == reassembled[0]), "{reassembled:#?}");
    let coalesced = answers.iter().filter(|(_, own)| own.contains("desc=\"coalesced\""));
    assert_eq!(coalesced.count(), 2, "everybody has a timing of their own: {answers:?}");
    assert_eq!(scene.backend.targets(), ["/holder", "/same"]);
    assert_eq!(scene.proxy.metric("tidegate_coalesced_total", &["class=\"default\""]), 2.0);
    assert_eq!(scene.proxy.metric("tidegate_hangups_total", &[]), 0.0);
    assert_eq!(status(&answer(scene.holder).await), 200);
}

#[tokio::test]
async fn nobody_is_answered_with_what_another_identity_got() {
    let scene = Scene::start(|seen| {
        let who = seen.headers.get("authorization").map_or(&b"nobody"[..], |value| value.as_bytes()).to_vec();
        reply(200, "").map(|_| http_body_util::Full::from(who).map_err(|never| match never {}).boxed_unsync())
    })
    .await;
    let headers = ["", "Authorization: one\r\n", "Authorization: two\r\n", "Authorization: one\r\nAccept: x\r\n"];
    let mut calls = Vec::new();
    for (place, headers) in (2_u8..).zip(headers) {
        calls.push(scene.waiting(place.into(), headers).await);
    }
    scene.answers.add_permits(5);
    for (call, expected) in calls.into_iter().zip(["nobody", "one", "two", "one"]) {
        let answer = answer(call).await;
        assert!(answer.ends_with(&format!("\r\n\r\n{expected}")), "{answer}");
    }
    assert_eq!(scene.backend.targets().len(), 5);
    assert_eq!(scene.proxy.metric("tidegate_coalesced_total", &[]), 0.0);
}

#[tokio::test]
async fn a_leader_that_leaves_is_followed_by_the_next() {
    let scene = Scene::start(|_| reply(200, "ok")).await;
    let mut first = scene.proxy.connect().await;
    first.write_all(b"GET /same HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.expect("writes");
    scene.proxy.reaches("tidegate_in_flight", &[], 2.0).await;
    let (second, third) = (scene.waiting(3.0, "").await, scene.waiting(4.0, "").await);
    scene.answer_one().await;
    scene.arrived(2).await;
    drop(first);
    scene.arrived(3).await;
    scene.answers.add_permits(2);
    assert_eq!((status(&answer(second).await), status(&answer(third).await)), (200, 200));
    assert_eq!(scene.backend.targets(), ["/holder", "/same", "/same"], "one for the two who stayed");
}

#[tokio::test]
async fn a_failure_is_nobodys_but_who_met_it() {
    let scene = Scene::start(|seen| reply(if seen.target == "/same" { 503 } else { 200 }, "no")).await;
    let (first, second) = (scene.waiting(2.0, "").await, scene.waiting(3.0, "").await);
    scene.answers.add_permits(2);
    assert_eq!(status(&answer(first).await), 503);
    let second = answer(second).await;
    assert!(second.contains("tidegate-refusal: backoff"), "what the key says, and not the other's answer: {second}");
    assert_eq!(scene.proxy.metric("tidegate_coalesced_total", &[]), 0.0);
}

#[tokio::test]
async fn an_answer_of_more_than_a_mebibyte_is_nobodys_else() {
    const LONG: usize = (1 << 20) + 1;
    let scene = Scene::start(|seen| {
        let length = if seen.target == "/same" { LONG } else { 0 };
        reply(200, "")
            .map(|_| http_body_util::Full::from(vec![b'x'; length]).map_err(|never| match never {}).boxed_unsync())
    })
    .await;
    let (first, second) = (scene.waiting(2.0, "").await, scene.waiting(3.0, "").await);
    scene.answers.add_permits(3);
    for call in [first, second] {
        assert!(answer(call).await.len() > LONG);
    }
    assert_eq!(scene.backend.targets().len(), 3);
}

/// The gate obeys an upstream that restricts its answer to one client: the other calls are sent in
/// turn.
#[tokio::test]
async fn an_answer_that_is_for_one_client_only_is_nobodys_else() {
    for headers in [
        &[("set-cookie", "session=1")][..],
        &[("cache-control", "no-store")],
        &[("cache-control", "No-Store")],
        &[("cache-control", "max-age=60, no-store")],
        &[("cache-control", "private")],
        &[("cache-control", "PRIVATE ,max-age=60")],
        &[("cache-control", "private=\"x-a, x-b\"")],
        &[("cache-control", "max-age=60"), ("cache-control", "no-cache, no-store")],
        &[("cache-control", "public"), ("cache-control", "private")],
        &[("cache-control", "community=\"a,b\", private")],
        &[("vary", "*")],
        &[("vary", "accept, *")],
        &[("vary", "accept"), ("vary", "*")],
        &[("cache-control", "public"), ("set-cookie", "a=1"), ("set-cookie", "b=2")],
    ] {
        assert_eq!(sent_for_two(Kind::Http, headers).await, 2, "{headers:?}");
    }
}

#[tokio::test]
async fn an_answer_that_says_nothing_of_the_kind_is_shared() {
    for headers in [
        &[("cache-control", "max-age=60, public")][..],
        &[("cache-control", "no-cache, must-revalidate")],
        &[("cache-control", "x-private, no-storey, privately")],
        &[("cache-control", "ext=\"private, no-store\"")],
        &[("vary", "accept, x-*")],
        &[("x-set-cookie", "a=1")],
    ] {
        assert_eq!(sent_for_two(Kind::Http, headers).await, 1, "{headers:?}");
    }
}

/// kube-apiserver says `private` in every answer. Calls that share one here have sent the same
/// credentials, or use the gate's own.
#[tokio::test]
async fn what_kube_apiserver_says_of_all_its_answers_keeps_none_from_being_shared() {
    assert_eq!(sent_for_two(Kind::Kubernetes, &[("cache-control", "no-cache, private")]).await, 1);
    assert_eq!(sent_for_two(Kind::Kubernetes, &[("cache-control", "no-store")]).await, 2);
    assert_eq!(sent_for_two(Kind::Kubernetes, &[("cache-control", "private"), ("set-cookie", "a=1")]).await, 2);
}

/// Returns the number of calls sent for two identical ones that wait, if answers carry these
/// headers.
async fn sent_for_two(kind: Kind, headers: &'static [(&'static str, &'static str)]) -> usize {
    let scene = Scene::of(kind, move |_| {
        let mut response = reply(200, "ok");
        for (name, value) in headers {
            response.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        response
    })
    .await;
    let (first, second) = (scene.waiting(2.0, "").await, scene.waiting(3.0, "").await);
    scene.answers.add_permits(3);
    for call in [first, second] {
        let answer = answer(call).await;
        assert!(status(&answer) == 200 && answer.ends_with("ok"), "{answer}");
    }
    let sent = scene.backend.targets().len() - 1;
    assert_eq!(scene.proxy.metric("tidegate_coalesced_total", &[]), (2 - sent) as f64);
    sent
}

#[tokio::test]
async fn watches_and_calls_that_change_things_are_always_sent() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).bucket(20.0, 1).with(|options| options.gate.coalesce = true);
    let proxy = proxy.policy(|policy| {
        policy.classes[1].meter_long_running = true;
        policy.classes[1].backoff.strategy = Strategy::Off;
        policy.queue.max_wait = Duration::from_secs(60);
    });
    let proxy = Arc::new(proxy.start().await);
    let post = || {
        let proxy = Arc::clone(&proxy);
        let request = "POST /same HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        tokio::spawn(async move { proxy.exchange(request).await })
    };
    let watch = || get(&proxy, "/api/v1/pods?watch=1", "");
    let calls = [watch(), watch(), watch(), post(), post(), post()];
    for call in calls {
        assert_eq!(status(&answer(call).await), 200);
    }
    assert_eq!(backend.targets().len(), 6);
}
