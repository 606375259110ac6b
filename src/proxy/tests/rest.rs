//! Connections that rest between their calls: hyper is let go and another begins, and the client
//! must not notice.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::dice::{Dice, is_whole};
use super::{idle_gate, options, server};
use crate::clock::Clock;
use crate::proxy::peer::Peer;
use crate::telemetry::CallLog;

/// Answers whatever it is asked, in its time.
async fn honest(mut stream: TcpStream, dice: Dice, clock: Clock) {
    stream.set_nodelay(true).expect("a socket"); // the 40 ms of a delayed acknowledgement would be minutes of paused time
    let mut request = Vec::new();
    while matches!(stream.read_buf(&mut request).await, Ok(1..)) {
        if !is_whole(&request) {
            continue;
        }
        request.clear();
        clock.sleep(around_the_pause(&dice)).await;
        let answer = if dice.one_in(2) { of_length(&dice) } else { in_chunks(&dice) };
        if !in_pieces(&mut stream, answer.as_bytes(), &dice, clock).await {
            return;
        }
    }
}

fn of_length(dice: &Dice) -> String {
    let body = letters(dice, 3_000);
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// An answer in chunks, perhaps with a trailer, whose head says how long the body is.
fn in_chunks(dice: &Dice) -> String {
    let body = letters(dice, 3_000);
    let mut answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Length: {}\r\n\r\n", body.len());
    let mut left = body.as_str();
    while !left.is_empty() {
        let (chunk, rest) = left.split_at(usize::try_from(1 + dice.below(left.len() as u64)).expect("small"));
        answer.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len()));
        left = rest;
    }
    answer + if dice.one_in(2) { "0\r\n\r\n" } else { "0\r\nx-sum: 7\r\n\r\n" }
}

/// Letters in their order, fewer than this many.
fn letters(dice: &Dice, below: u64) -> String {
    ('a'..='z').cycle().take(usize::try_from(dice.below(below)).expect("small")).collect()
}

/// The pause before a rest is 100 ms, and is checked every 100 ms: times around it matter.
fn around_the_pause(dice: &Dice) -> Duration {
    if dice.one_in(2) { Duration::ZERO } else { Duration::from_millis(dice.below(320)) }
}

/// True if everything could be written.
async fn in_pieces<W: AsyncWrite + Unpin>(out: &mut W, mut bytes: &[u8], dice: &Dice, clock: Clock) -> bool {
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(usize::try_from(1 + dice.below(bytes.len() as u64)).expect("small"));
        if out.write_all(piece).await.is_err() {
            return false;
        }
        bytes = rest;
        clock.sleep(around_the_pause(dice)).await;
    }
    true
}

/// Calls on one connection, one after another or two at once, each answered; the connection is
/// never closed.
async fn client(mut stream: DuplexStream, dice: Dice, clock: Clock, seed: u64) {
    for call in 0..12 {
        let together = 1 + usize::from(dice.one_in(4));
        let mut requests = Vec::new();
        for _ in 0..together {
            // An answer may outlast hyper if the request has no body.
            let (method, body) = if dice.one_in(2) { ("GET", String::new()) } else { ("PUT", letters(&dice, 2_000)) };
            let line = format!("{method} /apis/coordination.k8s.io/v1/namespaces/a/leases/l{call} HTTP/1.1");
            // What hyper is ready for, and what not: see `Ready`.
            let (host, length) = if dice.one_in(2) { ("Host", "Content-Length") } else { ("host", "content-length") };
            let more = if dice.one_in(8) { "x: y\r\n".repeat(120) } else { String::new() };
            let head = format!("{line}\r\n{host}: localhost\r\n{more}{length}: {}\r\n\r\n", body.len());
            requests.extend((head + &body).into_bytes());
        }
        let (mut read, mut write) = tokio::io::split(&mut stream);
        let sending = async { assert!(in_pieces(&mut write, &requests, &dice, clock).await, "seed {seed}: closed") };
        let reading = async {
            let mut got = Vec::new();
            for _ in 0..together {
                while whole(&got).is_none() {
                    clock.sleep(around_the_pause(&dice)).await;
                    let read = read.read_buf(&mut got).await.expect("no reset");
                    assert!(
                        read > 0,
                        "seed {seed}: call {call} has no answer, after {:?}",
                        String::from_utf8_lossy(&got)
                    );
                }
                assert!(got.starts_with(b"HTTP/1.1 200 "), "seed {seed}: {:?}", String::from_utf8_lossy(&got));
                got.drain(..whole(&got).expect("it is"));
            }
            assert_eq!(got, b"", "seed {seed}");
        };
        tokio::join!(sending, reading);
        clock.sleep(around_the_pause(&dice)).await;
    }
    stream.shutdown().await.expect("open to the end");
    assert_eq!(stream.read(&mut [0]).await.expect("no reset"), 0, "seed {seed}");
}

