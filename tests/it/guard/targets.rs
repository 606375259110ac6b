//! Long targets, and targets with bytes that `http::Uri` does not carry.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Backend, Proxy, reply, status, within};

/// The longest target that the gate accepts.
const LONGEST: usize = 65_500;

/// Sends a head in pieces of at most `piece` bytes, and reads to the end of the connection.
async fn answer_to(proxy: &Proxy, head: &[u8], piece: usize) -> String {
    let mut client = proxy.connect().await;
    for piece in head.chunks(piece) {
        client.write_all(piece).await.expect("the gate reads all of it");
    }
    let mut all = Vec::new();
    within(client.read_to_end(&mut all)).await.expect("no reset");
    String::from_utf8(all).expect("text")
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn a_target_above_the_limit_gets_414_whatever_its_length() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    for (over, piece) in [
        (0, 1 << 20),
        (1, 1 << 20),
        (34, 1 << 20),
        (35, 1 << 20),
        (100, 1_000),
        (2_084, 1 << 20), // 66 KiB, and a little less and more
        (2_050, 1 << 20),
        (2_100, 1 << 20),
        (5_000, 1_000),
        (100_000, 1 << 20),
        (1 << 19, 10_000),
        ((1 << 20) - LONGEST - 100, 1 << 20), // as long as a head may be, and a little less and more
        ((1 << 20) - LONGEST + 100, 1 << 20),
        ((1 << 20) + (64 << 10) - LONGEST - 60, 1 << 20),
        ((1 << 20) + (64 << 10) - LONGEST, 1 << 20),
        ((1 << 20) + (64 << 10), 1 << 20),
        (5 << 20, 1 << 20),
    ] {
        for unit in ["x", "é", "<"] {
            if over == 0 && unit != "x" {
                continue;
            }
            let mut target = format!("/a?y{}", unit.repeat((LONGEST - 4) / unit.len()));
            target.push_str(&unit.repeat(over.div_ceil(unit.len())));
            let answer = answer_to(&proxy, get(&target).as_bytes(), piece).await;
            let expected = if over == 0 { 200 } else { 414 };
            assert_eq!(status(&answer), expected, "{over} of {unit:?} above the limit: {answer}");
            let is_ours = answer.contains("tidegate: gate") && answer.contains("\"code\":414");
            assert_eq!(is_ours, expected == 414, "{answer}");
            assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
        }
    }
    assert_eq!(backend.targets().iter().map(String::len).collect::<Vec<_>>(), [LONGEST]);
}

#[tokio::test]
async fn what_came_before_a_target_that_is_too_long_is_answered_and_what_comes_behind_it_is_not() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let (good, long) = ("GET /first HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(1 << 18));
    let all = format!("{good}PUT /{long} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}{good}");
    let answer = answer_to(&proxy, all.as_bytes(), 1 << 20).await;
    let statuses: Vec<_> = answer.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)).collect();
    assert_eq!(statuses, ["200", "414"], "{answer}");
    assert_eq!(backend.targets(), ["/first"]);
    assert!(proxy.metric("tidegate_guarded_total", &["rule=\"target\""]) >= 1.0);
}

/// The HTTP/2 library resets targets of more than 65,534 bytes before the gate sees them.
#[tokio::test]
async fn over_http2_a_target_above_the_limit_gets_414_and_the_next_call_its_answer() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let mut client = proxy.connect_http2().await;
    for length in [LONGEST, LONGEST + 1, 65_534, 65_535, LONGEST] {
        let target = format!("/{}", "x".repeat(length.min(65_534) - 1));
        let request = Request::get(format!("http://localhost{target}"));
        let Ok(request) = request.body(Full::<Bytes>::default()) else { continue };
        let answer = within(client.send_request(request)).await.expect("an answer");
        assert_eq!(answer.status(), if length <= LONGEST { 200 } else { 414 }, "{length}");
        within(answer.into_body().collect()).await.expect("whole");
    }
}

#[tokio::test]
async fn the_base_path_of_the_upstream_counts_to_the_target() {
    let backend = Backend::replying(200).await;
    let base = format!("/{}", "b".repeat(99));
    let proxy = Proxy::before(backend.address).with(|options| options.upstream.target.base_path = base).start().await;
    for (length, expected) in [(LONGEST - 100, 200), (LONGEST - 99, 414), (LONGEST, 414)] {
        let answer = answer_to(&proxy, get(&format!("/{}", "x".repeat(length - 1))).as_bytes(), 1 << 20).await;
        assert_eq!(status(&answer), expected, "{length}");
    }
    assert_eq!(backend.targets().len(), 1);
}

/// Also one that came in two pieces: the gate reads each as it comes.
#[tokio::test]
async fn bytes_that_are_not_utf_8_reach_the_upstream_percent_encoded() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    for piece in [1 << 20, 1] {
        let head = b"GET /a\xff/\xc3\xa9?b=\xe9 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let answer = answer_to(&proxy, head, piece).await;
        assert_eq!(status(&answer), 200, "{answer}");
    }
    assert_eq!(backend.targets(), ["/a%FF/\u{e9}?b=%E9"; 2]);
}

#[tokio::test]
async fn a_query_without_a_path_reaches_the_upstream_behind_one() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    assert_eq!(proxy.get("http://localhost?a=b").await.0, 200);
    assert_eq!(backend.targets(), ["/?a=b"]);
}

/// Bytes that Go's client sends raw if its user wrote the query by hand, and that Go's server
/// accepts.
#[tokio::test]
async fn whatever_printable_byte_a_query_has_reaches_the_upstream() {
    let backend = Backend::start(|_| async { reply(200, "ok") }).await;
    let proxy = Proxy::before(backend.address).start().await;
    let raw = "/a?q={}|[]\\^'`!$&()*+,-./:;=?@_~%22";
    assert_eq!(proxy.get(raw).await.0, 200);
    assert_eq!(proxy.get("/a?q={\"x\":\"<y>\"}").await.0, 200);
    assert_eq!(proxy.get("/a<`>b?q").await.0, 200);
    // `http::Uri` does not carry these three, nor a backtick in a path.
    assert_eq!(backend.targets(), [raw, "/a?q={%22x%22:%22%3Cy%3E%22}", "/a%3C%60%3Eb?q"]);
    for byte in (b'!'..=b'~').filter(|byte| *byte != b'#') {
        let (code, answer) = proxy.get(&format!("/b{0}?b={0}", char::from(byte))).await;
        assert_eq!(code, 200, "{:?}: {answer}", char::from(byte));
    }
}
