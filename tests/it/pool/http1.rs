//! Calls over HTTP/1.1: one connection each, reused where that is allowed, with the client's
//! framing.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::BodyExt;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate::api::Group;
use tidegate::upstream::{Occupancy, OutgoingBody, Protocol, SendError, UpgradeAnswer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Barrier, Notify};
use tokio::task::JoinSet;

use crate::pool::support::{Caller, Server, admitted, get, put, soon, text, until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns the next request, head and body as they came over the wire; `None` when the client has
/// closed.
async fn request(socket: &mut TcpStream) -> Option<String> {
    let mut got = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&got).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let declared = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().expect("a number"))
            });
            let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
            let whole = if chunked {
                body.ends_with("\r\n\r\n") || body == "0\r\n\r\n"
            } else {
                body.len() >= declared.unwrap_or(0)
            };
            if whole {
                return Some(text);
            }
        }
        if socket.read_buf(&mut got).await.ok()? == 0 {
            return None;
        }
    }
}

async fn reply(socket: &mut TcpStream, text: &str) {
    drop(socket.write_all(text.as_bytes()).await);
}

/// Answers every request with the same bytes; with `close` it closes after each.
async fn replying(text: impl Into<String>, close: bool) -> Server {
    let text: Arc<str> = text.into().into();
    Server::plain(move |mut socket| {
        let text = Arc::clone(&text);
        async move {
            while request(&mut socket).await.is_some() {
                reply(&mut socket, &text).await;
                if close {
                    return;
                }
            }
        }
    })
    .await
}

/// Answers, and keeps the requests.
async fn recording() -> (Server, Arc<Mutex<Vec<String>>>) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let record = Arc::clone(&asked);
    let server = Server::plain(move |mut socket| {
        let record = Arc::clone(&record);
        async move {
            while let Some(got) = request(&mut socket).await {
                record.lock().expect("not poisoned").push(got);
                reply(&mut socket, OK).await;
            }
        }
    })
    .await;
    (server, asked)
}

#[tokio::test]
async fn a_connection_serves_one_call_after_another() {
    let server = replying(OK, false).await;
    let caller = Caller::to(&server);
    for _ in 0..20 {
        assert_eq!(text(caller.get(Group::Short, "/").await.expect("an answer")).await, "ok");
    }
    assert_eq!(server.connections(), 1);
    until(|| caller.ledger.room(Group::Short) == 1).await;
}

/// The server answers and closes, so that many a request is handed to a connection in the moment in
/// which another thread finds its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_is_lost_that_meets_the_end_of_its_connection_on_another_thread() {
    let server = replying(OK, true).await;
    let caller = Caller::to(&server);
    let mut calls = JoinSet::new();
    for _ in 0..32 {
        let caller = caller.clone();
        calls.spawn(async move {
            for _ in 0..50 {
                // A GET goes again, but no more often than MAX_REPLAYS.
                if let Ok(response) = caller.get(Group::Short, "/").await {
                    assert_eq!(text(response).await, "ok");
                }
            }
        });
    }
    soon(async {
        while let Some(ended) = calls.join_next().await {
            ended.expect("every answer is whole");
        }
    })
    .await;
}

#[tokio::test]
async fn calls_at_once_have_a_connection_each() {
    let together = Arc::new(Barrier::new(40));
    let server = Server::plain(move |mut socket| {
        let together = Arc::clone(&together);
        async move {
            while request(&mut socket).await.is_some() {
                together.wait().await;
                reply(&mut socket, OK).await;
            }
        }
    })
    .await;
    let caller = Caller::to(&server);
    let calls = (0..40).map(|_| async { text(caller.get(Group::Short, "/").await.expect("an answer")).await });
    assert_eq!(join_all(calls).await, vec!["ok"; 40]);
    let connections = server.connections();
    assert!((40..=56).contains(&connections), "{connections}");
    until(|| usize::try_from(caller.ledger.room(Group::Short)) == Ok(connections)).await;
}

