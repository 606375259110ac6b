//! Clients of a story: they send calls in pieces, ask at once or in turn, and vanish at any byte.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, DuplexStream};

use super::dice::{Dice, dribble, is_whole};
use crate::clock::Clock;

/// One client of either kind.
pub(super) async fn client(stream: DuplexStream, dice: Dice, clock: Clock) {
    if dice.one_in(3) { http2(stream, dice, clock).await } else { http1(stream, dice, clock).await }
}

/// Several calls at once on one connection, some reset while they wait or run; then the cable is
/// cut.
async fn http2(mut stream: DuplexStream, dice: Dice, clock: Clock) {
    // hyper keeps the connection in a task of its own; a cable in between can be cut.
    let (end, mut other) = tokio::io::duplex(4096);
    let cable = tokio::spawn(async move { tokio::io::copy_bidirectional(&mut other, &mut stream).await });
    let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(end)).await;
    let (sender, connection) = shaken.expect("the gate speaks h2");
    tokio::spawn(connection);
    let calls: Vec<_> = (0..1 + dice.below(6))
        .map(|_| {
            let (mut sender, dice) = (sender.clone(), dice.child());
            tokio::spawn(async move {
                clock.sleep(dice.pause()).await;
                let name = dice.below(6);
                let body = Bytes::from("x".repeat(usize::try_from(dice.below(5_000)).expect("small")));
                let request = Request::put(format!("http://localhost/api/v1/nodes/n{name}")).body(Full::new(body));
                let answer = async {
                    let response = sender.send_request(request.expect("valid")).await?;
                    response.into_body().collect().await.map(|_| ())
                };
                let patience = if dice.one_in(3) { dice.pause() } else { Duration::from_secs(60) };
                tokio::time::timeout(patience, answer).await
            })
        })
        .collect();
    let cut = if dice.one_in(3) { dice.pause() } else { Duration::from_secs(100) };
    let all = async {
        for call in calls {
            call.await.expect("no panic").ok();
        }
    };
    tokio::time::timeout(cut, all).await.ok();
    cable.abort();
}

/// One client: some calls on one connection, sent one after another or at once, and given up at any
/// moment.
async fn http1(mut stream: DuplexStream, dice: Dice, clock: Clock) {
    clock.sleep(dice.pause()).await;
    let calls = 1 + dice.below(4);
    let pipelined = dice.one_in(4);
    for _ in 0..calls {
        let request = request(&dice);
        let cut = dice.one_in(4).then(|| usize::try_from(dice.below(request.len() as u64)).expect("small"));
        if !dribble(&mut stream, &request, cut, &dice, clock).await {
            clock.sleep(dice.pause()).await;
            return;
        }
        if pipelined {
            continue;
        }
        let patience = if dice.one_in(3) { dice.pause() } else { Duration::from_secs(60) };
        let answered = tokio::select! {
            answered = answer(&mut stream) => answered,
            () = clock.sleep(patience) => false,
        };
        if !answered {
            return;
        }
        clock.sleep(dice.pause()).await; // it may rest before the next
    }
    if pipelined {
        clock.sleep(dice.pause()).await;
    }
}

fn request(dice: &Dice) -> Vec<u8> {
    let name = dice.below(6);
    let body = "x".repeat(usize::try_from(dice.below(5_000)).expect("small"));
    let json = format!("{{\"metadata\":{{\"name\":\"n{name}\"}},\"data\":\"{body}\"}}");
    let (line, body) = match dice.below(6) {
        0 => (format!("GET /api/v1/nodes/n{name}"), None),
        1 => (format!("GET /api/v1/pods?watch=1&n={name}"), None),
        2 => (format!("PUT /api/v1/nodes/n{name}"), Some(json)),
        3 => ("POST /api/v1/namespaces/a/configmaps".to_owned(), Some(json)),
        4 => ("PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/l".to_owned(), Some(json)),
        _ => (format!("DELETE /api/v1/nodes/n{name}"), None),
    };
    let framed = match body {
        None => String::new(),
        Some(body) if dice.one_in(3) => {
            format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
        }
        Some(body) => format!("Content-Length: {}\r\n\r\n{body}", body.len()),
    };
    let end = if framed.is_empty() { "\r\n" } else { "" };
    format!("{line} HTTP/1.1\r\nHost: localhost\r\n{framed}{end}").into_bytes()
}

/// Reads one answer to its end; says whether there was one.
async fn answer(stream: &mut DuplexStream) -> bool {
    let mut got = Vec::new();
    loop {
        match stream.read_buf(&mut got).await {
            Ok(0) | Err(_) => return false,
            Ok(_) if is_whole(&got) => return true,
            Ok(_) => {}
        }
    }
}
