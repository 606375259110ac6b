//! Heads that no HTTP/2 library would send, in frames made by hand: each is refused, and no byte of
//! it reaches an HTTP/1.1 upstream.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::frames::{
    self, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, block, frame, good, hello, request,
};
use crate::support::{Backend, Proxy, within};

/// The fate of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Became {
    /// The stream was reset, or its connection ended.
    Refused,
    /// The stream has an answer; true if it was 200.
    Answered(bool),
}

/// Sends bytes after the preface on a new connection, and waits for the fate of stream 1.
async fn send(proxy: &Proxy, bytes: &[u8]) -> (Became, TcpStream) {
    let mut client = proxy.connect().await;
    client.write_all(&[&hello(&[]), bytes].concat()).await.expect("writes");
    loop {
        let became = match within(frames::next(&mut client)).await {
            None => Became::Refused,
            Some(frame) if frame.kind == GOAWAY => Became::Refused,
            Some(frame) if frame.kind == RST_STREAM && frame.stream == 1 => Became::Refused,
            // :status 200 is the eighth entry of the static table
            Some(frame) if frame.kind == HEADERS && frame.stream == 1 => Became::Answered(frame.payload[0] == 0x88),
            Some(_) => continue,
        };
        return (became, client);
    }
}

/// A head with these pseudo-headers and fields in this order.
fn head(fields: &[(&str, &str)]) -> Vec<u8> {
    request(1, fields)
}

#[tokio::test]
async fn a_head_that_no_library_would_send_is_refused_by_the_frame() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    for (name, value) in [
        ("x", "a\r\nImpersonate-User: admin"),
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", "a\0b"),
        ("X-Upper", "a"),
        ("x y", "a"),
        ("x:y", "a"),
        ("x\r\nhost", "a"),
        ("x\0", "a"),
        ("", "a"),
        ("connection", "close"),
        ("connection", "authorization"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("te", "gzip"),
        (":path", "/second"),
        (":authority", "elsewhere"),
        (":method", "POST"),
        (":scheme", "https"),
        (":status", "200"),
        (":unknown", "x"),
        ("content-length", "5"),
        ("content-length", "+0"),
        ("content-length", "x"),
    ] {
        let (became, _) = send(&proxy, &head(&good("/", &[(name, value)]))).await;
        assert_eq!(became, Became::Refused, "{name:?}: {value:?}");
    }
    assert_eq!(backend.targets(), [""; 0]);
}

#[tokio::test]
async fn pseudo_headers_are_there_once_in_front_and_well_formed() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let [method, scheme, authority, path] =
        [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", "/")];
    for fields in [
        &[scheme, authority, path][..],
        &[method, authority, path],
        &[method, scheme, authority],
        &[method, scheme, authority, ("x", "y"), path],
        &[method, scheme, authority, path, path],
        &[method, method, scheme, authority, path],
        &[method, scheme, authority, (":path", "")],
        &[method, scheme, authority, (":path", "/ HTTP/1.1\r\nHost: x")],
        &[method, scheme, authority, (":path", "/a b")],
        &[method, scheme, authority, (":path", "/\0")],
        &[(":method", "GE T"), scheme, authority, path],
        &[(":method", "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET"), scheme, authority, path],
        &[(":method", ""), scheme, authority, path],
        &[method, scheme, (":authority", "local\r\nhost"), path],
        &[(":method", "CONNECT"), authority, (":protocol", "websocket"), scheme, path],
    ] {
        assert_eq!(send(&proxy, &head(fields)).await.0, Became::Refused, "{fields:?}");
    }
    assert_eq!(backend.targets(), [""; 0]);
}