#[tokio::test]
async fn groups_do_not_share_connections() {
    let server = replying(OK, false).await;
    let caller = Caller::to(&server);
    for group in [Group::Exempt, Group::Short, Group::LongRunning] {
        assert_eq!(text(caller.get(group, "/").await.expect("an answer")).await, "ok");
    }
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_connection_closed_while_idle_costs_nobody_an_error() {
    let server = replying(OK, true).await;
    let caller = Caller::to(&server);
    for n in 0..20 {
        assert_eq!(text(caller.send(Group::Short, put("/", "spec")).await.expect("an answer")).await, "ok", "call {n}");
        until(|| caller.ledger.room(Group::Short) == 0).await;
    }
}

/// Answers the first request of each connection, and does `mischief` to the second.
async fn second_unlucky(mischief: &'static str) -> Server {
    Server::plain(move |mut socket| async move {
        if request(&mut socket).await.is_some() {
            reply(&mut socket, OK).await;
            request(&mut socket).await;
            reply(&mut socket, mischief).await;
        }
    })
    .await
}

#[tokio::test]
async fn a_get_that_met_a_closing_connection_is_sent_again_and_a_put_is_not() {
    let server = second_unlucky("").await;
    let caller = Caller::to(&server);
    assert_eq!(text(caller.get(Group::Short, "/1").await.expect("an answer")).await, "ok");
    assert_eq!(text(caller.get(Group::Short, "/2").await.expect("sent again")).await, "ok");
    let lost = caller.send(Group::Short, put("/3", "spec")).await.expect_err("the server may have acted on it");
    assert!(matches!(lost, SendError::Lost { .. }), "{lost:?}");
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn an_answer_that_had_begun_is_never_asked_for_again() {
    let server = second_unlucky("HTTP/1.1 2").await;
    let caller = Caller::to(&server);
    assert_eq!(text(caller.get(Group::Short, "/1").await.expect("an answer")).await, "ok");
    let lost = caller.get(Group::Short, "/2").await.expect_err("it was cut");
    assert!(matches!(lost, SendError::Lost { .. }), "{lost:?}");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_fresh_connection_that_closes_has_lost_the_call() {
    let server = Server::plain(|mut socket| async move { drop(request(&mut socket).await) }).await;
    let caller = Caller::to(&server);
    let lost = caller.get(Group::Short, "/").await.expect_err("no answer");
    assert!(matches!(lost, SendError::Lost { .. }), "{lost:?}");
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_connection_that_announces_its_close_takes_no_second_call() {
    let goodbye =
        "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 2\r\n\r\nok";
    let server = replying(goodbye, false).await;
    let caller = Caller::to(&server);
    for n in 1..=3 {
        let response = caller.get(Group::Short, "/").await.expect("an answer");
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (429, &HeaderValue::from_static("5"))
        );
        assert!(!response.headers().contains_key("connection"));
        assert_eq!(text(response).await, "ok");
        assert_eq!(server.connections(), n);
    }
}

#[tokio::test]
async fn a_response_cut_short_is_an_error() {
    for cut in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\nhalf",
    ] {
        let server = replying(cut, true).await;
        let caller = Caller::to(&server);
        let response = caller.get(Group::Short, "/").await.expect("a head");
        assert!(soon(response.into_body().collect()).await.is_err(), "{cut}");
        until(|| caller.ledger.room(Group::Short) == 0).await;
    }
}

#[tokio::test]
async fn an_answer_that_could_be_read_two_ways_is_not_handed_on() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nok",
    ] {
        let server = replying(answer, false).await;
        let caller = Caller::to(&server);
        let lost = caller.get(Group::Short, "/").await.expect_err(answer);
        assert!(matches!(lost, SendError::Lost { .. }), "{lost:?}");
        until(|| caller.upstream.occupancy(Group::Short) == Occupancy::default()).await;
    }
}

