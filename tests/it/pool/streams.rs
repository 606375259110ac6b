//! Many calls over HTTP/2: streams are counted, stalled readers delay no other call, and a request
//! that was not processed is sent again.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use http::{Method, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tidegate::api::Group;
use tidegate::upstream::SendError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;

use crate::pool::http1::front;
use crate::pool::support::{Answer, Caller, Server, admitted, answer, get, put, soon, text, until};

/// A response that begins and never ends; it counts as living until it is dropped.
fn watch(living: Arc<AtomicUsize>) -> Answer {
    struct Living(Arc<AtomicUsize>);
    impl Drop for Living {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    living.fetch_add(1, SeqCst);
    let events = stream::unfold((0, Living(living)), |(n, living)| async move {
        if n > 0 {
            std::future::pending::<()>().await;
        }
        Some((Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"event\n"))), (n + 1, living)))
    });
    Response::new(BodyExt::boxed_unsync(StreamBody::new(events)))
}

#[tokio::test]
async fn watches_beyond_one_connection_hold_up_nobody() {
    let living = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&living);
    let server = Server::http2(100, move |request, _| {
        let count = Arc::clone(&count);
        async move { if request.uri().path() == "/watch" { watch(count) } else { answer("ok") } }.boxed()
    })
    .await;
    let caller = Caller::to(&server);
    let mut watches = Vec::new();
    // all in one group, so that the get must find a stream beside them
    for _ in 0..250 {
        watches.push(caller.get(Group::Short, "/watch").await.expect("a watch"));
    }
    assert_eq!(text(caller.get(Group::Short, "/").await.expect("an answer")).await, "ok");
    assert_eq!(server.connections(), 3);
    let lease = soon(caller.upstream.checkout_exempt(Group::Exempt)).await.expect("a stream");
    let renewed = soon(caller.upstream.send(lease, admitted(get("/lease")))).await.expect("an answer");
    assert_eq!(text(renewed).await, "ok");
    assert_eq!(living.load(SeqCst), 250, "no watch was interrupted");

    drop(watches);
    until(|| living.load(SeqCst) == 0).await;
    until(|| caller.ledger.room(Group::Short) == 300).await;
}

