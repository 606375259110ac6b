//! P10: if nothing is limited, the upstream gets what the client sent, and the client gets what the
//! upstream sent.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tidegate::clock::Clock;
use tidegate::telemetry::{CallLog, Spans};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Backend, Proxy, header, raw_backend, reply, status, within};

#[tokio::test]
async fn target_and_headers_pass_byte_for_byte_and_in_order() {
    let (upstream, request) =
        raw_backend(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-B: 1\r\nx-a: 2\r\nX-B: 3\r\n\r\nok").await;
    let proxy = Proxy::before(upstream).start().await;
    let answer = proxy
        .exchange(
            "GET /api/v1/namespaces/a%2Fb/pods/system:x//..;/%2e?watch=0&q=%7B{}|\u{e9} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             X-Two: b\r\nX-TWO: a\r\nImpersonate-Group: one\r\nImpersonate-Group: two\r\nAuthorization: Bearer  x\r\nAccept: */*\r\n\r\n",
        )
        .await;
    let request = String::from_utf8(within(request).await.expect("no panic")).expect("text");
    assert!(
        request.starts_with("GET /api/v1/namespaces/a%2Fb/pods/system:x//..;/%2e?watch=0&q=%7B{}|\u{e9} HTTP/1.1\r\n"),
        "{request}"
    );
    for lines in [
        "X-Two: b\r\nX-TWO: a\r\n",
        "Impersonate-Group: one\r\nImpersonate-Group: two\r\n",
        "Authorization: Bearer  x\r\n",
    ] {
        assert!(request.to_lowercase().contains(&lines.to_lowercase()), "{lines:?} in {request}");
    }
    assert!(!request.to_lowercase().contains("x-forwarded") && !request.to_lowercase().contains("via:"), "{request}");
    assert_eq!(status(&answer), 200);
    let lower = answer.to_lowercase();
    assert!(lower.contains("x-b: 1\r\n") && lower.contains("x-b: 3\r\n") && lower.contains("x-a: 2\r\n"), "{answer}");
    assert!(lower.find("x-b: 1") < lower.find("x-b: 3"), "{answer}");
    assert!(!lower.contains("\r\ndate:") && !lower.contains("tidegate"), "nothing is added: {answer}");
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
}

/// Whether or not spans are made of the calls, and whatever the fields say.
#[tokio::test]
async fn the_fields_of_a_trace_reach_the_upstream_as_they_came() {
    let right = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    for fields in [
        format!("{right}tracestate: a=1, b=2\r\ntracestate: c=3\r\n"),
        format!("{right}{right}"),
        "Traceparent: 00-no-trace-at-all\r\nTraceState: ,\r\n".to_owned(),
        "x-none: 1\r\n".to_owned(),
    ] {
        for makes_spans in [false, true] {
            let spans = Spans { begins: true, take: Arc::new(|_| {}) };
            let log = CallLog::open(None, Some(spans), Clock::start()).expect("no file is opened");
            let proxy = Proxy::before(mirror().await);
            let proxy = proxy.with(|options| options.call_log = makes_spans.then_some(log)).start().await;
            let request = format!("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n");
            let answer = within(proxy.exchange(&request)).await;
            let of_trace = |text: &str| text.lines().filter(|line| line.to_lowercase().starts_with("trace")).count();
            assert_eq!(of_trace(&answer), of_trace(&fields), "{answer}");
            assert!(fields.lines().all(|line| answer.contains(&format!("\r\n{line}\r\n"))), "{fields:?} in {answer}");
        }
    }
}

#[tokio::test]
async fn names_keep_their_case_and_many_lines_pass_whatever_came_before_on_the_connection() {
    let many = |name: &str| (0..200).map(|number| format!("{name}-{number}: y\r\n")).collect::<String>();
    let proxy = Proxy::before(mirror().await).start().await;
    let mut client = proxy.connect().await;
    let mut send = String::new();
    let mut lines = Vec::new();
    for fields in ["x-a: 1\r\n", "X-A: 1\r\n", "x-A: 1\r\nX-b: 2\r\n", &many("x"), "x-a: 1\r\n", &many("X-Many")] {
        send.push_str(&format!("GET / HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n"));
        lines.push(fields.to_owned());
    }
    let (first, rest) = send.split_at(send.len() / 100); // all but the first in one go
    client.write_all(first.as_bytes()).await.expect("writes");
    client.write_all(rest.as_bytes()).await.expect("writes");
    let mut got = Vec::new();
    for fields in lines {
        let body = loop {
            let text = String::from_utf8_lossy(&got).into_owned();
            if let Some((answer, after)) = text.split_once("the end of a head") {
                got = after.into();
                break answer.to_owned();
            }
            assert!(within(client.read_buf(&mut got)).await.expect("reads") > 0, "{text}");
        };
        assert!(body.starts_with("HTTP/1.1 200 OK\r\nContent-Length: "), "{body}");
        assert!(fields.lines().all(|line| body.contains(&format!("\r\n{line}\r\n"))), "{fields:?} in {body}");
    }
}

/// An upstream that answers with the heads that it receives.
async fn mirror() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {
                    if head.ends_with(b"\r\n\r\n") {
                        head.extend(b"the end of a head");
                        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", head.len());
                        stream.write_all(&[answer.as_bytes(), &head].concat()).await.expect("writes");
                        head.clear();
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_length_stays_a_length_and_chunks_stay_chunks() {
    let (upstream, request) =
        raw_backend(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n").await;
    let proxy = Proxy::before(upstream).start().await;
    let answer = proxy
        .exchange("POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody")
        .await;
    let request = String::from_utf8(within(request).await.expect("no panic")).expect("text").to_lowercase();
    assert!(request.contains("content-length: 4") && !request.contains("transfer-encoding"), "{request}");
    assert!(answer.to_lowercase().contains("transfer-encoding: chunked"), "{answer}");

    let (upstream, request) = raw_backend(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let proxy = Proxy::before(upstream).start().await;
    let chunked = "POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
    let answer = proxy.exchange(chunked).await;
    let request = String::from_utf8(within(request).await.expect("no panic")).expect("text").to_lowercase();
    assert!(request.contains("transfer-encoding: chunked") && !request.contains("content-length"), "{request}");
    assert!(answer.to_lowercase().contains("content-length: 2"), "{answer}");
}

#[tokio::test]
async fn a_head_keeps_its_length_and_204_and_304_have_no_body() {
    let backend = Backend::start(|seen| async move {
        match seen.target.as_str() {
            "/head" => reply(200, "twelve bytes"),
            "/204" => Response::builder().status(204).body(empty()).expect("valid"),
            _ => Response::builder().status(304).header("etag", "\"1\"").body(empty()).expect("valid"),
        }
    })
    .await;
    let proxy = Proxy::before(backend.address).start().await;
    let head = proxy.exchange("HEAD /head HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!(head.to_lowercase().contains("content-length: 12") && head.ends_with("\r\n\r\n"), "{head}");
    for target in ["/204", "/304"] {
        let (_, answer) = proxy.get(target).await;
        assert!(answer.ends_with("\r\n\r\n") && !answer.to_lowercase().contains("transfer-encoding"), "{answer}");
    }
    assert_eq!(proxy.metric("tidegate_calls_total", &["code=\"3xx\""]), 1.0);
}

fn empty() -> crate::support::AnyBody {
    http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync()
}

#[tokio::test]
async fn an_event_of_a_watch_arrives_when_it_happens() {
    let (events, more) = tokio::sync::mpsc::unbounded_channel::<&'static str>();
    let more = std::sync::Mutex::new(Some(more));
    let backend = Backend::start(move |_| {
        let more = more.lock().expect("no panic").take().expect("one watch");
        async move {
            let frames = stream::unfold(more, |mut more| async move {
                let event = more.recv().await?;
                Some((Ok(Frame::data(Bytes::from(event))), more))
            });
            Response::new(StreamBody::new(frames.boxed()).boxed_unsync())
        }
    })
    .await;
    let proxy = Proxy::before(backend.address).start().await;
    let mut client = proxy.connect().await;
    client.write_all(b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("writes");
    let mut got = Vec::new();
    for (event, expected) in [("", "\r\n\r\n"), ("one", "one\r\n"), ("two", "two\r\n")] {
        if !event.is_empty() {
            events.send(event).expect("the watch is open");
        }
        within(async {
            while !String::from_utf8_lossy(&got).ends_with(expected) {
                assert!(client.read_buf(&mut got).await.expect("reads") > 0);
            }
        })
        .await;
    }
    drop(events);
    within(async {
        while !got.ends_with(b"0\r\n\r\n") {
            assert!(client.read_buf(&mut got).await.expect("reads") > 0);
        }
    })
    .await;
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let backend = Backend::start(|seen| async move {
        let mut trailers = HeaderMap::new();
        let sum = seen.trailers.and_then(|trailers| trailers.get("x-sum").cloned());
        trailers.insert("x-sum", sum.unwrap_or_else(|| HeaderValue::from_static("none")));
        let frames = stream::iter([Ok(Frame::data(Bytes::from("ok"))), Ok(Frame::trailers(trailers))]);
        let body = StreamBody::new(frames).boxed_unsync();
        Response::builder().header("trailer", "x-sum").body(body).expect("valid")
    })
    .await;
    let proxy = Proxy::before(backend.address).start().await;
    let answer = proxy
        .exchange(
            "POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close, TE\r\nTE: trailers\r\nTrailer: x-sum\r\n\
             Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n",
        )
        .await;
    assert!(answer.to_lowercase().contains("x-sum: 7\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn a_response_that_breaks_off_is_not_ended_cleanly() {
    let broken: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    let (upstream, _request) = raw_backend(broken).await;
    let proxy = Proxy::before(upstream).start().await;
    let (_, answer) = proxy.get("/list").await;
    assert!(answer.contains("half") && !answer.ends_with("0\r\n\r\n"), "{answer}");

    let (upstream, _request) = raw_backend(broken).await;
    let proxy = Proxy::before(upstream).start().await;
    let mut client = proxy.connect_http2().await;
    let request = Request::get("http://localhost/list").body(Full::default()).expect("valid");
    let response = within(client.send_request(request)).await.expect("a head");
    let error = within(response.into_body().collect()).await.expect_err("cut");
    assert!(error.to_string().contains("stream") || error.to_string().contains("body"), "{error}");
}

/// client-go resumes a watch that ended, and lists everything again after a reset stream; it takes
/// a cut HTTP/1.1 connection for an end.
#[tokio::test]
async fn a_watch_that_breaks_off_is_cut_over_http1_and_ended_over_http2() {
    let broken: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    let (upstream, _request) = raw_backend(broken).await;
    let proxy = Proxy::before(upstream).start().await;
    let (_, answer) = proxy.get("/api/v1/pods?watch=1").await;
    assert!(answer.contains("half") && !answer.ends_with("0\r\n\r\n"), "{answer}");

    let (upstream, _request) = raw_backend(broken).await;
    let proxy = Proxy::before(upstream).start().await;
    let mut client = proxy.connect_http2().await;
    let request = Request::get("http://localhost/api/v1/pods?watch=1").body(Full::default()).expect("valid");
    let response = within(client.send_request(request)).await.expect("a head");
    assert_eq!(within(response.into_body().collect()).await.expect("ended").to_bytes(), "half");
}

#[tokio::test]
async fn http2_with_prior_knowledge_reaches_the_same_upstream() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let mut client = proxy.connect_http2().await;
    for place in 0..3 {
        let request =
            Request::post(format!("http://localhost/things/{place}")).body(Full::from("body")).expect("valid");
        let response = within(client.send_request(request)).await.expect("answered");
        assert_eq!(response.status(), 200);
        assert_eq!(within(response.into_body().collect()).await.expect("whole").to_bytes(), "ok");
    }
    assert_eq!(backend.targets(), ["/things/0", "/things/1", "/things/2"]);
    assert!(backend.seen().iter().all(|seen| seen.body == "body" && seen.headers["content-length"] == "4"));
}

#[tokio::test]
async fn large_bodies_stream_both_ways() {
    let backend = Backend::start(|seen| async move {
        Response::new(Full::new(seen.body).map_err(|never| match never {}).boxed_unsync())
    })
    .await;
    let proxy = Proxy::before(backend.address).start().await;
    let body: Bytes = (0..8_000_000_u32).map(|place| place.to_le_bytes()[0]).collect();
    let mut client = proxy.connect_http2().await;
    let request = Request::put("http://localhost/blob").body(Full::new(body.clone())).expect("valid");
    let response = within(client.send_request(request)).await.expect("answered");
    let echoed = within(response.into_body().collect()).await.expect("whole").to_bytes();
    assert!(echoed == body, "{} bytes came back", echoed.len());
}

#[tokio::test]
async fn many_and_long_headers_pass() {
    let backend = Backend::start(|seen| async move {
        let many = seen.headers.len();
        Response::builder().header("x-count", many).header("x-long", "y".repeat(300_000)).body(empty()).expect("valid")
    })
    .await;
    let proxy = Proxy::before(backend.address).start().await;
    let mut request = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", "p".repeat(60_000));
    for place in 0..90 {
        request.push_str(&format!("x-h{place}: {}\r\n", "v".repeat(2_000)));
    }
    request.push_str("\r\n");
    let answer = proxy.exchange(&request).await;
    assert_eq!(status(&answer), 200);
    assert!(answer.len() > 300_000);
}

#[tokio::test]
async fn an_early_answer_comes_though_the_body_is_not_sent_to_its_end() {
    let (upstream, _request) = raw_early().await;
    let proxy = Proxy::before(upstream).start().await;
    let mut client = proxy.connect().await;
    client
        .write_all(b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nstart")
        .await
        .expect("writes");
    let mut answer = Vec::new();
    within(async {
        while !String::from_utf8_lossy(&answer).contains("\r\n\r\n") {
            assert!(client.read_buf(&mut answer).await.expect("reads") > 0);
        }
    })
    .await;
    assert_eq!(status(&String::from_utf8_lossy(&answer)), 413);
}

/// Answers 413 once it has the head, and keeps the connection open for a while.
async fn raw_early() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut head = Vec::new();
        while !String::from_utf8_lossy(&head).contains("\r\n\r\n") {
            assert!(stream.read_buf(&mut head).await.expect("reads") > 0);
        }
        stream.write_all(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 0\r\n\r\n").await.expect("writes");
        within(stream.read_to_end(&mut head)).await.ok();
    });
    (address, task)
}

#[tokio::test]
async fn a_client_of_http_1_0_is_promised_only_what_is_kept() {
    for (says, method, promised) in [
        ("Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "GET", "close"),
        ("\r\nok", "GET", "close"),
        ("Content-Length: 2\r\n\r\nok", "GET", "keep-alive"),
        ("Transfer-Encoding: chunked\r\n\r\n", "HEAD", "keep-alive"),
    ] {
        let says: &'static str = format!("HTTP/1.1 200 OK\r\n{says}").leak();
        let (address, _) = raw_backend(says.as_bytes()).await;
        let proxy = Proxy::before(address).start().await;
        let mut client = proxy.connect().await;
        let head = format!("{method} /x HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n");
        client.write_all(head.as_bytes()).await.expect("writes");
        let mut answer = Vec::new();
        let is_whole = |answer: &[u8]| answer.ends_with(if method == "HEAD" { b"\r\n\r\n" } else { b"\r\n\r\nok" });
        while !is_whole(&answer) {
            assert!(within(client.read_buf(&mut answer)).await.expect("no reset") > 0, "{answer:?}");
        }
        let answer = String::from_utf8(answer).expect("text");
        assert_eq!(header(&answer, "connection"), Some(promised), "{says:?}: {answer}");
        if promised == "close" {
            assert_eq!(within(client.read(&mut [0])).await.expect("no reset"), 0, "the body ends so");
        }
    }
}