#[tokio::test]
async fn bytes_that_nobody_asked_for_are_nobodys_answer() {
    let answers = Arc::new(AtomicUsize::new(0));
    let server = Server::plain(move |mut socket| {
        let nth = answers.fetch_add(1, SeqCst);
        async move {
            while request(&mut socket).await.is_some() {
                let stray = if nth == 0 { "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray" } else { "" };
                reply(&mut socket, &format!("{OK}{stray}")).await;
            }
        }
    })
    .await;
    let caller = Caller::to(&server);
    for _ in 0..3 {
        assert_eq!(text(caller.get(Group::Short, "/").await.expect("an answer")).await, "ok");
        until(|| caller.upstream.occupancy(Group::Short).used == 0).await;
    }
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn idle_connections_go_before_the_server_closes_them() {
    let server = replying(OK, false).await;
    let caller = Caller::to(&server);
    assert_eq!(text(caller.get(Group::Short, "/").await.expect("an answer")).await, "ok");
    until(|| caller.upstream.occupancy(Group::Short).free == 1).await;
    tokio::time::pause();
    for _ in 0..16 {
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    tokio::time::resume();
    until(|| caller.upstream.occupancy(Group::Short) == Occupancy::default()).await;
    assert_eq!(caller.ledger.room(Group::Short), 0);
}

#[tokio::test]
async fn a_call_given_up_closes_its_connection() {
    let (closed, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, asked) = (Arc::clone(&closed), Arc::clone(&seen));
    let server = Server::plain(move |mut socket| {
        let (count, asked) = (Arc::clone(&count), Arc::clone(&asked));
        async move {
            let body = request(&mut socket).await.is_some_and(|got| got.starts_with("GET /body"));
            asked.fetch_add(1, SeqCst);
            if body {
                reply(&mut socket, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent\r\n").await;
            }
            request(&mut socket).await;
            count.fetch_add(1, SeqCst);
        }
    })
    .await;
    let caller = Caller::to(&server);
    drop(caller.get(Group::Short, "/body").await.expect("a head"));
    until(|| closed.load(SeqCst) == 1).await;
    let lease = soon(caller.lease(Group::Short)).await.expect("a connection");
    let call = tokio::spawn({
        let caller = caller.clone();
        async move { caller.upstream.send(lease, admitted(get("/silent"))).await.map(drop) }
    });
    until(|| seen.load(SeqCst) == 2).await;
    call.abort();
    until(|| closed.load(SeqCst) == 2).await;
    until(|| caller.ledger.room(Group::Short) == 0).await;
}

#[tokio::test]
async fn the_response_timeout_ends_short_calls_only() {
    let answer = Arc::new(Notify::new());
    let go = Arc::clone(&answer);
    let server = Server::plain(move |mut socket| {
        let go = Arc::clone(&go);
        async move {
            request(&mut socket).await;
            go.notified().await;
            reply(&mut socket, OK).await;
        }
    })
    .await;
    let caller = Caller::with(&server, |options| options.response_timeout = Some(Duration::from_millis(20)));
    let long = tokio::spawn({
        let caller = caller.clone();
        async move { caller.get(Group::LongRunning, "/watch").await.map(drop) }
    });
    until(|| server.connections() == 1).await;
    let late = caller.get(Group::Short, "/").await.expect_err("no answer in time");
    assert!(matches!(late, SendError::Timeout { .. }), "{late:?}");
    answer.notify_waiters();
    answer.notify_one();
    assert!(soon(long).await.expect("no panic").is_ok());
}

// === bytes on the wire ===

/// A request's lines, header names as sent, without the Host.
fn lines(asked: &str) -> Vec<String> {
    let (head, body) = asked.split_once("\r\n\r\n").expect("a whole request");
    let head = head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("host:")).map(str::to_owned);
    head.chain([body.to_owned()]).collect()
}

#[tokio::test]
async fn the_kind_of_framing_stays_the_clients() {
    let (server, asked) = recording().await;
    let caller = Caller::to(&server);
    let chunk = || vec![Bytes::from_static(b"spec")];
    let mut sums = HeaderMap::new();
    sums.insert("x-sum", HeaderValue::from_static("1"));
    let requests = [
        get("/none"),
        Request::post("/zero").header("content-length", "0").body(OutgoingBody::default()).expect("valid"),
        Request::post("/nothing").body(OutgoingBody::default()).expect("valid"),
        put("/declared", "spec"),
        Request::post("/chunked").body(OutgoingBody::new(chunk(), None, None)).expect("valid"),
        Request::post("/empty-chunked").body(OutgoingBody::new(vec![], None, None)).expect("valid"),
        Request::post("/trailers")
            .header("trailer", "x-sum")
            .body(OutgoingBody::new(chunk(), None, Some(sums)))
            .expect("valid"),
        Request::get("/odd").body(OutgoingBody::new(chunk(), None, None)).expect("valid"),
    ];
    for request in requests {
        assert_eq!(text(caller.send(Group::Short, request).await.expect("an answer")).await, "ok");
    }
    let asked: Vec<_> = asked.lock().expect("not poisoned").iter().map(|asked| lines(asked)).collect();
    let chunked = "transfer-encoding: chunked";
    let expected: [&[&str]; 8] = [
        &["GET /none HTTP/1.1", ""],
        &["POST /zero HTTP/1.1", "content-length: 0", ""],
        &["POST /nothing HTTP/1.1", ""],
        &["PUT /declared HTTP/1.1", "content-length: 4", "spec"],
        &["POST /chunked HTTP/1.1", chunked, "4\r\nspec\r\n0\r\n\r\n"],
        &["POST /empty-chunked HTTP/1.1", chunked, "0\r\n\r\n"],
        &["POST /trailers HTTP/1.1", "trailer: x-sum", chunked, "4\r\nspec\r\n0\r\nx-sum: 1\r\n\r\n"],
        &["GET /odd HTTP/1.1", chunked, "4\r\nspec\r\n0\r\n\r\n"],
    ];
    assert_eq!(asked, expected);
}

/// A front that forwards requests as the proxy does: the client's bytes are the body.
pub(crate) async fn front(caller: Caller) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let caller = caller.clone();
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let caller = caller.clone();
                async move {
                    let request = request.map(|body| OutgoingBody::new(vec![], Some(body.into()), None));
                    Ok::<_, Infallible>(caller.send(Group::Short, request).await.expect("an answer"))
                }
            });
            let serving = hyper::server::conn::http1::Builder::new()
                .preserve_header_case(true)
                .serve_connection(TokioIo::new(socket), service);
            tokio::spawn(async move { drop(serving.await) });
        }
    });
    (address, tasks)
}