#[tokio::test]
async fn an_exempt_call_needs_no_grant_and_takes_its_room() {
    let server = Server::http2(10, |_, _| async { answer("ok") }.boxed()).await;
    let caller = Caller::to(&server);
    let lease = soon(caller.upstream.checkout_exempt(Group::Exempt)).await.expect("a stream");
    assert_eq!(caller.ledger.room(Group::Exempt), 9);
    let second = soon(caller.upstream.checkout_exempt(Group::Exempt)).await.expect("a stream");
    assert_eq!(caller.ledger.room(Group::Exempt), 8);
    drop((lease, second));
    until(|| caller.ledger.room(Group::Exempt) == 10).await;
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_herd_of_exempt_calls_is_served_by_whichever_dial_is_first() {
    let server = Server::http2(100, |_, _| async { answer("ok") }.boxed()).await;
    let caller = Caller::to(&server);
    let mut herd = JoinSet::new();
    for _ in 0..50 {
        let caller = caller.clone();
        herd.spawn(async move {
            let lease = soon(caller.upstream.checkout_exempt(Group::Exempt)).await.expect("a stream");
            text(soon(caller.upstream.send(lease, admitted(get("/")))).await.expect("an answer")).await
        });
    }
    assert_eq!(herd.join_all().await, vec!["ok"; 50]);
    until(|| caller.ledger.room(Group::Exempt) % 100 == 0).await;
}

#[tokio::test]
async fn stalled_readers_hold_up_nobody() {
    let server = Server::http2(100, |request, _| {
        async move {
            if request.uri().path() == "/large" { answer(vec![0_u8; 16 << 20]) } else { answer(vec![1_u8; 100 << 10]) }
        }
        .boxed()
    })
    .await;
    let caller = Caller::to(&server);
    let mut stalled = Vec::new();
    for _ in 0..20 {
        stalled.push(caller.get(Group::Short, "/large").await.expect("a head"));
    }
    let response = caller.get(Group::Short, "/small").await.expect("an answer");
    let small = soon(response.into_body().collect()).await.expect("the whole body");
    assert_eq!(small.to_bytes().len(), 100 << 10);
    assert_eq!(server.connections(), 1, "all share one connection");
    for response in stalled.drain(..3) {
        let large = soon(response.into_body().collect()).await.expect("the whole body");
        assert_eq!(large.to_bytes().len(), 16 << 20);
    }
}

#[tokio::test]
async fn a_goaway_on_every_fifth_response_reaches_no_client_and_applies_no_put_twice() {
    let answered = Arc::new(AtomicUsize::new(0));
    let applied: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let (count, puts) = (Arc::clone(&answered), Arc::clone(&applied));
    let server = Server::http2(100, move |request, connection| {
        let (count, puts) = (Arc::clone(&count), Arc::clone(&puts));
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes());
            if parts.method == Method::PUT && body.is_ok_and(|body| body == "spec") {
                *puts.lock().expect("not poisoned").entry(parts.uri.path().to_owned()).or_default() += 1;
            }
            if count.fetch_add(1, SeqCst).is_multiple_of(5) {
                connection.go_away();
            }
            answer("ok")
        }
        .boxed()
    })
    .await;
    let caller = Caller::to(&server);
    let calls = stream::iter(0..1_000).map(|n| {
        let caller = caller.clone();
        async move {
            let path = format!("/objects/{n}");
            let request = if n % 2 == 0 { get(&path) } else { put(&path, "spec") };
            let response = caller.send(Group::Short, request).await;
            text(response.unwrap_or_else(|error| panic!("{path}: {error}"))).await
        }
    });
    let answers: Vec<String> = calls.buffer_unordered(50).collect().await;
    assert_eq!(answers, vec!["ok"; 1_000]);
    let applied = applied.lock().expect("not poisoned");
    assert_eq!(applied.len(), 500);
    assert!(applied.values().all(|times| *times == 1));
    assert!(server.connections() > 5, "{} connections", server.connections());
}

#[tokio::test]
async fn a_connection_that_goes_away_takes_no_more_calls_and_its_watches_run_on() {
    let living = Arc::new(AtomicUsize::new(0));
    let (count, away) = (Arc::clone(&living), Arc::new(Notify::new()));
    let go = Arc::clone(&away);
    let server = Server::http2(100, move |request, connection| {
        let (count, go) = (Arc::clone(&count), Arc::clone(&go));
        async move {
            if request.uri().path() == "/watch" {
                tokio::spawn(async move {
                    go.notified().await;
                    connection.go_away();
                });
                return watch(count);
            }
            answer("ok")
        }
        .boxed()
    })
    .await;
    let caller = Caller::to(&server);
    let open = caller.get(Group::Short, "/watch").await.expect("a watch");
    assert_eq!(caller.ledger.room(Group::Short), 99);
    away.notify_one();
    until(|| caller.ledger.room(Group::Short) == 0).await; // noticed although no call was tried on it
    assert_eq!(text(caller.get(Group::Short, "/").await.expect("an answer")).await, "ok");
    assert_eq!((server.connections(), living.load(SeqCst)), (2, 1));
    drop(open);
    until(|| living.load(SeqCst) == 0).await;
}

#[tokio::test]
async fn long_heads_pass_both_ways() {
    let server = Server::http2(100, |request, _| {
        async move {
            let mut answer = answer("ok");
            answer.headers_mut().insert("x-long", request.headers()["x-long"].clone());
            answer
        }
        .boxed()
    })
    .await;
    let caller = Caller::to(&server);
    let mut request = get("/");
    request.headers_mut().insert("x-long", "x".repeat(500 << 10).parse().expect("a value"));
    let response = caller.send(Group::Short, request).await.expect("an answer");
    assert_eq!(response.headers()["x-long"].len(), 500 << 10);
    assert_eq!(text(response).await, "ok");
}

