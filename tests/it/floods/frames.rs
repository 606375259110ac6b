//! Floods of HTTP/2 frames.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;

use super::{Flooded, LEASES};
use crate::frames::{
    self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    block, frame, good, hello, request,
};
use crate::pool::support::soon;

/// GOAWAY's code for a peer that does too much.
const ENHANCE_YOUR_CALM: u32 = 11;

/// The answer to a flood.
#[derive(Debug, Default)]
struct Came {
    frames: usize,
    /// The reason for which the gate ended the connection, if it did.
    away: Option<u32>,
}

/// Sends the greeting and then these pieces on a new connection, as far as they are accepted, and
/// reads what comes back.
async fn pour(
    flooded: &Flooded,
    settings: &[(u16, u32)],
    pieces: impl Iterator<Item = Vec<u8>> + Send + 'static,
) -> Came {
    let (mut reading, mut writing) = flooded.connect().await.into_split();
    let hello = hello(settings);
    let (ended, mut end) = oneshot::channel();
    let writer = tokio::spawn(async move {
        let pieces = std::iter::once(hello).chain(pieces);
        for piece in pieces {
            // The gate may have ended the connection.
            if writing.write_all(&piece).await.is_err()
                || !matches!(end.try_recv(), Err(oneshot::error::TryRecvError::Empty))
            {
                return;
            }
        }
        writing.shutdown().await.ok();
    });
    let mut came = Came::default();
    while let Some(frame) = frames::next(&mut reading).await {
        came.frames += 1;
        if frame.kind == GOAWAY {
            came.away = Some(frame.code());
        }
    }
    ended.send(()).ok(); // it may have ended before
    drop(reading);
    writer.await.expect("no panic");
    came
}

