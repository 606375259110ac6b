//! Answers that arrive before their request's body was read: none is lost, and the connection
//! serves the next call or announces that it will not. Each is tried with bodies that come with
//! their head, after the answer, in pieces, and from clients that write everything before they
//! read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tidegate::tls::{self, Pem, Roots};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;

use crate::pool::support::{Server, answer};
use crate::support::{Backend, Proxy, ProxyBuilder, status, within};

/// A client's connection of any kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

fn boxed(stream: impl Stream + 'static) -> Box<dyn Stream> {
    Box::new(stream)
}

/// The ways in which a client sends a body.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    WithHead,
    /// After the upstream has answered.
    Later,
    InPieces,
    InChunks,
    /// Writes all of it before it reads.
    Blindly,
}

/// The ways in which an HTTP/1.1 upstream answers a POST from its head alone.
#[derive(Clone, Copy, Debug)]
enum Upstream {
    /// Announces that it closes, shuts down writing, and keeps reading for a while, as Go's server
    /// does.
    Closes,
    /// Closes with bytes unread, so that TCP resets.
    Slams,
    /// Keeps the connection and reads nothing more.
    Stops,
    /// Keeps the connection and discards the body, as Node's server does.
    Reads,
}

const TOO_LARGE: &str = "HTTP/1.1 413 Payload Too Large\r\nContent-Length: 9\r\n";

/// An upstream, and a semaphore that shows that it has answered a POST.
async fn upstream(manner: Upstream) -> (Server, Arc<Semaphore>) {
    let answered = Arc::new(Semaphore::new(0));
    let told = Arc::clone(&answered);
    let server = Server::plain(move |mut socket| {
        let answered = Arc::clone(&told);
        async move {
            let mut came = Vec::new();
            while let Some(head) = head(&mut socket, &mut came).await {
                if head.starts_with("GET") {
                    socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.ok();
                    continue;
                }
                let closes = matches!(manner, Upstream::Closes | Upstream::Slams);
                let text = format!("{TOO_LARGE}{}\r\ntoo large", if closes { "Connection: close\r\n" } else { "" });
                socket.write_all(text.as_bytes()).await.ok();
                answered.add_permits(1);
                match manner {
                    Upstream::Slams => return,
                    Upstream::Closes => {
                        socket.shutdown().await.ok();
                        tokio::io::copy(&mut socket, &mut tokio::io::sink()).await.ok();
                        return;
                    }
                    Upstream::Stops => return std::future::pending().await,
                    Upstream::Reads => discard_body(&head, &mut socket, &mut came).await,
                }
            }
        }
    })
    .await;
    (server, answered)
}

/// Reads a head, and leaves the bytes after it in `came`.
async fn head<S: AsyncRead + Unpin>(socket: &mut S, came: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = came.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = came.split_off(end + 4);
            let head = String::from_utf8(std::mem::replace(came, rest)).expect("text");
            return Some(head);
        }
        if socket.read_buf(came).await.ok()? == 0 {
            return None;
        }
    }
}

