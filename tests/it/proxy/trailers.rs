//! Trailers, and cookies, between HTTP/1 and HTTP/2.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::pool::support::Server;
use crate::proxy::fidelity::before_http2;
use crate::support::{Backend, Proxy, raw_backend, reply, status, within};

/// Head lines of a client, and of a server, that announce trailers.
const ANNOUNCEMENTS: [&str; 4] =
    ["", "TE: trailers\r\n", "Trailer: X-Sum\r\n", "TE: trailers\r\nConnection: TE\r\nTrailer: X-Sum, X-Other\r\n"];

fn sum() -> HeaderMap {
    let name = HeaderName::from_static("x-sum");
    [(name.clone(), HeaderValue::from_static("7")), (name, HeaderValue::from_static("8"))].into_iter().collect()
}

/// A request in chunks, with trailers, on a connection that stays open.
fn request(more: &str) -> String {
    format!(
        "POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n{more}\r\n2\r\nhi\r\n0\r\nX-Sum: 7\r\nX-Sum: 8\r\n\r\n\
         GET /next HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
}

/// hyper writes those that a `Trailer` field announces. A recipient may drop others (RFC 9110, 6.5.1).
#[tokio::test]
async fn announced_trailers_of_a_request_pass_over_http1() {
    for more in ANNOUNCEMENTS {
        let backend = Backend::replying(200).await;
        let proxy = Proxy::before(backend.address).start().await;
        let answers = proxy.exchange(&request(more)).await;
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 2, "{answers}");
        let seen = &backend.seen()[0];
        let expected = more.contains("Trailer").then(sum);
        assert_eq!((seen.body.as_ref(), &seen.trailers), (b"hi".as_slice(), &expected), "{more:?}");
        assert_eq!(seen.headers.contains_key("trailer"), more.contains("Trailer"), "{more:?}");
        assert_eq!(backend.targets(), ["/x", "/next"]);
    }
}

/// Of an answer hyper writes them only to a client that says `TE: trailers`.
#[tokio::test]
async fn announced_trailers_of_an_answer_pass_over_http1() {
    for more in ANNOUNCEMENTS {
        for announced in ["", "Trailer: X-Sum\r\n"] {
            for body in ["", "2\r\nok\r\n"] {
                let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{announced}\r\n{body}");
                let answer = format!("{head}0\r\nX-Sum: 7\r\nX-Sum: 8\r\nContent-Length: 9\r\n\r\n");
                let (upstream, _request) = raw_backend(answer.leak().as_bytes()).await;
                let proxy = Proxy::before(upstream).start().await;
                let takes = more.contains("TE: trailers") && !announced.is_empty();
                let more = more.replace("Connection: TE", "Connection: TE, close");
                let close = if more.contains("close") { "" } else { "Connection: close\r\n" };
                let got = proxy.exchange(&format!("GET /x HTTP/1.1\r\nHost: localhost\r\n{close}{more}\r\n")).await;
                assert_eq!(status(&got), 200, "{got}");
                let trailers = if takes { "x-sum: 7\r\nx-sum: 8\r\n" } else { "" };
                let end = format!("\r\n\r\n{body}0\r\n{trailers}\r\n");
                assert!(got.ends_with(&end), "{more:?} {announced:?}: {got}");
            }
        }
    }
}