/// The end of the first answer, if all of it is there.
fn whole(got: &[u8]) -> Option<usize> {
    let head = got.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&got[..head]).to_ascii_lowercase();
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse::<usize>().ok());
    if let Some(length) = number("content-length: ") {
        let end = head + length;
        return (got.len() >= end).then_some(end);
    }
    let (mut at, mut body) = (head, String::new());
    loop {
        let size = line(&got[at..])?;
        at += size.len() + 2;
        let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
        if size == 0 {
            let trailer = line(&got[at..])?;
            let end = at + trailer.len() + if trailer.is_empty() { 2 } else { 4 };
            assert!(["", "x-sum: 7"].contains(&trailer), "{trailer:?}");
            assert!(body.bytes().eq((b'a'..=b'z').cycle().take(body.len())), "{body:?}");
            assert_eq!(number("x-length: "), Some(body.len()));
            return (got.len() >= end).then_some(end);
        }
        body.push_str(std::str::from_utf8(got.get(at..at + size)?).expect("letters"));
        assert_eq!(got.get(at + size..at + size + 2)?, b"\r\n", "a chunk ends");
        at += size + 2;
    }
}

/// The line that begins here, if its end has come.
fn line(bytes: &[u8]) -> Option<&str> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some(std::str::from_utf8(&bytes[..end]).expect("text"))
}

#[tokio::test(start_paused = true)]
async fn a_resting_connection_is_closed_after_two_minutes_and_at_once_when_the_gate_closes() {
    let clock = Clock::start();
    let gate = Arc::new(idle_gate(clock));
    let (mut client, other) = tokio::io::duplex(4096);
    let served = tokio::spawn({
        let gate = Arc::clone(&gate);
        async move { gate.serve(Box::new(other), Peer::default(), false).await }
    });
    for wait in [119, 1, 119] {
        ask(&mut client).await;
        clock.sleep(Duration::from_secs(wait)).await;
    }
    ask(&mut client).await;
    let asked = clock.now();
    assert_eq!(client.read(&mut [0]).await.expect("closed"), 0);
    assert_eq!(clock.now().since(asked).as_secs(), 120);
    served.await.expect("no panic");

    let (mut client, other) = tokio::io::duplex(4096);
    let (serving, closing) = (gate.serve(Box::new(other), Peer::default(), false), async {
        ask(&mut client).await;
        clock.sleep(Duration::from_secs(1)).await;
        gate.closing.tell().await;
        let closed = tokio::time::timeout(Duration::from_millis(10), client.read(&mut [0])).await;
        assert_eq!(closed.expect("at once").expect("closed"), 0);
    });
    tokio::join!(serving, closing);
}

/// A call to a gate whose upstream cannot be reached: an answer all the same.
async fn ask(client: &mut DuplexStream) {
    client.write_all(b"GET /api/v1/nodes/a HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("open");
    let mut got = Vec::new();
    while whole(&got).is_none() {
        assert!(client.read_buf(&mut got).await.expect("open") > 0, "closed");
    }
    assert!(got.starts_with(b"HTTP/1.1 50"), "{}", String::from_utf8_lossy(&got));
}

#[test]
fn no_call_is_lost_between_rests() {
    for seed in 0..100 {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let (clock, dice) = (Clock::start(), Dice::new(seed));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("bound");
            let upstream = dice.child();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(honest(stream, upstream.child(), clock));
                }
            });
            // Sockets are not in paused time, which would run on while bytes are on their way.
            tokio::spawn(async move {
                loop {
                    clock.sleep(Duration::from_millis(20)).await;
                }
            });
            let (log, _records) = mpsc::channel(1000);
            let mut options = options(seed, address, CallLog::to(log));
            options.upstream.connect_timeout = Duration::from_secs(3600);
            options.upstream.response_timeout = None;
            let (gate, _driver) = server(options, clock);
            let (end, other) = tokio::io::duplex(usize::try_from(64 + dice.below(4096)).expect("small"));
            tokio::join!(client(end, dice.child(), clock, seed), gate.serve(Box::new(other), Peer::default(), false));
        });
    }
}