#[tokio::test]
async fn an_old_connection_gets_a_successor_and_its_watches_run_on() {
    let events = Arc::new(Notify::new());
    let go = Arc::clone(&events);
    let server = Server::http2(100, move |request, _| {
        let go = Arc::clone(&go);
        async move {
            if request.uri().path() != "/watch" {
                return answer("ok");
            }
            let late = stream::once(async move {
                go.notified().await;
                Ok::<_, io::Error>(Frame::data(Bytes::from_static(b"late event")))
            });
            Response::new(BodyExt::boxed_unsync(StreamBody::new(late)))
        }
        .boxed()
    })
    .await;
    let caller = Caller::to(&server);
    let open = caller.get(Group::LongRunning, "/watch").await.expect("a watch");
    let used = || caller.upstream.occupancy(Group::LongRunning).used;
    assert_eq!(used(), 1);
    // more than twelve minutes pass; answers to pings take real time, so the loop leaves some
    // between the steps
    for _ in 0..160 {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(5)).await;
        tokio::time::resume();
        assert_eq!(text(caller.get(Group::LongRunning, "/").await.expect("an answer")).await, "ok");
        tokio::time::timeout(Duration::from_millis(2), std::future::pending::<()>()).await.ok();
    }
    until(|| server.connections() >= 2 && used() == 0).await;
    events.notify_one();
    assert_eq!(text(open).await, "late event");
}

#[tokio::test]
async fn a_call_given_up_resets_its_stream() {
    let living = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&living);
    let server = Server::http2(100, move |request, _| {
        let count = Arc::clone(&count);
        async move {
            if request.uri().path() == "/silent" {
                let held = watch(count);
                std::future::pending::<()>().await;
                return held;
            }
            watch(count)
        }
        .boxed()
    })
    .await;
    let caller = Caller::to(&server);
    let response = caller.get(Group::Short, "/body").await.expect("a head");
    assert_eq!(living.load(SeqCst), 1);
    drop(response);
    until(|| living.load(SeqCst) == 0).await;

    let lease = soon(caller.lease(Group::Short)).await.expect("a stream");
    let call = tokio::spawn({
        let caller = caller.clone();
        async move { caller.upstream.send(lease, admitted(get("/silent"))).await.map(drop) }
    });
    until(|| living.load(SeqCst) == 1).await;
    call.abort();
    until(|| living.load(SeqCst) == 0).await;
    until(|| caller.ledger.room(Group::Short) == 100).await;
    assert_eq!(server.connections(), 1, "only the streams were reset");
}

/// A small random generator with a seed, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// For all actions of callers and connections: at rest, the reported room equals the free streams,
/// and none is in use.
async fn room_is_conserved(seed: u64) {
    let answered = Arc::new(AtomicUsize::new(0));
    let server = Server::http2(7, move |request, connection| {
        let nth = answered.fetch_add(1, SeqCst);
        async move {
            if nth.is_multiple_of(11) {
                connection.go_away();
            }
            match request.uri().path() {
                "/large" => answer(vec![0_u8; 1 << 20]),
                "/silent" => std::future::pending().await,
                _ => answer("ok"),
            }
        }
        .boxed()
    })
    .await;
    let caller = Caller::to(&server);
    let mut dice = Dice(seed);
    let mut calls = JoinSet::new();
    for _ in 0..300 {
        let caller = caller.clone();
        let (path, how) = (["/", "/large", "/silent"][usize::try_from(dice.below(3)).expect("small")], dice.below(4));
        calls.spawn(async move {
            let lease = if how == 0 {
                caller.upstream.checkout_exempt(Group::Short).await
            } else {
                caller.lease(Group::Short).await
            };
            let Ok(lease) = lease else { return };
            let call = caller.upstream.send(lease, admitted(get(path)));
            if path == "/silent" {
                tokio::time::timeout(Duration::from_millis(how), call).await.ok();
            } else if let Ok(response) = call.await {
                let mut body = response.into_body();
                while how < 3 && body.frame().await.is_some_and(|frame| frame.is_ok()) {}
            }
        });
        if dice.below(20) == 0 {
            // the client hangs up, at any stage of its call
            calls.abort_all();
        }
        if dice.below(5) == 0 {
            tokio::task::yield_now().await;
        }
    }
    soon(async { while calls.join_next().await.is_some() {} }).await;
    let settled = || {
        let now = caller.upstream.occupancy(Group::Short);
        now.used == 0 && i64::try_from(now.free) == Ok(caller.ledger.room(Group::Short))
    };
    until(settled).await;
}

