//! Bytes that no correct client sends: the answer to them, and that nothing reaches the upstream.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Backend, Proxy, header, raw_backend, status, within};

/// Everything that comes until the gate closes.
async fn rest(client: &mut TcpStream) -> String {
    let mut all = Vec::new();
    // A reset after the answer is an end too.
    drop(within(client.read_to_end(&mut all)).await);
    String::from_utf8_lossy(&all).into_owned()
}

/// Sends bytes on a new connection, and reads to its end.
async fn answer_to(proxy: &Proxy, bytes: &[u8]) -> String {
    let mut client = proxy.connect().await;
    client.write_all(bytes).await.expect("writes");
    rest(&mut client).await
}

#[tokio::test]
async fn what_two_readers_could_read_differently_is_turned_away() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    for (rule, bytes) in [
        ("length", &b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX"[..]),
        ("length", b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n"),
        ("length", b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n"),
        ("length", b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("control", b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"),
        ("length", b"POST / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("length", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +1\r\n\r\nx"),
        ("length", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1, 1\r\n\r\nx"),
        ("length", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
        ("length", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx"),
        ("line_end", b"GET /a HTTP/1.1\nHost: localhost\n\n"),
        ("malformed", b"GET /a HTTP/1.1\r\nHost: localhost\r\nX-A: 1\r\n 2\r\n\r\n"),
        ("malformed", b"GET /a HTTP/1.1\r\nHost: localhost\r\nX-A : 1\r\n\r\n"),
        ("control", b"GET /a HTTP/1.1\r\nHost: localhost\r\nX: a\x01b\r\n\r\n"),
        ("malformed", b"\r\nGET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("malformed", b"GET /a HTTP/1.0\r\nHost: localhost\r\nConnection: x\r\nConnection: keep-alive\r\n\r\n"),
        ("fragment", b"GET /a#/../b HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ] {
        let before = proxy.metric("tidegate_guarded_total", &[&format!("rule=\"{rule}\"")]);
        let answer = answer_to(&proxy, bytes).await;
        assert_eq!(status(&answer), 400, "{}\n{answer}", String::from_utf8_lossy(bytes));
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        proxy.reaches("tidegate_guarded_total", &[&format!("rule=\"{rule}\"")], before + 1.0).await;
    }
    assert_eq!(backend.targets(), [""; 0]);
}

/// Sends pieces, each once the gate has read the one before, and reads to the end of the
/// connection.
async fn answer_to_pieces(proxy: &Proxy, pieces: &[&[u8]]) -> String {
    let mut client = proxy.connect().await;
    for piece in pieces {
        client.write_all(piece).await.expect("writes");
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    rest(&mut client).await
}

#[tokio::test]
async fn a_bad_head_is_answered_however_it_is_cut() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    for (before, after) in [
        ("GET / HTTP/1.1\r\nHost: localhost\r\n", "X : a\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nX:", " a\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r", "b: c\r\n\r\n"),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 1\r\n", "\r\nx"),
        ("GET /a", "#b HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("G", "ET / HTTP/1.1\nHost: localhost\n\n"),
    ] {
        let answer = answer_to_pieces(&proxy, &[before.as_bytes(), after.as_bytes()]).await;
        assert_eq!(status(&answer), 400, "{before:?} {after:?}\n{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    }
    assert_eq!(backend.targets(), [""; 0]);
}

#[tokio::test]
async fn a_head_longer_than_is_taken_gets_431_whether_its_lines_are_long_or_many() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    for (lines, length) in
        [(1, 1_200_000), (1, 5 << 20), (1, (1 << 20) + (64 << 10)), (30, 40_000), (24_001, 1), (60_000, 0)]
    {
        let line = format!("X: {}\r\n", "x".repeat(length));
        let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", line.repeat(lines));
        let mut client = proxy.connect().await;
        let (mut reader, mut writer) = client.split();
        let mut answer = Vec::new();
        let sending = async { drop(writer.write_all(head.as_bytes()).await) };
        let reading = reader.read_to_end(&mut answer);
        let (_, read) = within(async { tokio::join!(sending, reading) }).await;
        read.expect("no reset");
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(status(&answer), 431, "{lines} of {length}: {answer}");
        assert_eq!(header(&answer, "connection"), Some("close"), "{answer}");
        assert!(answer.contains("\"kind\":\"Status\"") && answer.contains("24,000 lines"), "{answer}");
    }
    assert_eq!(backend.targets(), [""; 0]);
    assert_eq!(proxy.metric("tidegate_guarded_total", &["rule=\"head_size\""]), 6.0);
}

/// A head is cut wherever its end is found to be too far.
#[tokio::test]
async fn a_head_that_is_cut_anywhere_in_a_line_gets_431() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let before = format!("X: {}\r\n", "x".repeat(1000)).repeat(1080);
    for length in 0..40 {
        let line = "X-Long-Name: a value\r\n";
        let first = "POST / HTTP/1.1\r\nHost: localhost\r\n";
        // The limit is 4 KiB less than hyper's.
        let fill = (1 << 20) + (60 << 10) - first.len() - before.len() - length - "F: \r\n".len();
        let head = format!("{first}{before}F: {}\r\n{line}{line}\r\n", "f".repeat(fill));
        let answer = answer_to(&proxy, head.as_bytes()).await;
        assert_eq!(status(&answer), 431, "{length}: {answer}");
        assert!(answer.contains("\"kind\":\"Status\""), "{length}: {answer}");
    }
    assert_eq!(backend.targets(), [""; 0]);
}

/// As clients behind Rancher send them: a line for each group of the user.
fn groups(number: usize) -> String {
    (0..number).map(|group| format!("Impersonate-Group: organization:team-{group}\r\n")).collect()
}

#[tokio::test]
async fn a_head_of_many_lines_reaches_the_upstream_as_it_came() {
    for number in [101, 257, 600, 12_000] {
        let (address, upstream) = raw_backend(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        let proxy = Proxy::before(address).start().await;
        let head = format!("GET /api HTTP/1.1\r\nHost: localhost\r\n{}Connection: close\r\n\r\n", groups(number));
        let answer = answer_to(&proxy, head.as_bytes()).await;
        assert_eq!(status(&answer), 200, "{number}: {answer}");
        let came = String::from_utf8(upstream.await.expect("no panic")).expect("text");
        let came: Vec<_> = came.lines().filter(|line| line.starts_with("Impersonate-Group: ")).collect();
        assert!(came.into_iter().eq(groups(number).lines()), "{number} lines as they came");
    }
}

#[tokio::test]
async fn a_head_of_many_lines_over_http2_reaches_the_upstream() {
    let (address, upstream) = raw_backend(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
    let proxy = Proxy::before(address).start().await;
    let mut request = http::Request::get("http://localhost/api").version(http::Version::HTTP_2);
    for line in groups(12_000).lines() {
        request = request.header("impersonate-group", line.split_once(": ").expect("a line").1);
    }
    let request = request.body(http_body_util::Full::default()).expect("valid");
    let answer = within(proxy.connect_http2().await.send_request(request)).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let came = String::from_utf8(upstream.await.expect("no panic")).expect("text");
    assert_eq!(came.matches("impersonate-group: organization:team-").count(), 12_000);
}

#[tokio::test]
async fn a_connection_with_hundreds_of_lines_serves_on() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let call = |more: &str| format!("GET /x HTTP/1.1\r\nHost: localhost\r\n{}{more}\r\n", groups(90));
    let many = format!("GET /y HTTP/1.1\r\nHost: localhost\r\n{}\r\n", groups(510));
    let answer = answer_to(&proxy, format!("{}{many}{}", call(""), call("Connection: close\r\n")).as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 3, "{answer}");
}

#[tokio::test]
async fn a_good_request_is_answered_before_the_bad_one_behind_it_is_turned_away() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let answer = answer_to(
        &proxy,
        b"POST /first HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
          GET /second HTTP/1.1\nHost: localhost\n\nGET /third HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )
    .await;
    let statuses: Vec<_> = answer
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|answer| answer.split(' ').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(statuses, ["200", "400"], "{answer}");
    assert_eq!(backend.targets(), ["/first"]);
}

#[tokio::test]
async fn a_body_that_lies_about_its_chunks_is_cut() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    for body in
        ["3\r\nabcGET / HTTP/1.1\r\n\r\n", "3\nabc\r\n0\r\n\r\n", "-3\r\nabc\r\n0\r\n\r\n", "0\r\nA b: c\r\n\r\n"]
    {
        let bytes = format!("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
        let answer = answer_to(&proxy, bytes.as_bytes()).await;
        assert!(!answer.contains("HTTP/1.1 200"), "{body:?}: {answer}");
    }
    assert_eq!(backend.targets(), [""; 0], "a body that was not read to its end is no request");
}

#[tokio::test]
async fn who_is_not_meant_is_not_answered_as_if() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    for (expected, bytes) in [
        (421, &b"GET /api HTTP/1.1\r\nHost: evil.test:8001\r\nConnection: close\r\n\r\n"[..]),
        (403, b"POST /api/v1/namespaces HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        (403, b"GET /api HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nConnection: close\r\n\r\n"),
        (400, b"GET /api HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        (400, b"GET /api HTTP/1.1\r\nConnection: close\r\n\r\n"),
        (405, b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nConnection: close\r\n\r\n"),
        (400, b"GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: close, Impersonate-User\r\nImpersonate-User: low\r\n\r\n"),
        (400, b"GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nConnection: Authorization\r\nAuthorization: x\r\n\r\n"),
    ] {
        let answer = answer_to(&proxy, bytes).await;
        assert_eq!(status(&answer), expected, "{}\n{answer}", String::from_utf8_lossy(bytes));
    }
    for target in [
        "http://169.254.169.254/latest",
        "http://127.0.0.1/two-names",
        "1http://localhost/",
        "localhost:80",
        "foo",
        "*",
    ] {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = answer_to(&proxy, bytes.as_bytes()).await;
        assert!([400, 421].contains(&status(&answer)), "{target}: {answer}");
    }
    assert_eq!(backend.targets(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_never_ends_does_not_hold_its_connection() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let mut slow = proxy.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nHost: loc").await.expect("writes");
    let mut idle = proxy.connect().await;
    idle.write_all(b"GET /idle HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("writes");
    proxy.reaches("tidegate_client_connections", &[], 2.0).await;
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(rest(&mut slow).await, "");
    proxy.reaches("tidegate_guarded_total", &["rule=\"slow\""], 1.0).await;
    // The time limit for a head does not run between calls.
    idle.write_all(b"GET /again HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.expect("writes");
    assert_eq!(rest(&mut idle).await.matches("HTTP/1.1 200").count(), 2);
    assert_eq!(backend.targets(), ["/idle", "/again"]);
}
