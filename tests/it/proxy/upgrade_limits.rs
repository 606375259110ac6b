//! A call that offers an upgrade is limited as what it is, until the upstream answers 101.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tidegate::api::{Group, Scope};
use tidegate::classify::ApiKind;
use tidegate::clock::Clock;
use tidegate::limit::policy::Strategy;
use tidegate::telemetry::CallLog;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::pool::support::Server;
use crate::support::{Backend, Proxy, ProxyBuilder, header, reply, rules, status, within};

/// The two offers that the gate forwards.
const OFFERS: [&str; 2] =
    ["Connection: Upgrade\r\nUpgrade: websocket\r\n", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"];
const OBJECT: &str = "/api/v1/namespaces/d/configmaps/c";

/// Sends a call that offers an upgrade, and returns its answer up to the end of its head.
async fn offer(proxy: &Proxy, line: &str, offer: &str) -> String {
    let mut stream = proxy.connect().await;
    let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{offer}\r\n");
    stream.write_all(request.as_bytes()).await.expect("writes");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(stream.read_u8()).await.expect("a head"));
    }
    String::from_utf8(head).expect("text")
}

/// A gate that refuses at once, for a kube-apiserver.
fn kubernetes(backend: &Backend) -> ProxyBuilder {
    Proxy::before(backend.address).max_wait(Duration::ZERO)
}

/// The same for an external API.
fn external(backend: &Backend) -> ProxyBuilder {
    Proxy::before(backend.address).max_wait(Duration::ZERO).with(|options| {
        options.gate.kind = ApiKind::Http;
        options.gate.rules = Arc::new(rules(ApiKind::Http));
        options.gate.answers.throttling.kubernetes = false;
    })
}

#[tokio::test]
async fn an_offered_upgrade_passes_no_bucket() {
    for upgrade in OFFERS {
        for (builder, path) in [(kubernetes as fn(&Backend) -> ProxyBuilder, OBJECT), (external, "/repos/a")] {
            let backend = Backend::replying(200).await;
            let proxy = builder(&backend).bucket(0.000_001, 3).start().await;
            let mut statuses = Vec::new();
            for _ in 0..20 {
                statuses.push(status(&offer(&proxy, &format!("PUT {path}"), upgrade).await));
            }
            assert_eq!(statuses, [[200; 3].as_slice(), &[429; 17]].concat(), "{path} {upgrade}");
            assert_eq!(backend.seen().len(), 3, "{path}");
            assert!(backend.seen()[0].headers.contains_key("upgrade"), "the offer itself is forwarded");
        }
    }
}

#[tokio::test]
async fn an_offered_upgrade_passes_no_failing_key() {
    for (builder, path) in [(kubernetes as fn(&Backend) -> ProxyBuilder, OBJECT), (external, "/repos/a")] {
        let backend = Backend::replying(500).await;
        let long = Duration::from_secs(60);
        let slow = builder(&backend).policy(|policy| {
            policy.classes[1].backoff.strategy = Strategy::Exponential { base: long, max: long, jitter: 0.0 };
        });
        let proxy = slow.start().await;
        let line = format!("PUT {path}");
        assert_eq!(status(&offer(&proxy, &line, OFFERS[0]).await), 500);
        let answer = offer(&proxy, &line, OFFERS[0]).await;
        assert_eq!((status(&answer), header(&answer, "tidegate-refusal")), (429, Some("backoff")));
        assert_eq!(backend.seen().len(), 1);
    }
}

#[tokio::test]
async fn an_offered_upgrade_passes_no_pause() {
    let backend = Backend::start(|_| async {
        let mut answer = reply(429, "slow down");
        answer.headers_mut().insert("retry-after", HeaderValue::from_static("30"));
        answer
    });
    let backend = backend.await;
    let proxy = external(&backend).with(|options| options.gate.answers.throttling.scope = Scope::Gate);
    let proxy = proxy.start().await;
    for call in 0..20 {
        let answer = offer(&proxy, &format!("GET /repos/{call}"), OFFERS[0]).await;
        assert_eq!(status(&answer), 429);
        let refusal = if call == 0 { None } else { Some("pause") };
        assert_eq!(header(&answer, "tidegate-refusal"), refusal, "{call}");
    }
    assert_eq!(backend.seen().len(), 1);
}

