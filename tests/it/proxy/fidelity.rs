//! Behaviour of kube-apiserver that proxies get wrong, item by item, from the client through the
//! gate to the API and back.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::clock::Clock;
use tidegate::tls::{self, Pem, Roots};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::pool::support::{Answer, Server, answer, until};
use crate::support::{Backend, Proxy, ProxyBuilder, raw_backend, reply, status, within};

/// A gate to a server that speaks h2.
pub(crate) fn before_http2(server: &Server) -> ProxyBuilder {
    let roots = Roots::Only(Pem::new(server.ca.clone().expect("TLS").into(), "test CA"));
    Proxy::before(server.address).with(|options| {
        options.upstream.target.scheme = http::uri::Scheme::HTTPS;
        options.upstream.tls = Some(Arc::new(tls::Client::new(roots, None).expect("TLS")));
    })
}

/// An HTTP/2 client that accepts heads of 1 MiB, as Go's does.
async fn http2_client(proxy: &Proxy) -> http2::SendRequest<Full<Bytes>> {
    let stream = TokioIo::new(proxy.connect().await);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let (send, connection) = builder.max_header_list_size(1 << 20).handshake(stream).await.expect("speaks h2");
    tokio::spawn(connection);
    send
}

/// Reads until the bytes end like this.
async fn until_said(client: &mut TcpStream, said: &mut Vec<u8>, end: &[u8]) {
    within(async {
        while !said.ends_with(end) {
            assert!(client.read_buf(said).await.expect("reads") > 0, "{}", String::from_utf8_lossy(said));
        }
    })
    .await;
}

/// A body of everything that is sent from now on.
fn live() -> (mpsc::UnboundedSender<&'static [u8]>, Answer) {
    let (events, more) = mpsc::unbounded_channel::<&'static [u8]>();
    let frames = stream::unfold(more, |mut more| async move {
        let event = more.recv().await?;
        Some((Ok(Frame::data(Bytes::from_static(event))), more))
    });
    (events, Response::new(StreamBody::new(frames.boxed()).boxed_unsync()))
}

/// A server that has this one watch.
async fn watched() -> (Server, mpsc::UnboundedSender<&'static [u8]>) {
    let (events, answer) = live();
    let answer = std::sync::Mutex::new(Some(answer));
    let server = Server::http2(100, move |_, _| {
        let answer = answer.lock().expect("no panic").take().expect("one watch");
        async move { answer }.boxed()
    })
    .await;
    (server, events)
}

#[tokio::test]
async fn over_http2_a_watch_begins_before_its_first_event_and_each_event_comes_at_once() {
    let (server, events) = watched().await;
    let proxy = before_http2(&server).start().await;
    let mut client = http2_client(&proxy).await;
    let request = Request::get("http://localhost/api/v1/pods?watch=1").body(Full::default()).expect("valid");
    let mut watch = within(client.send_request(request)).await.expect("a head before any event").into_body();
    for event in [&b"one\n"[..], b"two\n"] {
        events.send(event).expect("the watch is open");
        let frame = within(watch.frame()).await.expect("an event").expect("whole");
        assert_eq!(frame.into_data().expect("data"), event);
    }
}

/// A client must ask for bookmarks: without them a watch may rightly be silent for an hour. Pings
/// go on meanwhile.
#[tokio::test]
async fn a_watch_that_is_silent_for_an_hour_is_kept() {
    let (server, events) = watched().await;
    let proxy = before_http2(&server).start().await;
    let mut over_http2 = http2_client(&proxy).await;
    let request = Request::get("http://localhost/api/v1/pods?watch=1").body(Full::default()).expect("valid");
    let mut watch = within(over_http2.send_request(request)).await.expect("a head").into_body();

    let (lone, one_event) = watched().await;
    let plain = before_http2(&lone).start().await;
    let mut over_http1 = plain.connect().await;
    let request = b"GET /api/v1/nodes?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    over_http1.write_all(request).await.expect("writes");
    let mut said = Vec::new();
    until_said(&mut over_http1, &mut said, b"\r\n\r\n").await;

    // Only the clock jumps. The sockets are real, and their bytes are handled before time moves on.
    tokio::time::pause();
    Clock::start().sleep(Duration::from_secs(3700)).await;
    tokio::time::resume();

    events.send(b"still here\n").expect("the watch is open");
    let frame = within(watch.frame()).await.expect("an event").expect("whole");
    assert_eq!(frame.into_data().expect("data"), "still here\n");
    one_event.send(b"here too\n").expect("the watch is open");
    until_said(&mut over_http1, &mut said, b"here too\n\r\n").await;
}