async fn discard_body<S: AsyncRead + Unpin>(head: &str, socket: &mut S, came: &mut Vec<u8>) {
    let length = head.to_ascii_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut left: Option<usize> = length;
    loop {
        if let Some(left) = &mut left {
            *left -= came.drain(..came.len().min(*left)).len();
        } else if let Some(end) = came.windows(7).position(|seven| seven == b"\r\n0\r\n\r\n") {
            came.drain(..end + 7);
            return;
        } else {
            came.drain(..came.len().saturating_sub(6));
        }
        came.reserve(64 << 10);
        if left == Some(0) || socket.read_buf(came).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

/// Sends a POST over HTTP/1.1; returns the status, and true if the answer says that the connection
/// ends.
async fn post(stream: &mut Box<dyn Stream>, size: usize, manner: Manner, answered: &Semaphore) -> (u16, bool) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let framing = match manner {
        Manner::InChunks => "Transfer-Encoding: chunked".to_owned(),
        _ => format!("Content-Length: {size}"),
    };
    let mut request = format!("POST /x HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n").into_bytes();
    let writing = async {
        if matches!(manner, Manner::WithHead | Manner::Blindly) {
            request.resize(request.len() + size, b'x');
            return writer.write_all(&request).await;
        }
        writer.write_all(&request).await?;
        if manner == Manner::Later {
            answered.acquire().await.expect("open").forget();
        }
        for piece in vec![b'x'; size].chunks(size.div_ceil(16)) {
            if manner == Manner::InChunks {
                let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
                writer.write_all(&chunk).await?;
            } else {
                writer.write_all(piece).await?;
            }
            tokio::task::yield_now().await;
        }
        if manner == Manner::InChunks {
            writer.write_all(b"0\r\n\r\n").await?;
        }
        writer.flush().await
    };
    let reading = async {
        let mut came = Vec::new();
        let head = head(&mut reader, &mut came).await.expect("an answer");
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        while came.len() < length.expect("a length") {
            assert!(reader.read_buf(&mut came).await.expect("reads") > 0, "closed before the answer's end");
        }
        (status(&head), head.to_ascii_lowercase().contains("connection: close"))
    };
    if manner == Manner::Blindly {
        writing.await.ok(); // it may be cut off, and still finds the answer
        return within(reading).await;
    }
    let mut writing = std::pin::pin!(writing);
    let mut written = None;
    let mut reading = std::pin::pin!(within(reading));
    let got = loop {
        tokio::select! {
            got = &mut reading => break got,
            done = &mut writing, if written.is_none() => written = Some(done),
        }
    };
    if !got.1 && written.is_none() {
        within(writing).await.expect("the body is read to its end");
    }
    got
}

/// Makes the next call on the connection if it serves one; otherwise it must end without a reset.
async fn next(stream: &mut Box<dyn Stream>, closes: bool) {
    if closes {
        let mut rest = Vec::new();
        within(stream.read_to_end(&mut rest)).await.expect("no reset");
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
        return;
    }
    stream.write_all(b"GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("open");
    let head = within(head(stream, &mut Vec::new())).await.expect("the next answer");
    assert!(head.starts_with("HTTP/1.1 200 ") || head.starts_with("HTTP/1.1 429 "), "{head}");
}

const SIZES: [usize; 5] = [300, 60_000, 200_000, 4_000_000, 30_000_000];
const MANNERS: [Manner; 5] = [Manner::WithHead, Manner::Later, Manner::InPieces, Manner::InChunks, Manner::Blindly];
/// The ways in which 30 MB are sent; the others differ from them only at the beginning.
const BULK: [Manner; 2] = [Manner::WithHead, Manner::Blindly];

/// Tries every size in every way, each on a new connection.
async fn matrix(what: &str, expected: u16, answered: &Semaphore, connect: impl AsyncFn() -> Box<dyn Stream>) {
    matrix_of(&SIZES, what, expected, answered, connect).await;
}

async fn matrix_of(
    sizes: &[usize],
    what: &str,
    expected: u16,
    answered: &Semaphore,
    connect: impl AsyncFn() -> Box<dyn Stream>,
) {
    for &size in sizes {
        for manner in MANNERS.into_iter().filter(|manner| size < 10_000_000 || BULK.contains(manner)) {
            let mut stream = connect().await;
            let (status, closes) = post(&mut stream, size, manner, answered).await;
            assert_eq!(status, expected, "{what}, {size} bytes, {manner:?}");
            assert!(closes || size < 300_000, "{what}, {size} bytes, {manner:?}: the rest would be the next request");
            assert!(!closes || size > 300, "{what}, {size} bytes, {manner:?}: the connection ends for nothing");
            next(&mut stream, closes).await;
            while let Ok(permit) = answered.try_acquire() {
                permit.forget();
            }
        }
    }
}

async fn tcp(proxy: &Proxy) -> Box<dyn Stream> {
    boxed(proxy.connect().await)
}

#[tokio::test]
async fn an_early_answer_over_http1_reaches_every_client_and_the_next_call_does_too() {
    for manner in [Upstream::Closes, Upstream::Slams, Upstream::Reads] {
        let (server, answered) = upstream(manner).await;
        let proxy = Proxy::before(server.address).start().await;
        matrix(&format!("{manner:?}"), 413, &answered, async || tcp(&proxy).await).await;
    }
    let (server, answered) = upstream(Upstream::Stops).await;
    let proxy = Proxy::before(server.address).start().await;
    matrix_of(&[4_000_000, 30_000_000], "Stops", 413, &answered, async || tcp(&proxy).await).await;
}

/// An HTTP/2 upstream that answers without reading the body: it sends a reset with `NO_ERROR` after
/// the answer.
async fn upstream_http2() -> (Server, ProxyBuilder, Arc<Semaphore>) {
    let answered = Arc::new(Semaphore::new(0));
    let told = Arc::clone(&answered);
    let server = Server::http2(100, move |request, _| {
        let answered = Arc::clone(&told);
        Box::pin(async move {
            let mut answer = answer("too large");
            if request.method() == "POST" {
                *answer.status_mut() = http::StatusCode::PAYLOAD_TOO_LARGE;
                answered.add_permits(1);
            }
            answer
        })
    })
    .await;
    let ca = server.ca.clone().expect("TLS");
    let proxy = Proxy::before(server.address).with(|options| {
        options.upstream.target.scheme = http::uri::Scheme::HTTPS;
        let roots = Roots::Only(Pem::new(ca.into(), "test CA"));
        options.upstream.tls = Some(Arc::new(tls::Client::new(roots, None).expect("TLS")));
    });
    (server, proxy, answered)
}

#[tokio::test]
async fn an_early_answer_from_an_http2_upstream_reaches_every_client_and_the_next_call_does_too() {
    let (_server, proxy, answered) = upstream_http2().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gate.sock");
    let listen = tidegate::proxy::Listen::Unix(path.clone());
    let proxy = proxy.with(|options| options.gate.listen.push(listen)).start().await;
    matrix("tcp", 413, &answered, async || tcp(&proxy).await).await;
    matrix("unix", 413, &answered, async || boxed(UnixStream::connect(&path).await.expect("listens"))).await;
}

#[tokio::test]
async fn an_early_answer_reaches_every_client_through_tls() {
    let (_server, proxy, answered) = upstream_http2().await;
    let listener = Arc::new(tls::self_signed(&[], &[[127, 0, 0, 1].into()], None).expect("made"));
    let config = Arc::clone(&listener);
    let proxy = proxy.with(|options| options.tls = Some(config)).start().await;
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(listener.ca().as_bytes()) {
        roots.add(ca.expect("PEM")).expect("a CA");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = Arc::new(versions.expect("TLS").with_root_certificates(roots).with_no_client_auth());
    matrix("tls", 413, &answered, async || {
        let stream = TcpStream::connect(proxy.address).await.expect("connects");
        let name = ServerName::try_from("localhost").expect("a name");
        boxed(within(TlsConnector::from(Arc::clone(&config)).connect(name, stream)).await.expect("trusts"))
    })
    .await;
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_over_http2() {
    let (server, answered) = upstream(Upstream::Closes).await;
    let (_server, proxy, _) = upstream_http2().await;
    for proxy in [Proxy::before(server.address).start().await, proxy.start().await] {
        let mut client = proxy.connect_http2().await;
        for size in SIZES {
            let request = Request::post("http://localhost/x").body(Full::new(Bytes::from(vec![b'x'; size])));
            let response = within(client.send_request(request.expect("valid"))).await.expect("an answer");
            assert_eq!(response.status(), 413, "{size} bytes");
            assert_eq!(within(response.into_body().collect()).await.expect("whole").to_bytes(), "too large", "{size}");
        }
        let request = Request::get("http://localhost/next").body(Full::<Bytes>::default());
        assert_eq!(within(client.send_request(request.expect("valid"))).await.expect("open").status(), 200);
    }
    drop(answered);
}

#[tokio::test]
async fn a_refusal_of_the_gates_own_reaches_every_client_and_the_next_call_does_too() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).bucket(0.000_001, 1).max_wait(std::time::Duration::ZERO).start().await;
    within(async { while proxy.get("/first").await.0 != 200 {} }).await;
    let answered = Semaphore::new(0);
    for size in SIZES {
        for manner in MANNERS.into_iter().filter(|manner| size < 10_000_000 || BULK.contains(manner)) {
            let mut stream = tcp(&proxy).await;
            answered.add_permits(1);
            let (status, closes) = post(&mut stream, size, manner, &answered).await;
            assert_eq!(status, 429, "{size} bytes, {manner:?}");
            assert!(closes || size < 300_000, "{size} bytes, {manner:?}");
            next(&mut stream, closes).await;
        }
    }
}

#[tokio::test]
async fn what_the_guard_says_reaches_a_client_that_sends_on() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    for (head, expected) in [
        ("POST /x HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.test\r\nContent-Length: 4000000\r\n\r\n", 403),
        ("POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\nContent-Length: 1\r\n\r\n", 400),
    ] {
        let mut stream = tcp(&proxy).await;
        let mut request = head.as_bytes().to_vec();
        request.resize(request.len() + 4_000_000, b'x');
        within(stream.write_all(&request)).await.expect("the gate reads on");
        let mut answer = Vec::new();
        within(stream.read_to_end(&mut answer)).await.expect("no reset");
        assert_eq!(status(&String::from_utf8_lossy(&answer)), expected);
    }
    assert!(backend.targets().is_empty());
}

const EXPECTING: &str = "POST /x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";

#[tokio::test]
async fn a_call_that_waits_is_not_told_to_send_its_body_before_it_leaves() {
    let (backend, answers) = Backend::holding().await;
    let proxy = Arc::new(Proxy::before(backend.address).in_flight(1).start().await);
    let held = Arc::clone(&proxy);
    let first = tokio::spawn(async move { held.get("/first").await.0 });
    within(async {
        while backend.targets().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut client = proxy.connect().await;
    client.write_all(EXPECTING.as_bytes()).await.expect("writes");
    proxy.reaches("tidegate_in_flight", &[], 2.0).await;
    let nothing = client.try_read(&mut [0; 100]).expect_err("it waits");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    answers.add_permits(2);
    assert_eq!(within(first).await.expect("no panic"), 200);
    let mut came = Vec::new();
    assert_eq!(within(head(&mut client, &mut came)).await.expect("told"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"body").await.expect("writes");
    assert_eq!(status(&within(head(&mut client, &mut came)).await.expect("answered")), 200);
    assert_eq!(backend.seen()[1].body, "body");

    // The gate notices a client that leaves while its call waits, although it does not read the
    // body.
    let first = tokio::spawn({
        let held = Arc::clone(&proxy);
        async move { held.get("/second").await.0 }
    });
    within(async {
        while backend.targets().len() < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut leaver = proxy.connect().await;
    leaver.write_all(EXPECTING.as_bytes()).await.expect("writes");
    proxy.reaches("tidegate_in_flight", &[], 2.0).await;
    drop(leaver);
    proxy.reaches("tidegate_hangups_total", &[], 1.0).await;
    answers.add_permits(2);
    assert_eq!(within(first).await.expect("no panic"), 200);
    assert_eq!(backend.targets().len(), 3);
}

#[tokio::test]
async fn a_client_is_told_to_continue_when_the_upstream_says_so() {
    let (asked, says) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (told, waits) = (Arc::clone(&asked), Arc::clone(&says));
    let server = Server::plain(move |mut socket| {
        let (asked, says) = (Arc::clone(&told), Arc::clone(&waits));
        async move {
            let mut came = Vec::new();
            let request = head(&mut socket, &mut came).await.expect("a head");
            assert!(request.to_ascii_lowercase().contains("expect: 100-continue"), "{request}");
            asked.add_permits(1);
            says.acquire().await.expect("open").forget();
            assert!(came.is_empty(), "nothing was sent unasked");
            socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.expect("writes");
            let mut body = [0; 4];
            socket.read_exact(&mut body).await.expect("the body");
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.expect("writes");
            socket.read_to_end(&mut came).await.ok();
        }
    })
    .await;
    let proxy = Proxy::before(server.address).start().await;
    let mut client = proxy.connect().await;
    client.write_all(EXPECTING.as_bytes()).await.expect("writes");
    within(asked.acquire()).await.expect("open").forget();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let nothing = client.try_read(&mut [0; 100]).expect_err("the upstream has not asked");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    says.add_permits(1);
    let mut came = Vec::new();
    assert_eq!(within(head(&mut client, &mut came)).await.expect("told"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"body").await.expect("writes");
    assert_eq!(status(&within(head(&mut client, &mut came)).await.expect("answered")), 200);
}

#[tokio::test]
async fn a_final_answer_in_place_of_100_continue_reaches_the_client_and_ends_its_connection() {
    let (server, _answered) = upstream(Upstream::Stops).await;
    let (_server, over_http2, _) = upstream_http2().await;
    let bare = Backend::replying(200).await;
    let refusing = Proxy::before(bare.address).bucket(0.000_001, 1).max_wait(std::time::Duration::ZERO).start().await;
    within(async { while refusing.get("/first").await.0 != 200 {} }).await;
    for (proxy, expected) in
        [(Proxy::before(server.address).start().await, 413), (over_http2.start().await, 413), (refusing, 429)]
    {
        let mut client = proxy.connect().await;
        client.write_all(EXPECTING.as_bytes()).await.expect("writes");
        let mut answer = Vec::new();
        within(client.read_to_end(&mut answer)).await.expect("no reset");
        let answer = String::from_utf8(answer).expect("text");
        assert_eq!(status(&answer), expected, "{answer}");
        assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_knows_nothing_of_expect_gets_the_body_a_second_later() {
    let bodies = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&bodies);
    let server = Server::plain(move |mut socket| {
        let count = Arc::clone(&count);
        async move {
            let mut came = Vec::new();
            head(&mut socket, &mut came).await.expect("a head");
            while came.len() < 4 {
                assert!(socket.read_buf(&mut came).await.expect("reads") > 0);
            }
            count.fetch_add(1, Ordering::SeqCst);
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.expect("writes");
            socket.read_to_end(&mut came).await.ok();
        }
    })
    .await;
    let proxy = Proxy::before(server.address).start().await;
    let mut client = proxy.connect().await;
    client.write_all(EXPECTING.as_bytes()).await.expect("writes");
    let mut came = Vec::new();
    assert_eq!(head(&mut client, &mut came).await.expect("told"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"body").await.expect("writes");
    assert_eq!(status(&head(&mut client, &mut came).await.expect("answered")), 200);
    assert_eq!(bodies.load(Ordering::SeqCst), 1);
}
