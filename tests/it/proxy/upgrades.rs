//! Upgrades through the gate: exec, attach, port-forward and cp as kubectl requests them, byte by
//! byte.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::tls::{self, Pem, Roots};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::pool::support::Server;
use crate::support::{Backend, Proxy, ProxyBuilder, raw_backend, status, within};

const WEBSOCKET: &str = "GET /api/v1/namespaces/d/pods/p/exec?command=sh HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
     Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
     Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
     Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n";

/// Reads up to the end of a head, and no further.
async fn head<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&head))));
    }
    String::from_utf8(head).expect("text")
}

async fn says<S: AsyncRead + Unpin>(stream: &mut S, expected: &str) {
    let mut said = vec![0; expected.len()];
    within(stream.read_exact(&mut said)).await.expect("it goes on");
    assert_eq!(String::from_utf8_lossy(&said), expected);
}

async fn ends<S: AsyncRead + Unpin>(stream: &mut S) {
    assert_eq!(within(stream.read(&mut [0])).await.expect("a clean end"), 0);
}

/// Answers every request with these bytes, then echoes until the client's end, and says "bye".
async fn echo(answer: &'static str) -> (Server, mpsc::UnboundedReceiver<String>) {
    let (asked, heads) = mpsc::unbounded_channel();
    let server = Server::plain(move |mut socket| {
        let asked = asked.clone();
        async move {
            asked.send(head(&mut socket).await).expect("the test listens");
            echoing(&mut socket, answer).await;
        }
    })
    .await;
    (server, heads)
}

async fn echoing<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut S, answer: &str) {
    socket.write_all(answer.as_bytes()).await.expect("writes");
    let mut some = vec![0; 64 << 10];
    loop {
        match socket.read(&mut some).await {
            Ok(0) => break,
            Ok(bytes) if socket.write_all(&some[..bytes]).await.is_ok() => {}
            Ok(_) | Err(_) => return,
        }
    }
    drop(socket.write_all(b"bye").await);
    drop(socket.shutdown().await);
}

/// A tunnel to such a server.
async fn tunnel(proxy: &Proxy) -> TcpStream {
    let mut client = proxy.connect().await;
    client.write_all(WEBSOCKET.as_bytes()).await.expect("writes");
    assert_eq!(status(&head(&mut client).await), 101);
    client
}

#[tokio::test]
async fn an_exec_over_spdy_keeps_its_header_lines_and_both_halves() {
    let (server, mut heads) =
        echo("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\nearly")
            .await;
    let proxy = Proxy::before(server.address).start().await;
    let mut client = proxy.connect().await;
    let lines = "X-Stream-Protocol-Version: v5.channel.k8s.io\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\
                 X-Stream-Protocol-Version: v3.channel.k8s.io\r\nX-Stream-Protocol-Version: v2.channel.k8s.io\r\n\
                 X-Stream-Protocol-Version:\r\n";
    let asked = format!(
        "POST /api/v1/namespaces/d/pods/p/exec?command=sh HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\
         Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n{lines}\r\nhasty"
    );
    client.write_all(asked.as_bytes()).await.expect("writes");
    let answer = head(&mut client).await.to_ascii_lowercase();
    assert_eq!(status(&answer.to_ascii_uppercase()), 101);
    for line in ["connection: upgrade\r\n", "upgrade: spdy/3.1\r\n", "x-stream-protocol-version: v4.channel.k8s.io\r\n"]
    {
        assert!(answer.contains(line), "{answer}");
    }
    says(&mut client, "earlyhasty").await;
    client.write_all(b"more").await.expect("writes");
    says(&mut client, "more").await;
    client.shutdown().await.expect("half closes");
    says(&mut client, "bye").await;
    ends(&mut client).await;
    let head = within(heads.recv()).await.expect("it arrived");
    assert!(head.contains(lines) && head.to_ascii_lowercase().contains("upgrade: spdy/3.1\r\n"), "{head}");
    assert!(head.to_ascii_lowercase().contains("content-length: 0\r\n"), "{head}");
}