#[tokio::test]
async fn what_the_client_sends_arrives_as_it_was_sent() {
    let (server, asked) = recording().await;
    let (address, _tasks) = front(Caller::to(&server)).await;
    let mut client = TcpStream::connect(address).await.expect("the front listens");
    for sent in [
        "PUT /Apis//x/../%2F;y?a=%3A&&b HTTP/1.1\r\nHost: gate\r\nX-CaSe: Kept  inside\r\nX-Twice: 1\r\nX-Twice: 2\r\ncontent-length: 3\r\n\r\nabc",
        "POST /c HTTP/1.1\r\nHost: gate\r\ntransfer-encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n",
        "POST /e HTTP/1.1\r\nHost: gate\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        client.write_all(sent.as_bytes()).await.expect("the front reads");
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok") {
            assert_ne!(soon(client.read_buf(&mut answer)).await.expect("the front answers"), 0);
        }
        let got = asked.lock().expect("not poisoned").pop().expect("a request");
        let (mut got, mut sent) = (lines(&got), lines(sent));
        for lines in [&mut got, &mut sent] {
            lines[1..].sort(); // the order between different names is not kept, that of equal names is
            for line in lines.iter_mut() {
                *line = line.replace("X-Sum: 1", "x-sum: 1");
            }
        }
        assert_eq!(got, sent);
    }
}