#[tokio::test]
async fn an_offered_upgrade_is_bound_by_the_response_timeout() {
    let (backend, _answers) = Backend::holding().await;
    let timeout = Some(Duration::from_millis(50));
    let proxy = external(&backend).with(|options| options.upstream.response_timeout = timeout).start().await;
    assert_eq!(status(&offer(&proxy, "GET /slow", OFFERS[0]).await), 504);
}

/// A server that switches once it is told to, and then keeps the tunnel open.
async fn switching() -> (Server, mpsc::UnboundedReceiver<()>, mpsc::UnboundedSender<()>) {
    let (asked, heads) = mpsc::unbounded_channel();
    let (go, turns) = mpsc::unbounded_channel();
    let turns = Arc::new(tokio::sync::Mutex::new(turns));
    let server = Server::plain(move |mut socket| {
        let (asked, turns) = (asked.clone(), Arc::clone(&turns));
        async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(socket.read_u8().await.expect("a head"));
            }
            if !head.starts_with(b"GET /socket ") {
                let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                return socket.write_all(answer).await.expect("writes");
            }
            asked.send(()).expect("the test listens");
            let () = turns.lock().await.recv().await.expect("the test says when");
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            socket.write_all(answer).await.expect("writes");
            socket.read_to_end(&mut Vec::new()).await.ok();
        }
    });
    (server.await, heads, go)
}

#[tokio::test]
async fn the_slot_of_an_upgrade_comes_back_at_the_101() {
    let (server, mut asked, go) = switching().await;
    let proxy =
        Proxy::before(server.address).in_flight(1).bucket(0.000_001, 3).max_wait(Duration::ZERO).with(|options| {
            options.gate.kind = ApiKind::Http;
            options.gate.rules = Arc::new(rules(ApiKind::Http));
        });
    let proxy = proxy.start().await;
    let mut client = proxy.connect().await;
    let ask = format!("GET /socket HTTP/1.1\r\nHost: localhost\r\n{}\r\n", OFFERS[0]);
    client.write_all(ask.as_bytes()).await.expect("writes");
    within(asked.recv()).await.expect("it arrived");
    let (_, answer) = proxy.get("/other").await;
    assert_eq!(header(&answer, "tidegate-refusal"), Some("slot"), "{answer}");
    go.send(()).expect("the server listens");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(client.read_u8()).await.expect("a head"));
    }
    assert_eq!(status(&String::from_utf8(head).expect("text")), 101);
    assert_eq!(proxy.metric("tidegate_slots_used", &[]), 0.0);
    assert_eq!(proxy.get("/other").await.0, 200, "the tunnel is open, and holds no slot");
    let tokens = proxy.metric("tidegate_bucket_tokens", &[]);
    assert!((1.0..1.1).contains(&tokens), "two of three are gone: {tokens}");
    assert_eq!(proxy.gate.upstream().occupancy(Group::Upgrades).used, 1);
}

#[tokio::test]
async fn a_tunnel_is_in_the_log_when_it_opens() {
    let (server, mut asked, go) = switching().await;
    let file = tempfile::NamedTempFile::new().expect("a file");
    let log = CallLog::open(Some(file.path()), None, Clock::start()).expect("opens");
    let proxy = Proxy::before(server.address).with(|options| {
        options.gate.rules = Arc::new(rules(ApiKind::Http));
        options.call_log = Some(log.clone());
    });
    let proxy = proxy.start().await;
    go.send(()).expect("the server listens");
    let mut client = proxy.connect().await;
    let ask = format!("GET /socket HTTP/1.1\r\nHost: localhost\r\n{}\r\n", OFFERS[0]);
    client.write_all(ask.as_bytes()).await.expect("writes");
    within(asked.recv()).await.expect("it arrived");
    within(client.read_u8()).await.expect("the 101");
    log.flushed().await;
    let lines = std::fs::read_to_string(file.path()).expect("readable");
    assert!(lines.contains("\"status\":101"), "{lines}");
    assert_eq!(proxy.gate.upstream().occupancy(Group::Upgrades).used, 1, "and it is still open");
    drop(client);
}