#[tokio::test]
async fn a_tunnel_that_is_silent_for_an_hour_is_kept() {
    let server = Server::plain(|mut socket| async move {
        let mut said = Vec::new();
        until_said(&mut socket, &mut said, b"\r\n\r\n").await;
        let switched = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
        socket.write_all(switched).await.expect("writes");
        let byte = socket.read_u8().await.expect("the tunnel is there");
        socket.write_u8(byte).await.expect("writes");
    })
    .await;
    let proxy = Proxy::before(server.address).start().await;
    let mut client = proxy.connect().await;
    let ask = b"POST /api/v1/namespaces/d/pods/p/attach HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    client.write_all(ask).await.expect("writes");
    until_said(&mut client, &mut Vec::new(), b"\r\n\r\n").await;
    tokio::time::pause();
    Clock::start().sleep(Duration::from_secs(3700)).await;
    tokio::time::resume();
    client.write_u8(b'x').await.expect("writes");
    assert_eq!(within(client.read_u8()).await.expect("an echo"), b'x');
}

const ADDED: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x2a\xa9\x2c\x48\x55\xb2\x52\x72\x74\x71\x71\x75\x51\xaa\xe5\x02\x00\x45\xd0\x26\x43\x11\x00\x00\x00";
const BOOKMARK: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x2a\xa9\x2c\x48\x55\xb2\x52\x72\xf2\xf7\xf7\xf6\x75\x0c\xf2\x56\xaa\xe5\x02\x00\x00\x04\xb4\x16\x14\x00\x00\x00";