/// Many copies of a frame, in pieces.
fn many(frame: &[u8], count: usize) -> impl Iterator<Item = Vec<u8>> + use<> {
    let piece = 1000;
    let bytes = frame.repeat(piece);
    (0..count.div_ceil(piece)).map(move |_| bytes.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_opened_and_reset_at_once_end_their_connection() {
    let flooded = Flooded::start("").await;
    let mut resets = 0;
    flooded
        .rounds(3, async || {
            let pieces = (0..10_000u32).map(|n| {
                let stream = 2 * n + 1;
                let head = request(stream, &good("/api/v1/pods", &[]));
                [head, frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
            });
            let came = pour(&flooded, &[], pieces).await;
            assert_eq!(came.away, Some(ENHANCE_YOUR_CALM), "{came:?}");
            resets += 10_000;
        })
        .await;
    let reached = flooded.backend.targets().iter().filter(|target| *target == "/api/v1/pods").count();
    println!("{resets} resets, {reached} calls reached the upstream");
    assert!(reached < resets / 4, "{reached} of {resets} reached the upstream");
    flooded.over(16 << 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_of_endless_continuations_ends_its_connection() {
    let flooded = Flooded::start("").await;
    flooded
        .rounds(3, async || {
            for payload in [&[][..], &block(&[("x", "y")]), &block(&[("x", &"y".repeat(16_000))])] {
                let head = frame(HEADERS, 0, 1, &block(&good("/endless", &[])));
                let flood =
                    many(&frame(CONTINUATION, 0, 1, payload), if payload.len() > 100 { 2_000 } else { 100_000 });
                let came = pour(&flooded, &[], std::iter::once(head).chain(flood)).await;
                assert!(came.away.is_some(), "{came:?}");
            }
        })
        .await;
    assert!(!flooded.backend.targets().contains(&"/endless".to_owned()));
    flooded.over(32 << 20).await;
}

/// One entry of 4 KiB in the table, then its index 16,000 times: 64 MiB of fields in 20 KiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_block_that_unpacks_to_much_is_not_unpacked() {
    let flooded = Flooded::start("").await;
    flooded
        .rounds(3, async || {
            let mut fields = block(&good("/bomb", &[]));
            let entry = block(&[("x", &"y".repeat(4000))]);
            fields.push(0x40); // kept in the table
            fields.extend(&entry[1..]);
            let first = fields.clone();
            let second = [block(&good("/bomb", &[])), vec![0xbe; 16_000]].concat();
            let pieces = std::iter::once(frame(HEADERS, END_HEADERS | END_STREAM, 1, &first))
                .chain((1..50u32).map(move |n| frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &second)));
            pour(&flooded, &[], pieces).await;
        })
        .await;
    flooded.over(32 << 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_and_settings_cost_nothing_whether_their_answers_are_read_or_not() {
    let flooded = Flooded::start("").await;
    let ping = frame(PING, 0, 0, &[7; 8]);
    let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
    flooded
        .rounds(1, async || {
            let came = pour(&flooded, &[], many(&ping, 30_000)).await;
            println!("pings: {came:?}");
            let came = pour(&flooded, &[], many(&settings, 30_000)).await;
            println!("settings: {came:?}");
            pour(&flooded, &[], many(&frame(PING, ACK, 0, &[7; 8]), 30_000)).await;
        })
        .await;
    for flood in [ping, settings] {
        // Nothing is read: the client writes as much as the gate takes while leases are renewed.
        let mut client = flooded.connect().await;
        client.write_all(&hello(&[])).await.expect("writes");
        let piece = flood.repeat(1000);
        let writes = async {
            let mut written = 0u64;
            while written < 100 << 20 && client.write_all(&piece).await.is_ok() {
                written += piece.len() as u64;
            }
            std::future::pending::<()>().await; // blocked, or ended: either way it is over
        };
        tokio::select! {
            () = writes => {}
            () = flooded.leases(5 * LEASES) => {}
        }
    }
    flooded.over(16 << 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_and_one_byte_frames_of_a_body_cost_no_more_than_the_body() {
    let flooded = Flooded::start("").await;
    let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", "/bytes")];
    let head = frame(HEADERS, END_HEADERS, 1, &block(&fields));
    flooded
        .rounds(1, async || {
            for payload in [&b""[..], b"x"] {
                let flood = many(&frame(DATA, 0, 1, payload), 100_000);
                let came = pour(&flooded, &[], std::iter::once(head.clone()).chain(flood)).await;
                println!("frames of {} bytes: {came:?}", payload.len());
            }
        })
        .await;
    flooded.over(48 << 20).await;
}

/// 100 answers of 4 MiB to clients that open no window, a window of one byte, or one that is far
/// too large.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn games_with_windows_hold_no_answers_in_memory() {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let flooded = Flooded::start("").await;
    for window in [0, 1] {
        let mut client = flooded.connect().await;
        let asks: Vec<u8> = (0..100u32).flat_map(|n| request(2 * n + 1, &good("/big", &[]))).collect();
        client.write_all(&[hello(&[(INITIAL_WINDOW_SIZE, window)]), asks].concat()).await.expect("writes");
        let mut heads = 0;
        while heads < 100 {
            let frame = soon(frames::next(&mut client)).await.expect("open");
            heads += usize::from(frame.kind == HEADERS);
        }
        let byte = frame(WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes()).repeat(1000);
        let writes = async {
            for _ in 0..20 {
                client.write_all(&byte).await.expect("writes");
                let mut some = vec![0; 64 << 10];
                assert!(client.read(&mut some).await.expect("open") > 0);
            }
        };
        soon(writes).await;
        flooded.leases(LEASES).await;
    }
    flooded
        .rounds(3, async || {
            for increment in [0u32, 0x7fff_ffff] {
                let flood = many(&frame(WINDOW_UPDATE, 0, 0, &increment.to_be_bytes()), 1_000);
                let came = pour(&flooded, &[], flood).await;
                assert!(came.away.is_some(), "{came:?}");
            }
        })
        .await;
    flooded.over(96 << 20).await;
}
