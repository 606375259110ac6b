//! Upstreams that attack: answers that could be read two ways, heads that contain other heads,
//! answers to no request. The client gets a 502 or a body that is visibly cut, never a smuggled
//! field or answer, and the next call gets its own answer.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use http::Request;
use http_body_util::{BodyExt as _, Full};
use tidegate::tls::{self, Pem, Roots};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::frames::{
    self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PUSH_PROMISE, RST_STREAM, SETTINGS, block, frame,
};
use crate::pool::support::Server;
use crate::support::{Proxy, status, within};

/// The result that the client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gets {
    /// A whole answer with this status.
    Whole(u16),
    /// A head, and a body that does not reach its end.
    Cut,
}

/// Reads an answer on a connection that was to close: its status, and whether it came whole.
fn read(answer: &str) -> Gets {
    if answer.is_empty() {
        return Gets::Cut; // it broke before the head was on its way
    }
    let code = status(answer);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let head = head.to_ascii_lowercase();
    let whole = match head.lines().find_map(|line| line.strip_prefix("content-length: ")) {
        Some(length) => body.len() >= length.parse().expect("a number") || [204, 304].contains(&code),
        None if head.contains("transfer-encoding: chunked") => body.ends_with("0\r\n\r\n"),
        None => true,
    };
    if whole { Gets::Whole(code) } else { Gets::Cut }
}

/// Sends a call to a bad upstream, then three more, each of which must get its own answer.
async fn gets(proxy: &Proxy, method: &str, what: &str) -> Gets {
    let ask = |method: &str, path: &str| {
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    };
    let answer = proxy.exchange(&ask(method, "/bad")).await;
    assert!(!answer.to_ascii_lowercase().contains("\ninjected") && !answer.contains("/injected"), "{what}: {answer}");
    for _ in 0..3 {
        let next = proxy.exchange(&ask("GET", "/next")).await;
        assert_eq!(status(&next), 200, "{what}: {next}");
        assert!(next.ends_with("own") && !next.contains("POISON"), "{what}: {next}");
    }
    match read(&answer) {
        // The length is that of the body that a GET would get.
        Gets::Cut if method == "HEAD" && !answer.is_empty() => Gets::Whole(status(&answer)),
        got => got,
    }
}

/// Returns the target of the next request, if there is one.
async fn asked(socket: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).ok()?.split(' ').nth(1)?.to_owned())
}