/// A compressed watch is one gzip member per event; a reader that decodes gzip on the way stops
/// after the first.
#[tokio::test]
async fn gzip_members_pass_one_by_one_and_undecoded() {
    let (events, mut compressed) = live();
    for (name, value) in [("content-encoding", "gzip"), ("vary", "Accept-Encoding")] {
        compressed.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    let compressed = std::sync::Mutex::new(Some(compressed));
    let server = Server::http2(100, move |request, _| {
        assert_eq!(request.headers()["accept-encoding"], "gzip");
        let compressed = compressed.lock().expect("no panic").take().expect("one watch");
        async move { compressed }.boxed()
    })
    .await;
    let proxy = before_http2(&server).start().await;
    let mut client = proxy.connect().await;
    client
        .write_all(b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n")
        .await
        .expect("writes");
    let mut said = Vec::new();
    until_said(&mut client, &mut said, b"\r\n\r\n").await;
    let head = String::from_utf8_lossy(&said).to_lowercase();
    assert!(head.contains("content-encoding: gzip") && head.contains("vary: accept-encoding"), "{head}");
    for member in [ADDED, BOOKMARK] {
        events.send(member).expect("the watch is open");
        until_said(&mut client, &mut said, &[member, b"\r\n"].concat()).await;
    }
}

#[tokio::test]
async fn protobuf_and_cbor_pass_byte_for_byte() {
    let every: Vec<u8> = b"k8s\0".iter().copied().chain(0..=255).chain((0..=255).rev()).collect();
    let expected = every.clone();
    let server = Server::http2(100, move |request, _| {
        let expected = expected.clone();
        async move {
            let kind = request.headers()["content-type"].clone();
            assert_eq!(request.headers()["accept"], kind);
            let body = request.into_body().collect().await.expect("whole").to_bytes();
            assert_eq!(body, expected);
            let mut response = answer(body);
            response.headers_mut().insert("content-type", kind);
            response
        }
        .boxed()
    })
    .await;
    let proxy = before_http2(&server).start().await;
    let mut client = http2_client(&proxy).await;
    for kind in ["application/vnd.kubernetes.protobuf", "application/cbor", "application/apply-patch+cbor"] {
        let request = Request::patch("http://localhost/api/v1/namespaces/d/configmaps/c")
            .header("content-type", kind)
            .header("accept", kind)
            .body(Full::new(Bytes::from(every.clone())))
            .expect("valid");
        let response = within(client.send_request(request)).await.expect("answered");
        assert_eq!(response.headers()["content-type"], kind);
        assert_eq!(within(response.into_body().collect()).await.expect("whole").to_bytes(), every);
    }
}

/// 200 lines of 5,000 bytes: a little less than the 1 MiB that kube-apiserver accepts, with the
/// overhead that HTTP/2 counts for each.
fn long_head() -> HeaderMap {
    let line = |place| HeaderName::try_from(format!("x-line-{place}")).expect("a name");
    (0..200).map(|place| (line(place), HeaderValue::try_from("v".repeat(5_000)).expect("valid"))).collect()
}

fn lines_of(headers: &HeaderMap) -> usize {
    let long =
        |(name, value): &(&HeaderName, &HeaderValue)| name.as_str().starts_with("x-line-") && value.len() == 5_000;
    headers.iter().filter(long).count()
}

#[tokio::test]
async fn two_hundred_lines_and_a_mebibyte_of_headers_pass_both_ways_over_http2() {
    let server = Server::http2(100, |request, _| {
        async move {
            let mut response = answer("ok");
            *response.headers_mut() = long_head();
            response.headers_mut().insert("x-count", lines_of(request.headers()).into());
            response
        }
        .boxed()
    })
    .await;
    let proxy = before_http2(&server).start().await;
    let mut client = http2_client(&proxy).await;
    let mut request = Request::get("http://localhost/api/v1/pods").body(Full::default()).expect("valid");
    *request.headers_mut() = long_head();
    let response = within(client.send_request(request)).await.expect("answered");
    assert_eq!(response.headers()["x-count"], "200");
    assert_eq!(lines_of(response.headers()), 200);
}

#[tokio::test]
async fn two_hundred_lines_and_a_mebibyte_of_headers_pass_both_ways_over_http1() {
    let lines: String = (0..200).map(|place| format!("X-Line-{place}: {}\r\n", "v".repeat(5_000))).collect();
    let long = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{lines}\r\nok");
    let (upstream, request) = raw_backend(Box::leak(long.into_boxed_str()).as_bytes()).await;
    let proxy = Proxy::before(upstream).start().await;
    let answer =
        proxy.exchange(&format!("GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n")).await;
    assert_eq!(status(&answer), 200);
    let request = String::from_utf8(within(request).await.expect("no panic")).expect("text");
    let count = |text: &str| text.lines().filter(|line| line.starts_with("X-Line-") && line.len() > 5_000).count();
    assert_eq!((count(&request), count(&answer)), (200, 200));
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_is_told_to() {
    let backend = Backend::start(|seen| async move {
        assert_eq!(seen.body, "body");
        reply(201, "ok")
    })
    .await;
    let proxy = Proxy::before(backend.address).start().await;
    let mut client = proxy.connect().await;
    let head =
        b"PUT /x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\n";
    client.write_all(head).await.expect("writes");
    until_said(&mut client, &mut Vec::new(), b"HTTP/1.1 100 Continue\r\n\r\n").await;
    client.write_all(b"body").await.expect("writes");
    let mut said = Vec::new();
    within(client.read_to_end(&mut said)).await.expect("reads");
    assert_eq!(status(&String::from_utf8_lossy(&said)), 201);
}

/// If the gate told the client to send, it would send 3 MiB for nothing.
#[tokio::test]
async fn a_client_that_asks_before_it_sends_is_refused_without() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).bucket(0.000_001, 1).max_wait(Duration::ZERO).start().await;
    assert_eq!(proxy.get("/first").await.0, 200);
    let answer = proxy
        .exchange("PUT /x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\n")
        .await;
    assert_eq!(status(&answer), 429, "and no 100 before it: {answer}");
}

#[tokio::test]
async fn trailers_pass_both_ways_over_http2() {
    let server = Server::http2(100, |request, _| {
        async move {
            let body = request.into_body().collect().await.expect("whole");
            let trailers = body.trailers().cloned().expect("trailers");
            let frames = stream::iter([Ok(Frame::data(Bytes::from("ok"))), Ok(Frame::trailers(trailers))]);
            Response::new(StreamBody::new(frames).boxed_unsync())
        }
        .boxed()
    })
    .await;
    let proxy = before_http2(&server).start().await;
    let stream = TokioIo::new(proxy.connect().await);
    let (mut client, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("speaks h2");
    tokio::spawn(connection);
    let sum: HeaderMap = [(HeaderName::from_static("x-sum"), HeaderValue::from_static("7"))].into_iter().collect();
    let frames = [Ok::<_, Infallible>(Frame::data(Bytes::from("hi"))), Ok(Frame::trailers(sum.clone()))];
    let request = Request::post("http://localhost/x").body(StreamBody::new(stream::iter(frames))).expect("valid");
    let response = within(client.send_request(request)).await.expect("answered");
    let body = within(response.into_body().collect()).await.expect("whole");
    assert_eq!(body.trailers(), Some(&sum));
}

/// kube-apiserver shutting down: 429, Retry-After and `Connection: close`. The next call must find
/// another server.
#[tokio::test]
async fn a_server_that_shuts_down_gets_no_second_call_on_that_connection() {
    let answer =
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 5\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno";
    let server = Server::plain(move |mut socket| async move {
        let mut said = Vec::new();
        until_said(&mut socket, &mut said, b"\r\n\r\n").await;
        socket.write_all(answer).await.expect("writes");
        // It does not close: the header must be enough.
        assert_eq!(socket.read(&mut [0]).await.unwrap_or(0), 0, "a second call");
    })
    .await;
    let proxy = Proxy::before(server.address).start().await;
    for place in 1..=3 {
        let (code, said) = proxy.get(&format!("/api/v1/namespaces/d/pods/p{place}")).await;
        assert_eq!(code, 429);
        let said = said.to_lowercase();
        assert!(said.contains("retry-after: 5") && !said.contains("tidegate-refusal"), "the server's own: {said}");
        assert_eq!(server.connections(), place);
    }
}

/// client-go takes a connection for dead when a ping is not answered within 15 s, and loses
/// everything on it.
#[tokio::test]
async fn pings_are_answered_while_calls_wait_and_downloads_stall() {
    let backend = Backend::start(|seen| async move {
        if seen.target != "/download" {
            return reply(200, "ok");
        }
        let endless = stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(&[0; 16 << 10]))));
        Response::new(StreamBody::new(endless).boxed_unsync())
    })
    .await;
    let proxy = Proxy::before(backend.address).bucket(0.000_001, 1).start().await;
    let (client, mut connection) = within(h2::client::handshake(proxy.connect().await)).await.expect("speaks h2");
    let mut pings = connection.ping_pong().expect("nobody else pings");
    tokio::spawn(connection);
    #[expect(clippy::async_yields_async, reason = "sent is one thing, answered another")]
    let ask = async |target: &str| {
        let mut client = client.clone().ready().await.expect("open");
        let request = Request::get(format!("http://localhost{target}")).body(()).expect("valid");
        client.send_request(request, true).expect("open").0
    };
    let stalled = within(ask("/download").await).await.expect("a head");
    assert_eq!(stalled.status(), StatusCode::OK);
    let mut waiting = Vec::new();
    for place in 0..50 {
        waiting.push(ask(&format!("/waits/{place}")).await);
    }
    proxy.reaches("tidegate_waiting", &[], 50.0).await;
    for _ in 0..3 {
        within(pings.ping(h2::Ping::opaque())).await.expect("a pong");
    }
    drop(stalled);
}

#[tokio::test]
async fn a_slow_reader_holds_up_the_upstream_and_not_the_gate() {
    let sent = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let server = Server::http2(100, move |_, _| {
        let counted = Arc::clone(&counted);
        let endless = stream::repeat_with(move || {
            counted.fetch_add(16 << 10, std::sync::atomic::Ordering::Relaxed);
            Ok(Frame::data(Bytes::from_static(&[0; 16 << 10])))
        });
        async move { Response::new(StreamBody::new(endless).boxed_unsync()) }.boxed()
    })
    .await;
    let proxy = before_http2(&server).start().await;
    let mut client = http2_client(&proxy).await;
    let request = Request::get("http://localhost/log?follow=1").body(Full::default()).expect("valid");
    let response = within(client.send_request(request)).await.expect("a head");
    let (mut before, mut steady) = (0, 0);
    until(|| {
        let now = sent.load(std::sync::atomic::Ordering::Relaxed);
        steady = if now == before { steady + 1 } else { 0 };
        before = now;
        steady > 50 && now > 0
    })
    .await;
    assert!(before < 16 << 20, "{before} bytes were taken for a client that reads none");
    drop(response);
}
