//! gRPC on a gate with a dialect: the status of an answer without a body, and slots of streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use tidegate::classify::ApiKind;
use tidegate::dialect::Dialect;
use tidegate::limit::policy::Strategy;

use crate::pool::support::{Answer, Server, answer};
use crate::proxy::fidelity::before_http2;
use crate::support::{Proxy, rules, within};

/// A gate before gRPC servers, with room for one call at a time.
async fn proxy(server: &Server) -> Proxy {
    let proxy = before_http2(server).with(|options| {
        options.gate.rules = Arc::new(rules(ApiKind::Http).with_dialect(Dialect::Google));
        options.gate.answers.throttling.kubernetes = false;
        options.gate.kind = ApiKind::Http;
        for class in &mut options.gate.policy.classes {
            let (base, max) = (Duration::from_secs(20), Duration::from_secs(90));
            class.backoff.strategy = Strategy::Exponential { base, max, jitter: 0.0 };
        }
    });
    proxy.in_flight(1).max_wait(Duration::ZERO).start().await
}

/// Calls a method, and returns the head of what comes back, and its body as it comes.
async fn call(proxy: &Proxy, method: &str) -> Response<Incoming> {
    let request = Request::post(format!("http://localhost/p.Service/{method}"));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    let request = request.body(Full::new(Bytes::from_static(b"\0\0\0\0\0"))).expect("valid");
    within(proxy.connect_http2().await.send_request(request)).await.expect("an answer")
}

fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().expect("text"))
}

/// An answer without a body.
fn trailers_only(fields: &[(&'static str, &'static str)]) -> Answer {
    let mut response = answer("");
    let all = [("content-type", "application/grpc")].iter().chain(fields);
    response
        .headers_mut()
        .extend(all.map(|(name, value)| (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))));
    response
}

#[tokio::test]
async fn a_grpc_status_in_the_head_is_what_the_call_came_to() {
    let came = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&came);
    let server = Server::http2(100, move |request, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let fields: &[(&str, &str)] = match request.uri().path() {
            "/p.Service/Throttled" => &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "60000")],
            "/p.Service/Broken" => &[("grpc-status", "13")],
            "/p.Service/Away" => &[("grpc-status", "14")],
            "/p.Service/Missing" => &[("grpc-status", "5")],
            _ => &[("grpc-status", "0")],
        };
        let answer = trailers_only(fields);
        async {
            // The key of a POST is in its body, of which the gate knows what it has sent.
            drop(request.into_body().collect().await);
            answer
        }
        .boxed()
    });
    let server = server.await;
    let proxy = proxy(&server).await;
    for (method, goes_again) in
        [("Throttled", false), ("Broken", false), ("Away", false), ("Missing", true), ("Fine", true)]
    {
        let first = call(&proxy, method).await;
        assert!(!first.headers().contains_key("tidegate-refusal"), "{method}");
        let before = came.load(Ordering::SeqCst);
        let second = call(&proxy, method).await;
        assert_eq!(came.load(Ordering::SeqCst) > before, goes_again, "{method}");
        if goes_again {
            continue;
        }
        let head = second.headers();
        assert_eq!((second.status().as_u16(), field(head, "grpc-status")), (200, "8"), "{method}");
        assert_eq!(field(head, "tidegate-refusal"), "backoff", "{method}");
        let wait: u64 = field(head, "grpc-retry-pushback-ms").parse().expect("milliseconds");
        assert_eq!(wait > 30_000, method == "Throttled", "{method}: {wait}");
    }
}

#[tokio::test]
async fn a_grpc_stream_gives_its_slot_back_at_its_head() {
    let server = Server::http2(100, |request, _| {
        let body = match request.uri().path() {
            // A head, and then nothing.
            "/p.Service/Watch" => StreamBody::new(futures_util::stream::pending()).boxed_unsync(),
            _ => return async { trailers_only(&[("grpc-status", "0")]) }.boxed(),
        };
        let mut response = Response::new(body);
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
        async { response }.boxed()
    });
    let server = server.await;
    let proxy = proxy(&server).await;
    let open = call(&proxy, "Watch").await;
    let other = call(&proxy, "Get").await;
    assert_eq!(field(other.headers(), "tidegate-refusal"), "", "the stream is open, and holds no slot");
    drop(open);
}

/// A client's media type is only its word.
#[tokio::test]
async fn only_a_grpc_answer_gives_its_slot_back_at_its_head() {
    let server = Server::http2(100, |_, _| {
        let mut response = Response::new(StreamBody::new(futures_util::stream::pending()).boxed_unsync());
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
        async { response }.boxed()
    });
    let server = server.await;
    let proxy = proxy(&server).await;
    let open = call(&proxy, "Watch").await;
    let other = call(&proxy, "Get").await;
    assert_eq!(field(other.headers(), "tidegate-refusal"), "slot", "it is held to the end of the body");
    drop(open);
}