/// An answer with a length has no trailers: there is no place for them.
#[tokio::test]
async fn where_a_body_is_not_sent_in_chunks_nothing_is_put_into_it_for_its_trailers() {
    let server = Server::http2(100, |request, _| {
        async move {
            let frames = [Ok(Frame::data(Bytes::from("ok"))), Ok(Frame::trailers(sum()))];
            let body = match request.uri().path() {
                "/empty" => StreamBody::new(stream::iter(vec![Ok(Frame::trailers(sum()))])).boxed_unsync(),
                _ => StreamBody::new(stream::iter(frames)).boxed_unsync(),
            };
            let response = match request.uri().path() {
                "/length" => Response::builder().header("content-length", "2"),
                "/empty" => Response::builder().status(204),
                _ => Response::builder(),
            };
            response.body(body).expect("valid")
        }
        .boxed()
    })
    .await;
    let proxy = before_http2(&server).start().await;
    let ask = |line: &str| format!("{line}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let got = proxy.exchange(&ask("GET /length HTTP/1.1")).await;
    assert!(got.ends_with("\r\n\r\nok"), "{got}");
    for line in ["GET /empty HTTP/1.1", "HEAD /x HTTP/1.1"] {
        let got = proxy.exchange(&ask(line)).await;
        assert!(got.ends_with("\r\n\r\n") && got.matches("\r\n\r\n").count() == 1, "{line}: {got}");
    }
    let got = proxy.exchange("GET /x HTTP/1.0\r\nHost: localhost\r\n\r\n").await;
    assert!(got.ends_with("\r\n\r\nok"), "{got}");
}

/// Towards HTTP/2 they need no announcement.
#[tokio::test]
async fn trailers_pass_from_http1_to_http2_and_back() {
    let server = Server::http2(100, |request, _| {
        async move {
            let body = request.into_body().collect().await.expect("whole");
            let trailers = body.trailers().cloned().unwrap_or_default();
            let answer = if trailers.is_empty() { "none" } else { "some" };
            let frames = stream::iter([Ok(Frame::data(Bytes::from(answer))), Ok(Frame::trailers(trailers))]);
            let response = Response::builder().header("trailer", "x-sum");
            response.body(StreamBody::new(frames).boxed_unsync()).expect("valid")
        }
        .boxed()
    })
    .await;
    let proxy = before_http2(&server).start().await;
    for more in ANNOUNCEMENTS {
        let got = proxy.exchange(&request(more)).await;
        let trailers = if more.contains("TE: trailers") { "x-sum: 7\r\nx-sum: 8\r\n" } else { "" };
        assert_eq!(got.matches(&format!("4\r\nsome\r\n0\r\n{trailers}\r\n")).count(), 1, "{more:?}: {got}");
        assert!(got.ends_with("none\r\n0\r\n\r\n"), "the next has none: {got}");
    }
}

#[tokio::test]
async fn trailers_pass_from_http2_to_http1_and_back() {
    for announced in [true, false] {
        let answer =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\nX-Sum: 8\r\n\r\n";
        let (upstream, seen) = raw_backend(answer.as_bytes()).await;
        let proxy = Proxy::before(upstream).start().await;
        let stream = TokioIo::new(proxy.connect().await);
        let (mut client, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("speaks h2");
        tokio::spawn(connection);
        let frames = [Ok::<_, Infallible>(Frame::data(Bytes::from("hi"))), Ok(Frame::trailers(sum()))];
        let mut request = Request::post("http://localhost/x");
        if announced {
            request = request.header("trailer", "x-sum");
        }
        let request = request.body(StreamBody::new(stream::iter(frames))).expect("valid");
        let response = within(client.send_request(request)).await.expect("answered");
        let body = within(response.into_body().collect()).await.expect("whole");
        assert_eq!(body.trailers(), Some(&sum()));
        let seen = String::from_utf8(within(seen).await.expect("no panic")).expect("text");
        let trailers = if announced { "x-sum: 7\r\nx-sum: 8\r\n" } else { "" };
        assert!(seen.ends_with(&format!("\r\n\r\n2\r\nhi\r\n0\r\n{trailers}\r\n")), "{seen}");
    }
}

/// RFC 9113, 8.2.3: HTTP/2 clients may split cookies, and few HTTP/1 servers read more than the
/// first line.
#[tokio::test]
async fn cookies_of_an_http2_client_are_one_field_for_an_http1_upstream_and_stay_apart_for_an_http2_one() {
    let request = || {
        let request = Request::get("http://localhost/x").header("cookie", "a=1").header("cookie", "b=2; c=3");
        request.header("cookie", "d=4").body(Full::<Bytes>::default()).expect("valid")
    };
    let backend = Backend::start(|_| async { reply(200, "ok") }).await;
    let proxy = Proxy::before(backend.address).start().await;
    within(proxy.connect_http2().await.send_request(request())).await.expect("answered");
    let lines: Vec<_> = backend.seen()[0].headers.get_all("cookie").iter().cloned().collect();
    assert_eq!(lines, ["a=1; b=2; c=3; d=4"]);
    // As they came from an HTTP/1 client.
    let lines = "Cookie: a=1\r\nCookie: b=2\r\nConnection: close\r\n";
    proxy.exchange(&format!("GET /x HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).await;
    assert_eq!(backend.seen()[1].headers.get_all("cookie").iter().count(), 2);

    let server = Server::http2(100, |request, _| {
        async move {
            let count = request.headers().get_all("cookie").iter().count().to_string();
            Response::new(Full::from(count).map_err(|never| match never {}).boxed_unsync())
        }
        .boxed()
    })
    .await;
    let proxy = before_http2(&server).start().await;
    let answer = within(proxy.connect_http2().await.send_request(request())).await.expect("answered");
    assert_eq!(within(answer.into_body().collect()).await.expect("whole").to_bytes(), "3");
}