/// Answers `/bad` with these bytes, and everything else properly.
async fn bad(bytes: Vec<u8>, closes: bool) -> Server {
    let bytes = Arc::new(bytes);
    Server::plain(move |mut socket| {
        let bytes = Arc::clone(&bytes);
        async move {
            while let Some(target) = asked(&mut socket).await {
                let answer =
                    if target == "/bad" { &bytes[..] } else { &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown"[..] };
                if socket.write_all(answer).await.is_err() || (closes && target == "/bad") {
                    return;
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn an_answer_over_http1_that_is_not_one_clear_answer_is_502_or_cut() {
    const POISON: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON";
    let headers = "X-A: 1\r\n".repeat(2000);
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 0\r\n\r\n", "a".repeat(3 << 20));
    let many = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 0\r\n\r\n");
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(10_000);
    let head = |lines: &str, body: &str| format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n{body}");
    for (expected, method, answer) in [
        (Gets::Whole(502), "GET", head("Content-Length: 1\r\nTransfer-Encoding: chunked", "2\r\nok\r\n0\r\n\r\n")),
        (Gets::Whole(502), "GET", head("Transfer-Encoding: chunked\r\nContent-Length: 1", "2\r\nok\r\n0\r\n\r\n")),
        // A coding that no one removes: the client is not told of it, and would take the coded
        // bytes for the answer.
        (Gets::Whole(502), "GET", head("Transfer-Encoding: gzip, chunked", "2\r\nok\r\n0\r\n\r\n")),
        (
            Gets::Whole(502),
            "GET",
            head("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", "2\r\nok\r\n0\r\n\r\n"),
        ),
        (Gets::Whole(502), "GET", head("Transfer-Encoding: chunked, gzip", "2\r\nok\r\n0\r\n\r\n")),
        (Gets::Whole(502), "GET", head("Transfer-Encoding: chunked, chunked", "2\r\nok\r\n0\r\n\r\n")),
        (
            Gets::Whole(502),
            "GET",
            head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "2\r\nok\r\n0\r\n\r\n"),
        ),
        (Gets::Whole(502), "GET", head("Transfer-Encoding: identity, chunked", "2\r\nok\r\n0\r\n\r\n")),
        (Gets::Whole(502), "GET", head("Transfer-Encoding: chunked;q=1", "2\r\nok\r\n0\r\n\r\n")),
        (Gets::Whole(502), "GET", head("Transfer-Encoding: gzip", "ok")),
        (Gets::Whole(502), "GET", head("Transfer-Encoding: identity", "ok")),
        (Gets::Whole(502), "GET", head("Transfer-Encoding: xchunked", "ok")),
        (Gets::Whole(502), "GET", head("Transfer-Encoding:", "ok")),
        (Gets::Whole(502), "GET", head("Transfer-Encoding: gzip\r\nContent-Length: 2", "ok")),
        (Gets::Whole(502), "HEAD", head("Transfer-Encoding: gzip, chunked", "")),
        (Gets::Whole(502), "GET", "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: gzip\r\n\r\n".into()),
        (Gets::Whole(502), "GET", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n".into()),
        (Gets::Whole(502), "GET", head("Content-Length: 2\r\nContent-Length: 3", "ok!")),
        (Gets::Whole(502), "GET", head("Content-Length: 2, 3", "ok!")),
        (Gets::Whole(502), "HEAD", head("Content-Length: 2, 3", "")),
        (Gets::Whole(502), "HEAD", head("Content-Length: 2\r\nContent-Length: 3", "")),
        (Gets::Whole(502), "HEAD", head("Content-Length: two", "")),
        (Gets::Whole(502), "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 2, 3\r\n\r\n".into()),
        (Gets::Whole(502), "GET", head("Content-Length: +2", "ok")),
        (Gets::Whole(502), "GET", head("Content-Length: -2", "ok")),
        (Gets::Whole(502), "GET", head("Content-Length: 99999999999999999999", "ok")),
        (Gets::Whole(502), "GET", head("Content-Length: 0\r\nX: a\r\n Injected: 1", "")),
        (Gets::Whole(502), "GET", head("Content-Length: 0\r\nX: a\rInjected: 1", "")),
        (Gets::Whole(502), "GET", head("Content-Length: 0\r\nX: a\0b", "")),
        (Gets::Whole(502), "GET", head("Content-Length: 0\r\nX : a", "")),
        (Gets::Whole(502), "GET", head("Content-Length: 0\r\nInjected", "")),
        (Gets::Whole(502), "GET", head("Content-Length: 0\r\n: a", "")),
        (
            Gets::Whole(502),
            "GET",
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".into(),
        ),
        (Gets::Whole(502), "GET", "HTTP/1.1 2000 OK\r\n\r\n".into()),
        (Gets::Whole(502), "GET", "HTTP/1.1 20 OK\r\n\r\n".into()),
        (Gets::Whole(502), "GET", "HTTP/2.0 200 OK\r\n\r\n".into()),
        (Gets::Whole(502), "GET", "<html>an answer of HTTP/0.9</html>\r\n\r\n".into()),
        (Gets::Whole(502), "GET", many),
        (Gets::Whole(502), "GET", long),
        (Gets::Cut, "GET", head("Transfer-Encoding: chunked", "2\r\nok\r\nx\r\n\r\n")),
        (Gets::Cut, "GET", head("Transfer-Encoding: chunked", "2\r\nokay\r\n0\r\n\r\n")),
        (Gets::Cut, "GET", head("Transfer-Encoding: chunked", "-2\r\nok\r\n0\r\n\r\n")),
        (Gets::Cut, "GET", head("Transfer-Encoding: chunked", "ffffffffffffffffff\r\nok\r\n0\r\n\r\n")),
        // Answers with clear framing, followed by bytes that answer no request.
        (Gets::Whole(200), "GET", head("Content-Length: 2", &format!("ok{POISON}"))),
        (Gets::Whole(200), "GET", head("Transfer-Encoding: chunked", &format!("2\r\nok\r\n0\r\n\r\n{POISON}"))),
        (Gets::Whole(200), "GET", head("Transfer-Encoding: \tCHUNKED ", &format!("2\r\nok\r\n0\r\n\r\n{POISON}"))),
        (Gets::Whole(204), "GET", format!("HTTP/1.1 204 No Content\r\n\r\n{POISON}")),
        (Gets::Whole(304), "GET", format!("HTTP/1.1 304 Not Modified\r\nContent-Length: 6\r\n\r\n{POISON}")),
        (Gets::Whole(200), "GET", early + &head("Content-Length: 2", &format!("ok{POISON}"))),
    ] {
        let what = answer.get(..120).unwrap_or(&answer);
        let server = bad(answer.clone().into_bytes(), false).await;
        let proxy = Proxy::before(server.address).start().await;
        assert_eq!(gets(&proxy, method, what).await, expected, "{what}");
        assert!(server.connections() > 1, "its connection is used no more: {what}");
    }
}

#[tokio::test]
async fn a_body_behind_the_answer_to_a_head_is_nobodys_answer() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON";
    let server = bad(answer.to_vec(), false).await;
    let proxy = Proxy::before(server.address).start().await;
    let head = proxy.exchange("HEAD /bad HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    for _ in 0..3 {
        let (code, next) = proxy.get("/next").await;
        assert!(code == 200 && next.ends_with("own"), "{next}");
    }
}

/// RFC 9110, 8.6: refused or made one.
#[tokio::test]
async fn a_length_that_an_answer_says_twice_alike_is_passed_on_once() {
    for lengths in ["Content-Length: 2, 2", "Content-Length: 2\r\nContent-Length: 2", "Content-Length: 2 ,2,2"] {
        for (method, body) in [("GET", "ok"), ("HEAD", "")] {
            let server = bad(format!("HTTP/1.1 200 OK\r\n{lengths}\r\n\r\n{body}").into_bytes(), false).await;
            let proxy = Proxy::before(server.address).start().await;
            let ask = format!("{method} /bad HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            let answer = proxy.exchange(&ask).await.to_ascii_lowercase();
            assert_eq!(status(&answer.to_ascii_uppercase()), 200, "{lengths}: {answer}");
            assert_eq!(answer.matches("content-length").count(), 1, "{lengths}: {answer}");
            assert!(answer.contains("content-length: 2\r\n") && answer.ends_with(body), "{lengths}: {answer}");
        }
    }
}

#[tokio::test]
async fn lines_that_end_in_a_bare_lf_upstream_end_in_crlf_here() {
    let server = bad(b"HTTP/1.1 200 OK\nX: a\nContent-Length: 2\n\nok".to_vec(), true).await;
    let proxy = Proxy::before(server.address).start().await;
    let (code, answer) = proxy.get("/bad").await;
    assert_eq!(code, 200);
    let (head, _) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.split("\r\n").all(|line| !line.contains('\n')), "{answer:?}");
}

/// An upstream of HTTP/2 frames: these for the first call, and proper ones for later calls.
async fn bad_frames(answer: Vec<u8>) -> Server {
    let (answer, calls) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    Server::tls(move |mut socket| {
        let (answer, calls) = (Arc::clone(&answer), Arc::clone(&calls));
        async move {
            let mut preface = [0; frames::PREFACE.len()];
            if socket.read_exact(&mut preface).await.is_err()
                || socket.write_all(&frame(SETTINGS, 0, 0, &[])).await.is_err()
            {
                return;
            }
            while let Some(came) = frames::next(&mut socket).await {
                let reply = match came.kind {
                    SETTINGS if came.flags & ACK == 0 => frame(SETTINGS, ACK, 0, &[]),
                    // The frames name stream 1, the first stream of a connection.
                    HEADERS if calls.fetch_add(1, SeqCst) == 0 => answer.to_vec(),
                    HEADERS => [
                        frame(
                            HEADERS,
                            END_HEADERS,
                            came.stream,
                            &block(&[(":status", "200"), ("content-length", "3")]),
                        ),
                        frame(DATA, END_STREAM, came.stream, b"own"),
                    ]
                    .concat(),
                    _ => continue,
                };
                if socket.write_all(&reply).await.is_err() {
                    return;
                }
            }
        }
    })
    .await
}

/// The head of an answer for stream 1.
fn head(flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, 1, &block(fields))
}

/// A good head with one more field, and no body.
fn with(name: &str, value: &str) -> Vec<u8> {
    head(END_STREAM, &[(":status", "200"), (name, value)])
}

async fn gate(server: &Server) -> Proxy {
    let ca = Pem::new(server.ca.as_deref().expect("it speaks TLS").into(), "test CA");
    Proxy::before(server.address)
        .with(|options| {
            options.upstream.target.scheme = http::uri::Scheme::HTTPS;
            options.upstream.tls = Some(Arc::new(tls::Client::new(Roots::Only(ca), None).expect("TLS")));
        })
        .start()
        .await
}

#[tokio::test]
async fn an_answer_over_http2_that_is_not_one_clear_answer_is_502_or_cut() {
    let long = "a".repeat(15_000);
    let many: Vec<_> = (0..200).map(|_| ("x", &*long)).collect();
    let endless: Vec<u8> = block(&many).chunks(16_000).flat_map(|some| frame(CONTINUATION, 0, 1, some)).collect();
    let early: Vec<u8> = (0..10_000).flat_map(|_| head(0, &[(":status", "103")])).collect();
    let push = [&2u32.to_be_bytes()[..], &block(&frames::good("/pushed", &[]))].concat();
    for (expected, frames) in [
        (Gets::Whole(502), with("x", "a\r\nInjected: 1")),
        (Gets::Whole(502), with("x", "a\nInjected: 1")),
        (Gets::Whole(502), with("x", "a\rInjected: 1")),
        (Gets::Whole(502), with("x", "a\0b")),
        (Gets::Whole(502), with("x\r\ninjected", "1")),
        (Gets::Whole(502), with("X-Upper", "1")),
        (Gets::Whole(502), with("", "1")),
        (Gets::Whole(502), with("connection", "close")),
        (Gets::Whole(502), with("transfer-encoding", "chunked")),
        (Gets::Whole(502), with("upgrade", "websocket")),
        (Gets::Whole(502), with("keep-alive", "timeout=1")),
        (Gets::Whole(502), with(":status", "201")),
        (Gets::Whole(200), with(":path", "/injected")), // dropped: it means nothing in an answer
        (Gets::Whole(502), with("content-length", "5")),
        (Gets::Whole(502), with("content-length", "x")),
        (Gets::Whole(502), head(END_STREAM, &[("x", "a"), (":status", "200")])),
        (Gets::Whole(502), head(END_STREAM, &[("x", "a")])),
        (Gets::Whole(502), head(END_STREAM, &[(":status", "99")])),
        (Gets::Whole(502), head(END_STREAM, &[(":status", "2000")])),
        (Gets::Whole(502), head(END_STREAM, &[(":status", "200\r\nInjected: 1")])),
        (Gets::Whole(502), head(END_STREAM, &[(":status", "101")])),
        (Gets::Whole(502), frame(DATA, END_STREAM, 1, b"POISON")),
        (Gets::Whole(502), frame(PUSH_PROMISE, END_HEADERS, 1, &push)),
        (Gets::Whole(502), [frame(HEADERS, 0, 1, &block(&[(":status", "200")])), endless].concat()),
        (
            Gets::Cut,
            [head(0, &[(":status", "200"), ("content-length", "5")]), frame(DATA, END_STREAM, 1, b"abc")].concat(),
        ),
        (Gets::Cut, [head(0, &[(":status", "200"), ("content-length", "3")]), frame(DATA, 0, 1, b"POISON")].concat()),
        (Gets::Whole(200), [early, head(END_STREAM, &[(":status", "200")])].concat()),
    ] {
        let what = String::from_utf8_lossy(&frames[..frames.len().min(80)]).into_owned();
        let server = bad_frames(frames).await;
        let proxy = gate(&server).await;
        assert_eq!(within(gets(&proxy, "GET", &what)).await, expected, "{what}");
    }
}

#[tokio::test]
async fn what_comes_together_with_a_reset_over_http2_reaches_the_client_before_its_end() {
    const INTERNAL_ERROR: u32 = 2;
    for (error, data) in [(INTERNAL_ERROR, "half"), (INTERNAL_ERROR, ""), (0, "half"), (0, "")] {
        let what = format!("{data:?} and error {error}");
        let body = if data.is_empty() { Vec::new() } else { frame(DATA, 0, 1, data.as_bytes()) };
        let answer =
            [head(0, &[(":status", "200"), ("x", "a")]), body, frame(RST_STREAM, 0, 1, &error.to_be_bytes())].concat();

        let server = bad_frames(answer.clone()).await;
        let proxy = gate(&server).await;
        let (code, cut) = proxy.get("/bad").await;
        assert_eq!(code, 200, "{what}: {cut:?}");
        assert!(cut.contains(data) && !cut.ends_with("0\r\n\r\n"), "{what}: {cut:?}");

        let server = bad_frames(answer).await;
        let proxy = gate(&server).await;
        let mut client = proxy.connect_http2().await;
        let request = Request::get("http://localhost/bad").body(Full::default()).expect("valid");
        let mut response = within(client.send_request(request)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(response.status(), 200, "{what}");
        let mut came = Vec::new();
        while let Ok(frame) = within(response.frame()).await.unwrap_or_else(|| panic!("{what}: ended")) {
            came.extend_from_slice(&frame.into_data().expect("data"));
        }
        assert_eq!(String::from_utf8_lossy(&came), data, "{what}");
    }
}

#[tokio::test]
async fn a_redirect_is_passed_on_and_not_followed() {
    let elsewhere = Server::plain(|_| async {}).await;
    let to = format!("http://{}/stolen", elsewhere.address);
    let answer = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
    let server = bad(answer.into_bytes(), false).await;
    let proxy = Proxy::before(server.address).start().await;
    let (code, answer) = proxy.get("/bad").await;
    assert_eq!(code, 302);
    assert!(answer.contains(&format!("\r\nLocation: {to}\r\n")), "{answer}");
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn an_upstream_that_refuses_every_stream_is_not_asked_for_ever() {
    const REFUSED_STREAM: u32 = 7;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let server = Server::tls(move |mut socket| {
        let counted = Arc::clone(&counted);
        async move {
            let mut preface = [0; frames::PREFACE.len()];
            if socket.read_exact(&mut preface).await.is_err()
                || socket.write_all(&frame(SETTINGS, 0, 0, &[])).await.is_err()
            {
                return;
            }
            while let Some(came) = frames::next(&mut socket).await {
                if came.kind == HEADERS {
                    counted.fetch_add(1, SeqCst);
                    let refused = frame(RST_STREAM, 0, came.stream, &REFUSED_STREAM.to_be_bytes());
                    if socket.write_all(&refused).await.is_err() {
                        return;
                    }
                }
            }
        }
    })
    .await;
    let proxy = gate(&server).await;
    for (calls, method) in [(1, "GET"), (2, "PUT")] {
        let ask = format!("{method} /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        assert_eq!(status(&within(proxy.exchange(&ask)).await), 502);
        let asked = asked.load(SeqCst);
        assert!(asked <= calls * 3, "{asked} streams for {calls} calls");
    }
}