#[tokio::test]
async fn an_answer_to_an_unfinished_body_comes_back() {
    let server = Server::plain(|mut socket| async move {
        let mut head = Vec::new();
        while !head.windows(4).any(|window| window == b"\r\n\r\n") {
            socket.read_buf(&mut head).await.expect("a head");
        }
        reply(&mut socket, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlong").await;
        // reads no more, as a server that has had enough; it closes when the client has
        std::future::pending::<()>().await;
    })
    .await;
    let caller = Caller::to(&server);
    let body = OutgoingBody::new(vec![Bytes::from(vec![0_u8; 1 << 20]); 16], None, None);
    let request = Request::put("/").header("content-length", 16 << 20).body(body).expect("valid");
    let response = caller.send(Group::Short, request).await.expect("an answer");
    assert_eq!(response.status(), 413);
    assert_eq!(text(response).await, "long");
}

#[tokio::test]
async fn what_is_kept_of_a_body_is_its_beginning() {
    let (server, _) = recording().await;
    let caller = Caller::to(&server);
    for (size, whole) in [(10_usize, true), (64 << 10, true), ((64 << 10) + 1, false)] {
        let body = OutgoingBody::new(vec![Bytes::from(vec![b'x'; size])], None, None);
        let kept = body.kept();
        let request = Request::put("/").header("content-length", size).body(body).expect("valid");
        assert_eq!(text(caller.send(Group::Short, request).await.expect("an answer")).await, "ok");
        let bytes: usize = kept.bytes().iter().map(Bytes::len).sum();
        assert_eq!((bytes, kept.is_whole()), (size.min(64 << 10), whole));
    }
}

#[tokio::test]
async fn a_client_that_breaks_off_is_told_from_an_upstream_that_does() {
    let server = Server::plain(|mut socket| async move {
        request(&mut socket).await;
        std::future::pending::<()>().await;
    })
    .await;
    let caller = Caller::to(&server);
    let outcome: Arc<Mutex<Option<SendError>>> = Arc::default();
    let (told, sender) = (Arc::clone(&outcome), caller.clone());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let _front = JoinSet::from_iter([async move {
        let (socket, _) = listener.accept().await.expect("a client");
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let (told, caller) = (Arc::clone(&told), sender.clone());
            async move {
                let request = request.map(|body| OutgoingBody::new(vec![], Some(body.into()), None));
                // as when the call outlives its client for a moment
                let call = tokio::spawn(async move { caller.send(Group::Short, request).await.map(drop) });
                *told.lock().expect("not poisoned") = call.await.expect("no panic").err();
                Ok::<_, Infallible>(http::Response::new(String::new()))
            }
        });
        drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await);
    }]);
    let mut client = TcpStream::connect(address).await.expect("the front listens");
    client.write_all(b"PUT / HTTP/1.1\r\nHost: gate\r\nContent-Length: 10\r\n\r\nhalf").await.expect("the front reads");
    until(|| caller.upstream.occupancy(Group::Short).used == 1).await;
    client.shutdown().await.expect("open");
    until(|| outcome.lock().expect("not poisoned").is_some()).await;
    let error = outcome.lock().expect("not poisoned").take().expect("an error");
    assert!(matches!(error, SendError::Client { .. }), "{error:?}");
    until(|| caller.upstream.occupancy(Group::Short) == Occupancy::default()).await;
}

#[tokio::test]
async fn long_heads_and_many_lines_come_back() {
    let many: String = (0..300).map(|n| format!("X-Line-{n}: {n}\r\n")).collect();
    let long = "x".repeat(500 << 10);
    let server =
        replying(format!("HTTP/1.1 200 OK\r\n{many}X-Long: {long}\r\nContent-Length: 2\r\n\r\nok"), false).await;
    let caller = Caller::to(&server);
    let response = caller.get(Group::Short, "/").await.expect("an answer");
    assert_eq!(response.headers().len(), 302);
    assert_eq!(response.headers()["x-long"].len(), 500 << 10);
}

#[tokio::test]
async fn an_upgrade_has_a_connection_of_its_own() {
    let server = Server::plain(|mut socket| async move {
        let asked = request(&mut socket).await.expect("a request").to_ascii_lowercase();
        assert!(asked.contains("upgrade: websocket\r\n") && asked.contains("connection: upgrade\r\n"), "{asked}");
        reply(
            &mut socket,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly",
        )
        .await;
        let mut echo = [0; 4];
        socket.read_exact(&mut echo).await.expect("bytes");
        socket.write_all(&echo).await.expect("bytes");
    })
    .await;
    let caller = Caller::to(&server);
    let asked = Request::get("/exec")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .body(OutgoingBody::default())
        .expect("valid");
    let connection = soon(caller.upstream.dedicate()).await.expect("the server listens");
    let answer = soon(caller.upstream.upgrade(connection, Protocol::WebSocket, true, admitted(asked))).await;
    let Ok(UpgradeAnswer::Switched(response, bytes)) = answer else { panic!("{answer:?}") };
    assert_eq!(
        (response.status().as_u16(), &response.headers()["upgrade"]),
        (101, &"websocket".parse().expect("valid"))
    );
    let mut tunnel = TokioIo::new(soon(bytes).await.expect("a tunnel"));
    assert_eq!(caller.upstream.occupancy(Group::Upgrades).used, 1);
    let mut got = [0; 5];
    soon(tunnel.read_exact(&mut got)).await.expect("early bytes");
    assert_eq!(&got, b"early");
    tunnel.write_all(b"ping").await.expect("the far side reads");
    soon(tunnel.read_exact(&mut got[..4])).await.expect("the echo");
    assert_eq!(&got[..4], b"ping");
    drop(tunnel);
    until(|| caller.upstream.occupancy(Group::Upgrades).used == 0).await;
}