#[tokio::test]
async fn an_upstream_that_ends_its_half_still_reads_the_clients() {
    let (done, mut rest) = mpsc::unbounded_channel();
    let server = Server::plain(move |mut socket| {
        let done = done.clone();
        async move {
            head(&mut socket).await;
            socket.write_all(format!("{SWITCHED}all").as_bytes()).await.expect("writes");
            socket.shutdown().await.expect("half closes");
            let mut rest = String::new();
            socket.read_to_string(&mut rest).await.expect("reads");
            done.send(rest).expect("the test listens");
        }
    })
    .await;
    let proxy = Proxy::before(server.address).start().await;
    let mut client = tunnel(&proxy).await;
    says(&mut client, "all").await;
    ends(&mut client).await;
    client.write_all(b"the last words").await.expect("the gate still reads");
    client.shutdown().await.expect("ends");
    assert_eq!(within(rest.recv()).await.expect("it arrived"), "the last words");
}

#[tokio::test]
async fn the_upstream_is_asked_over_http1_though_it_would_speak_http2() {
    let spoke = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&spoke);
    let server = Server::tls(move |mut socket| {
        seen.lock().expect("no panic").push(socket.get_ref().1.alpn_protocol().map(<[u8]>::to_vec));
        async move {
            let asked = head(&mut socket).await;
            assert!(asked.contains("dGhlIHNhbXBsZSBub25jZQ=="), "{asked}");
            echoing(&mut socket, SWITCHED).await;
        }
    })
    .await;
    let roots = Roots::Only(Pem::new(server.ca.clone().expect("TLS").into(), "test CA"));
    let proxy = Proxy::before(server.address)
        .with(|options| {
            options.upstream.target.scheme = http::uri::Scheme::HTTPS;
            options.upstream.tls = Some(Arc::new(tls::Client::new(roots, None).expect("TLS")));
        })
        .start()
        .await;
    let mut client = proxy.connect().await;
    client.write_all(WEBSOCKET.as_bytes()).await.expect("writes");
    let answer = head(&mut client).await.to_ascii_lowercase();
    for line in ["sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=", "sec-websocket-protocol: v5.channel.k8s.io"] {
        assert!(answer.contains(line), "{answer}");
    }
    client.write_all(b"through TLS").await.expect("writes");
    says(&mut client, "through TLS").await;
    client.shutdown().await.expect("half closes");
    says(&mut client, "bye").await;
    assert_eq!(*spoke.lock().expect("no panic"), [Some(b"http/1.1".to_vec())]);
}

/// CVE-2018-1002105: bytes after a refused upgrade are the next request, and the gate judges it.
#[tokio::test]
async fn a_refused_upgrade_is_an_ordinary_answer_and_leaves_no_tunnel() {
    let body: &'static str = Box::leak("no".repeat(300_000).into_boxed_str());
    let refusal: &'static str = Box::leak(
        format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\nX-Why: rbac\r\n\r\n{body}", body.len())
            .into_boxed_str(),
    );
    let (ended, mut end) = mpsc::unbounded_channel();
    let (asked, mut heads) = mpsc::unbounded_channel();
    let server = Server::plain(move |mut socket| {
        let (ended, asked) = (ended.clone(), asked.clone());
        async move {
            let request = head(&mut socket).await;
            let upgrades = request.contains("/exec");
            asked.send(request).expect("the test listens");
            let answer = if upgrades { refusal } else { "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" };
            socket.write_all(answer.as_bytes()).await.expect("writes");
            let mut rest = Vec::new();
            socket.read_to_end(&mut rest).await.ok();
            if upgrades {
                ended.send(rest).expect("the test listens");
            }
        }
    })
    .await;
    let proxy = Proxy::before(server.address).start().await;
    let mut client = proxy.connect().await;
    let secret = "GET /api/v1/secrets HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    client.write_all(format!("{WEBSOCKET}{secret}").as_bytes()).await.expect("writes");
    let answer = head(&mut client).await;
    assert_eq!(status(&answer), 403);
    assert!(answer.to_ascii_lowercase().contains("x-why: rbac"), "{answer}");
    says(&mut client, body).await;
    assert_eq!(status(&head(&mut client).await), 200, "the next request has its own answer");
    says(&mut client, "ok").await;
    assert_eq!(within(end.recv()).await.expect("the connection was closed"), b"", "nothing went through");
    assert!(within(heads.recv()).await.expect("one").contains("/exec"));
    assert!(within(heads.recv()).await.expect("another").starts_with("GET /api/v1/secrets "));
    assert_eq!(proxy.metric("tidegate_calls_total", &["code=\"4xx\""]), 1.0);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn redirects_and_plain_answers_to_an_upgrade_pass_as_what_they_are() {
    for (answer, code) in [
        ("HTTP/1.1 302 Found\r\nLocation: https://evil.test/\r\nContent-Length: 0\r\n\r\n", 302),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200),
    ] {
        let (server, _heads) = echo(answer).await;
        let proxy = Proxy::before(server.address).start().await;
        let mut client = proxy.connect().await;
        client.write_all(WEBSOCKET.as_bytes()).await.expect("writes");
        let answer = head(&mut client).await;
        assert_eq!(status(&answer), code, "{answer}");
        assert_eq!(proxy.gate.upstream().occupancy(tidegate::api::Group::Upgrades).used, 0, "no tunnel");
    }
}