#[tokio::test]
async fn room_is_conserved_on_one_thread() {
    for seed in 0..5 {
        room_is_conserved(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn room_is_conserved_on_many_threads() {
    for seed in 5..10 {
        room_is_conserved(seed).await;
    }
}

// === scripted servers: frame by frame ===

/// A frame's kind, stream and payload.
type Framed = (u8, u32, Vec<u8>);

const SETTINGS: u8 = 4;
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
const HEADERS: u8 = 1;
const ACK: u8 = 1;

async fn read_payload(socket: &mut TlsStream<TcpStream>) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    socket.read_exact(&mut head).await.ok()?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let mut payload = vec![0; length];
    socket.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

async fn read_frame(socket: &mut TlsStream<TcpStream>) -> Option<(u8, u8, u32)> {
    read_payload(socket).await.map(|(kind, flags, stream, _)| (kind, flags, stream))
}

async fn write_frame(socket: &mut TlsStream<TcpStream>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    socket.write_all(&frame).await.expect("the client reads");
    socket.flush().await.expect("the client reads");
}

/// Plays a server up to the first request, and returns its stream.
async fn first_request(socket: &mut TlsStream<TcpStream>) -> Option<u32> {
    let mut preface = [0; 24];
    socket.read_exact(&mut preface).await.ok()?;
    write_frame(socket, SETTINGS, 0, 0, &[]).await;
    loop {
        match read_frame(socket).await? {
            (SETTINGS, 0, _) => write_frame(socket, SETTINGS, ACK, 0, &[]).await,
            (HEADERS, _, stream) => return Some(stream),
            _ => {}
        }
    }
}

/// Returns the next DATA frame, and true if it is the last.
async fn data(socket: &mut TlsStream<TcpStream>) -> Option<(Vec<u8>, bool)> {
    loop {
        let (kind, flags, _, payload) = read_payload(socket).await?;
        if kind == DATA {
            return Some((payload, flags & END_STREAM != 0));
        }
    }
}

/// Keeps reading until the client closes.
async fn linger(socket: &mut TlsStream<TcpStream>) {
    while read_frame(socket).await.is_some() {}
}

/// Writes `:status: 200` without the end of the stream.
async fn write_head(socket: &mut TlsStream<TcpStream>, stream: u32) {
    write_frame(socket, HEADERS, 4, stream, &[0x88]).await;
}

/// Does `mischief` to the first request of the first `times` connections; the others answer it.
async fn mischievous(times: usize, mischief: fn(u32) -> Vec<Framed>) -> Server {
    let accepted = Arc::new(AtomicUsize::new(0));
    Server::tls(move |mut socket| {
        let mine = accepted.fetch_add(1, SeqCst);
        async move {
            let Some(stream) = first_request(&mut socket).await else { return };
            if mine < times {
                for (kind, stream, payload) in mischief(stream) {
                    write_frame(&mut socket, kind, 0, stream, &payload).await;
                }
                return;
            }
            write_head(&mut socket, stream).await;
            write_frame(&mut socket, 0, 1, stream, b"ok").await;
            linger(&mut socket).await;
        }
    })
    .await
}

fn go_away(last: u32) -> Framed {
    (7, 0, [last.to_be_bytes(), 0_u32.to_be_bytes()].concat())
}

#[tokio::test]
async fn a_stream_above_the_last_of_a_goaway_is_sent_again() {
    let server = mischievous(2, |_| vec![go_away(0)]).await;
    let caller = Caller::to(&server);
    assert_eq!(text(caller.send(Group::Short, put("/", "spec")).await.expect("an answer")).await, "ok");
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_refused_stream_is_sent_again() {
    let server = mischievous(1, |stream| vec![(3, stream, 7_u32.to_be_bytes().to_vec())]).await;
    let caller = Caller::to(&server);
    assert_eq!(text(caller.send(Group::Short, put("/", "spec")).await.expect("an answer")).await, "ok");
}

#[tokio::test]
async fn a_stream_that_may_have_been_processed_is_lost_and_not_repeated() {
    for mischief in [
        (|stream| vec![go_away(stream)]) as fn(u32) -> Vec<Framed>,
        |_| vec![],
        |stream| vec![(3, stream, 2_u32.to_be_bytes().to_vec())],
    ] {
        let server = mischievous(1, mischief).await;
        let caller = Caller::to(&server);
        let lost = caller.get(Group::Short, "/").await.expect_err("no answer");
        assert!(matches!(lost, SendError::Lost { .. }), "{lost:?}");
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn replays_are_bounded() {
    let refuse: fn(u32) -> Vec<Framed> = |stream| vec![(3, stream, 7_u32.to_be_bytes().to_vec())];
    for (mischief, most) in [((|_| vec![go_away(0)]) as fn(u32) -> Vec<Framed>, 7), (refuse, 3)] {
        let server = mischievous(usize::MAX, mischief).await;
        let caller = Caller::to(&server);
        let lost = caller.get(Group::Short, "/").await.expect_err("no answer");
        assert!(matches!(lost, SendError::Lost { .. } | SendError::Unsent { .. }), "{lost:?}");
        assert!(server.connections() <= most, "{} connections", server.connections());
    }
}

#[tokio::test]
async fn a_response_reset_before_its_end_is_an_error_whatever_the_reason() {
    for reason in [0_u32, 2, 8] {
        let server = Server::tls(move |mut socket| async move {
            let Some(stream) = first_request(&mut socket).await else { return };
            write_head(&mut socket, stream).await;
            write_frame(&mut socket, 0, 0, stream, b"half a li").await;
            write_frame(&mut socket, 3, 0, stream, &reason.to_be_bytes()).await;
            linger(&mut socket).await;
        })
        .await;
        let caller = Caller::to(&server);
        let response = caller.get(Group::Short, "/").await.expect("a head");
        assert!(soon(response.into_body().collect()).await.is_err(), "reset with reason {reason}");
    }
}

#[tokio::test]
async fn a_body_that_was_on_its_way_is_sent_again_from_its_start() {
    let (accepted, heads) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (received, seen) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::clone(&heads));
    let record = Arc::clone(&received);
    let server = Server::tls(move |mut socket| {
        let (mine, record, seen) = (accepted.fetch_add(1, SeqCst), Arc::clone(&record), Arc::clone(&seen));
        async move {
            let Some(stream) = first_request(&mut socket).await else { return };
            let mut payload = Vec::new();
            if mine == 0 {
                while payload.is_empty() {
                    payload = data(&mut socket).await.expect("the first chunk").0;
                }
                let (kind, stream, payload) = go_away(0);
                write_frame(&mut socket, kind, 0, stream, &payload).await;
                return linger(&mut socket).await;
            }
            seen.notify_one();
            while let Some((chunk, last)) = data(&mut socket).await {
                record.lock().expect("not poisoned").extend(chunk);
                if last {
                    break;
                }
            }
            write_head(&mut socket, stream).await;
            write_frame(&mut socket, 0, 1, stream, b"ok").await;
            linger(&mut socket).await;
        }
    })
    .await;
    let (address, _front) = front(Caller::to(&server)).await;
    let mut client = TcpStream::connect(address).await.expect("the front listens");
    client.write_all(b"PUT / HTTP/1.1\r\nHost: gate\r\nContent-Length: 9\r\n\r\nhalf ").await.expect("the front reads");
    soon(heads.notified()).await; // only now, on the second connection, does the rest come
    client.write_all(b"more").await.expect("the front reads");
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok\r\n0\r\n\r\n") {
        assert_ne!(soon(client.read_buf(&mut answer)).await.expect("the front answers"), 0);
    }
    assert_eq!(*received.lock().expect("not poisoned"), b"half more");
}