#[tokio::test]
async fn the_request_half_sees_http2_as_it_sees_http1() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let [method, scheme, authority, path] =
        [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", "/")];
    for (rule, fields) in [
        ("host", &[method, scheme, (":authority", "evil.test:8001"), path][..]),
        ("host", &[method, scheme, (":authority", "me@localhost"), path]),
        ("host", &[method, scheme, path, ("host", "evil.test")]),
        ("host_count", &[method, scheme, path]),
        ("host_count", &[method, scheme, authority, path, ("host", "127.0.0.1")]),
        ("host_count", &[method, scheme, authority, path, ("host", "localhost"), ("host", "localhost")]),
        ("cross_site", &[method, scheme, authority, path, ("origin", "https://evil.test")]),
        ("cross_site", &[method, scheme, authority, path, ("sec-fetch-site", "cross-site")]),
        ("connect", &[(":method", "CONNECT"), authority]),
        ("target", &[method, scheme, authority, (":path", "*")]),
    ] {
        let before = proxy.metric("tidegate_guarded_total", &[&format!("rule=\"{rule}\"")]);
        assert_eq!(send(&proxy, &head(fields)).await.0, Became::Answered(false), "{fields:?}");
        proxy.reaches("tidegate_guarded_total", &[&format!("rule=\"{rule}\"")], before + 1.0).await;
    }
    // A path without its slash is invalid: hyper puts none in front.
    let (became, _) = send(&proxy, &head(&[method, scheme, authority, (":path", "api/v1")])).await;
    assert_ne!(became, Became::Answered(true));
    assert_eq!(backend.targets(), [""; 0]);
    assert_eq!(send(&proxy, &head(&good("/good", &[("te", "trailers")]))).await.0, Became::Answered(true));
    // hyper cuts the fragment off before the rules run: they see what the upstream sees.
    assert_eq!(send(&proxy, &head(&good("/a#/../b", &[]))).await.0, Became::Answered(true));
    assert_eq!(backend.targets(), ["/good", "/a"]);
}

/// An upstream that keeps every byte, and answers anything that looks like the end of a head.
async fn tap() -> (std::net::SocketAddr, mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut all = Vec::new();
                while matches!(socket.read_buf(&mut all).await, Ok(read) if read > 0) {}
                drop(tell.send(all));
            });
        }
    });
    (address, told)
}

#[tokio::test]
async fn a_body_over_http2_is_as_long_as_its_head_says_or_no_request_at_all() {
    let post = |length: &str| {
        let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", "/")];
        let fields = [&fields[..], &[("content-length", length)]].concat();
        frame(HEADERS, END_HEADERS, 1, &block(&fields))
    };
    let smuggled = b"abcGET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (length, data, ends) in [
        ("3", &smuggled[..], true),
        ("3", &smuggled[..], false),
        ("300", b"abc", true),
        ("0", b"GET /smuggled HTTP/1.1\r\n\r\n", true),
    ] {
        let (upstream, mut told) = tap().await;
        let proxy = Proxy::before(upstream).start().await;
        let flags = if ends { END_STREAM } else { 0 };
        let (became, client) = send(&proxy, &[post(length), frame(DATA, flags, 1, data)].concat()).await;
        assert_eq!(became, Became::Refused, "{length} {data:?}");
        drop(client);
        proxy.reaches("tidegate_client_connections", &[], 0.0).await;
        proxy.stop.cancel();
        within(proxy.gate.finished()).await;
        drop(proxy);
        // Nothing was sent, or an incomplete request on a connection that carries nothing else.
        if let Ok(Some(bytes)) = tokio::time::timeout(std::time::Duration::from_millis(200), told.recv()).await {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert!(!text.contains("smuggled"), "{text}");
            let body = text.split_once("\r\n\r\n").map(|(_, body)| body.len());
            assert!(body.is_none_or(|body| body < length.parse().expect("a number")), "{text}");
        }
    }
}

#[tokio::test]
async fn frames_out_of_order_end_their_connection() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let whole = block(&good("/", &[]));
    let (first, second) = whole.split_at(7);
    let split = frame(HEADERS, END_STREAM, 1, first);
    for bytes in [
        // another stream's frame inside a head
        [&split[..], &frame(DATA, 0, 3, b"x"), &frame(CONTINUATION, END_HEADERS, 1, second)].concat(),
        [&split[..], &frame(CONTINUATION, END_HEADERS, 3, second)].concat(),
        // a continuation of nothing, a body without a head, a stream of the server's
        frame(CONTINUATION, END_HEADERS, 1, &whole),
        frame(DATA, END_STREAM, 1, b"x"),
        frame(HEADERS, END_HEADERS | END_STREAM, 2, &whole),
        frame(HEADERS, END_HEADERS | END_STREAM, 0, &whole),
        frame(frames::PUSH_PROMISE, END_HEADERS, 1, &[&2u32.to_be_bytes()[..], &whole].concat()),
        // a table larger than was agreed, an index past it
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &[&[0x3f, 0xe1, 0xff, 0x7f][..], &whole].concat()),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &[&whole[..], &[0xff, 0x7f]].concat()),
    ] {
        assert_eq!(send(&proxy, &bytes).await.0, Became::Refused, "{bytes:?}");
    }
    assert_eq!(backend.targets(), [""; 0]);
}