#[tokio::test]
async fn a_switch_that_was_not_asked_for_is_502() {
    let other = SWITCHED.replace("websocket", "SPDY/3.1");
    let none = SWITCHED.replace("Upgrade: websocket\r\n", "");
    for answer in [other, none] {
        let (server, _heads) = echo(Box::leak(answer.into_boxed_str())).await;
        let proxy = Proxy::before(server.address).start().await;
        let mut client = proxy.connect().await;
        client.write_all(WEBSOCKET.as_bytes()).await.expect("writes");
        assert_eq!(status(&head(&mut client).await), 502);
    }
    let (server, _heads) = echo(SWITCHED).await;
    let proxy = Proxy::before(server.address).start().await;
    let (code, answer) = proxy.get("/api/v1/pods").await;
    assert_eq!(code, 502, "nobody asked: {answer}");
}

#[tokio::test]
async fn protocols_that_are_no_tunnel_are_not_asked_for() {
    for upgrade in
        ["Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk", "Upgrade: websocket"]
    {
        let (upstream, request) = raw_backend(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        let proxy = Proxy::before(upstream).start().await;
        let answer = proxy
            .exchange(&format!("GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{upgrade}\r\n\r\n"))
            .await;
        assert_eq!(status(&answer), 200);
        let request = String::from_utf8(within(request).await.expect("no panic")).expect("text").to_lowercase();
        assert!(!request.contains("upgrade") && !request.contains("http2-settings"), "{request}");
    }
}

#[tokio::test]
async fn an_open_tunnel_holds_no_slot_and_spends_no_token() {
    let (server, _heads) = echo(SWITCHED).await;
    let proxy = Proxy::before(server.address).in_flight(1).bucket(0.000_001, 1).start().await;
    let (_one, mut other) = (tunnel(&proxy).await, tunnel(&proxy).await);
    assert_eq!(proxy.metric("tidegate_slots_used", &[]), 0.0);
    assert_eq!(proxy.metric("tidegate_bucket_tokens", &[]), 1.0);
    proxy.reaches("tidegate_in_flight", &[], 2.0).await;
    assert_eq!(proxy.metric("tidegate_upstream_connections", &["group=\"upgrades\""]), 2.0);
    other.shutdown().await.expect("half closes");
    says(&mut other, "bye").await;
    proxy.reaches("tidegate_in_flight", &[], 1.0).await;
    proxy.reaches("tidegate_upstream_connections", &["group=\"upgrades\""], 1.0).await;
}

fn metered(upstream: SocketAddr) -> ProxyBuilder {
    Proxy::before(upstream).policy(|policy| policy.classes[1].meter_long_running = true)
}

/// kubectl answers a refused WebSocket with a second request, over SPDY, so refusing makes things
/// worse.
#[tokio::test]
async fn where_upgrades_are_metered_they_wait_instead_of_being_refused() {
    let (server, _heads) = echo(SWITCHED).await;
    let proxy = metered(server.address).bucket(20.0, 1).start().await;
    let _first = tunnel(&proxy).await;
    let mut second = proxy.connect().await;
    second.write_all(WEBSOCKET.as_bytes()).await.expect("writes");
    let answer = head(&mut second).await;
    assert_eq!(status(&answer), 101);
    assert!(answer.to_ascii_lowercase().contains("server-timing: tidegate;dur="), "{answer}");
}

#[tokio::test]
async fn an_upgrade_whose_client_leaves_while_it_waits_is_never_sent() {
    let (server, mut heads) = echo(SWITCHED).await;
    let proxy = metered(server.address).bucket(0.000_001, 1).start().await;
    let _first = tunnel(&proxy).await;
    within(heads.recv()).await.expect("it arrived");
    let mut second = proxy.connect().await;
    second.write_all(WEBSOCKET.as_bytes()).await.expect("writes");
    proxy.reaches("tidegate_waiting", &[], 1.0).await;
    drop(second);
    proxy.reaches("tidegate_waiting", &[], 0.0).await;
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn an_upgrade_whose_client_leaves_before_the_answer_ends_upstream() {
    let (ended, mut end) = mpsc::unbounded_channel();
    let server = Server::plain(move |mut socket| {
        let ended = ended.clone();
        async move {
            head(&mut socket).await;
            ended.send(false).expect("the test listens");
            ended.send(socket.read(&mut [0]).await.unwrap_or(0) == 0).expect("the test listens");
        }
    })
    .await;
    let proxy = Proxy::before(server.address).start().await;
    let mut client = proxy.connect().await;
    client.write_all(WEBSOCKET.as_bytes()).await.expect("writes");
    assert_eq!(within(end.recv()).await, Some(false), "it was sent");
    drop(client);
    assert_eq!(within(end.recv()).await, Some(true), "and given up");
}

#[tokio::test]
async fn a_side_that_leaves_takes_the_other_along() {
    let (server, _heads) = echo(SWITCHED).await;
    let proxy = Proxy::before(server.address).start().await;
    drop(tunnel(&proxy).await);
    proxy.reaches("tidegate_upstream_connections", &["group=\"upgrades\""], 0.0).await;

    let server = Server::plain(|mut socket| async move {
        head(&mut socket).await;
        socket.write_all(SWITCHED.as_bytes()).await.expect("writes");
    })
    .await;
    let proxy = Proxy::before(server.address).start().await;
    ends(&mut tunnel(&proxy).await).await;
}

#[tokio::test]
async fn nobody_there_is_502_and_says_who() {
    let upstream = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let proxy = Proxy::before(upstream).start().await;
    let mut client = proxy.connect().await;
    client
        .write_all(WEBSOCKET.replace("Connection: Upgrade", "Connection: Upgrade, close").as_bytes())
        .await
        .expect("writes");
    let mut answer = String::new();
    within(client.read_to_string(&mut answer)).await.expect("text");
    assert_eq!(status(&answer), 502);
    assert!(answer.contains(&format!("cannot connect to {upstream}: connection refused")), "{answer}");
}

#[tokio::test]
async fn tunnels_go_on_through_the_drain_and_end_with_it() {
    let (server, _heads) = echo(SWITCHED).await;
    let proxy = Proxy::before(server.address).start().await;
    let mut client = tunnel(&proxy).await;
    proxy.stop.cancel();
    client.write_all(b"still here").await.expect("writes");
    says(&mut client, "still here").await;
    let mut late = tunnel(&proxy).await;
    late.write_all(b"and so am I").await.expect("writes");
    says(&mut late, "and so am I").await;
    drop((client, late));
    within(proxy.gate.finished()).await;

    let proxy = Proxy::before(server.address).with(|options| options.drain = Duration::from_millis(20)).start().await;
    let mut client = tunnel(&proxy).await;
    proxy.stop.cancel();
    within(proxy.gate.finished()).await;
    within(client.read_to_end(&mut Vec::new())).await.ok();
}

/// No Kubernetes client asks for it, and kube-apiserver does not offer it.
#[tokio::test]
async fn extended_connect_is_not_offered_over_http2() {
    let backend = Backend::replying(200).await;
    let proxy = Proxy::before(backend.address).start().await;
    let stream = hyper_util::rt::TokioIo::new(proxy.connect().await);
    let (mut client, connection) = hyper::client::conn::http2::handshake::<_, _, http_body_util::Empty<bytes::Bytes>>(
        hyper_util::rt::TokioExecutor::new(),
        stream,
    )
    .await
    .expect("speaks h2");
    tokio::spawn(connection);
    let ask = http::Request::get("http://localhost/x").body(http_body_util::Empty::new()).expect("valid");
    assert_eq!(within(client.send_request(ask)).await.expect("answered").status(), 200, "settings have come");
    let ask = http::Request::connect("http://localhost/api/v1/namespaces/d/pods/p/exec")
        .extension(hyper::ext::Protocol::from_static("websocket"))
        .body(http_body_util::Empty::new())
        .expect("valid");
    let answer = within(client.send_request(ask)).await;
    assert!(answer.as_ref().is_err() || answer.is_ok_and(|answer| answer.status() == 405));
    assert_eq!(backend.targets(), ["/x"]);
}
