//! A client's bytes, HTTP/1 or HTTP/2, through a whole gate to an upstream that answers: the
//! upstream gets one well-formed request after the other, and the gate keeps serving.
#![no_main]

use std::sync::{Arc, LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use tidegate::proxy::Gate;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};

#[path = "../support/gate.rs"]
mod gate;

/// Bytes that reached the upstream and do not begin a request.
static WRONG: Mutex<Option<Vec<u8>>> = Mutex::new(None);

static GATE: LazyLock<(Runtime, Arc<Gate>)> = LazyLock::new(|| {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    let gate = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let to = listener.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(answering(socket));
            }
        });
        gate::gate(to, None).await
    });
    (runtime, Arc::new(gate))
});

/// Answers one request after the other.
async fn answering(mut socket: TcpStream) {
    let mut some = Vec::new();
    while matches!(socket.read_buf(&mut some).await, Ok(read) if read > 0) {
        while let Some(end) = whole(&some) {
            some.drain(..end);
            if socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.is_err() {
                return;
            }
        }
    }
}

/// Returns the end of the first request if all of it is there.
fn whole(bytes: &[u8]) -> Option<usize> {
    let find = |from: usize, what: &[u8]| {
        bytes.get(from..)?.windows(what.len()).position(|some| some == what).map(|at| from + at)
    };
    let head_end = find(0, b"\r\n\r\n")? + 4;
    let head = bytes[..head_end].to_ascii_lowercase();
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let lines: Vec<_> = lines.collect();
    let count = |name: &[u8]| lines.iter().filter(|line| line.starts_with(name)).count();
    let framed = count(b"content-length:") + count(b"transfer-encoding:");
    if !first.ends_with(b" http/1.1\r") || count(b"host:") != 1 || framed > 1 {
        *WRONG.lock().expect("no panic") = Some(bytes.to_vec());
    }
    if count(b"transfer-encoding: chunked\r") == 1 {
        let mut at = head_end;
        loop {
            let line = find(at, b"\r\n")?;
            let size = std::str::from_utf8(&bytes[at..line]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
            let Some(size) = size else {
                *WRONG.lock().expect("no panic") = Some(bytes.to_vec());
                return None;
            };
            at = line + 2 + size;
            if size == 0 {
                let end = if bytes.get(at..at + 2)? == b"\r\n" { at } else { find(at, b"\r\n\r\n")? + 2 };
                return Some(end + 2);
            }
            at += 2;
        }
    }
    let length = lines.iter().find_map(|line| line.strip_prefix(b"content-length: "));
    let length = length.map_or(0, |length| {
        std::str::from_utf8(length.trim_ascii()).ok().and_then(|length| length.parse().ok()).unwrap_or(usize::MAX)
    });
    let end = head_end.checked_add(length)?;
    (bytes.len() >= end).then_some(end)
}

fuzz_target!(|bytes: &[u8]| {
    let (runtime, gate) = &*GATE;
    runtime.block_on(async {
        let http2 = bytes.starts_with(b"PRI * HTTP/2.0");
        let answer = gate::exchange(gate, bytes).await;
        assert!(http2 || answer.is_empty() || answer.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&answer));
        let wrong = WRONG.lock().expect("no panic").take();
        assert!(wrong.is_none(), "{:?}", wrong.map(|wrong| String::from_utf8_lossy(&wrong).into_owned()));
        let still = gate::exchange(gate, b"GET /still HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
        assert!(still.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(&still));
    });
});
