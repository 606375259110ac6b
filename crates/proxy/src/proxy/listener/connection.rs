//! One client's connection: hyper serves it from its first byte to its last.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;

use super::Server;
use super::call::Calls;
use super::linger::linger;
use super::stream::Stream;
use super::wire::{Wire, WireHandle};
use crate::clock::timer;
use crate::error_chain;
use crate::places::{Place, until_closing};
use crate::proxy::guard::scan::{Fault, HEAD_BYTES, MOST_LINES};
use crate::proxy::peer::Peer;
use crate::proxy::stack::{self, Path};
use crate::proxy::tunnel::UpgradeSlot;
use crate::telemetry::table;
use crate::upstream::{CorkedConnection, CorkedStream};

// === impl Server ===

impl Server {
    /// Serves a connection to its end. `http2` is set if ALPN agreed on it; otherwise the first
    /// bytes decide.
    pub(in crate::proxy) async fn serve(&self, stream: Box<dyn Stream>, peer: Peer, http2: bool) {
        let handle = WireHandle::new(stream, &self.section.buffers, peer.place.clone());
        let speaks_http2 = http2
            || tokio::select! {
                first = tokio::time::timeout(FIRST_BYTES, handle.speaks_http2()) => match first {
                    Ok(speaks) => speaks,
                    Err(_) => return,
                },
                () = self.clients.closing.cancelled() => return, // it has not said a word yet
            };
        let path = stack::stack(&self.parts, self.router.as_ref(), peer);
        if speaks_http2 {
            serve_calls_of_http2(&handle, path, &self.clients.closing, &AtomicBool::new(false), &self.section.name)
                .await;
        } else {
            serve_calls(&handle, path, &self.clients.closing, &self.section.name).await;
        }
    }
}

/// Serves the calls of an HTTP/2 connection to its end. It accepts no more calls once `over` is
/// set.
pub(in crate::proxy) async fn serve_calls_of_http2(
    handle: &WireHandle,
    path: Path,
    closing: &CancellationToken,
    over: &AtomicBool,
    gate: &str,
) {
    let calls = Calls { path, handle: None, upgrade_slot: None, place: handle.place.clone() };
    let mut begun = pin!(closing.cancelled());
    // Looked at with each answer that is sent, which is when a call can have set it.
    let closing = poll_fn(|cx| if over.load(Relaxed) { Poll::Ready(()) } else { begun.as_mut().poll(cx) });
    // Boxed, like all that is large and not what an idle connection of HTTP/1.1 is waiting in.
    if let Err(error) = Box::pin(serve_http2(handle, calls, closing)).await {
        tracing::debug!(gate, error = error_chain(&error), "a client's connection broke");
    }
}

/// Serves the calls of an HTTP/1 connection to its end.
pub(in crate::proxy) async fn serve_calls(handle: &WireHandle, path: Path, closing: &CancellationToken, gate: &str) {
    let upgrade_slot = UpgradeSlot::default();
    let place = handle.place.clone();
    let calls = Calls { path, handle: Some(handle.clone()), upgrade_slot: Some(upgrade_slot.clone()), place };
    let served = Box::pin(serve_http1(handle, calls, closing)).await;
    if served.is_ok() && upgrade_slot.is_empty() {
        handle.end().await;
    }
    if handle.has_unread() {
        Box::pin(linger(handle)).await;
    }
    // A head that is too large was counted when its request was turned away.
    if let Some(fault) = handle.fault().filter(|fault| *fault != Fault::TooLarge) {
        table::GUARDED.counter(&[gate, fault.word()]).increment(1);
        tracing::debug!(gate, %fault, "closed a connection after an invalid request");
    }
    if let Err(error) = served {
        tracing::debug!(gate, error = error_chain(&error), "a client's connection broke");
    }
    // Here and not in a task of its own, so that a tunnel counts as a client: the drain waits for
    // it, and ends it.
    let busy = || handle.place.as_ref().map(Place::busy);
    Box::pin(upgrade_slot.serve(gate, Wire::unscanned(handle), busy)).await;
}

async fn serve_http1(handle: &WireHandle, calls: Calls, closing: &CancellationToken) -> hyper::Result<()> {
    let over = async {
        tokio::select! {
            () = closing.cancelled() => {}
            () = idle(handle) => {}
        }
    };
    let connection = pin!(begin_http1(handle, calls));
    until_closing(connection, over, |connection| connection.graceful_shutdown()).await
}

/// Waits until the connection has not been used for [`IDLE`] or longer: it is checked once in that
/// time.
async fn idle(handle: &WireHandle) {
    loop {
        timer(IDLE).await;
        if !handle.take_used() {
            return;
        }
    }
}

async fn serve_http2(handle: &WireHandle, calls: Calls, closing: impl Future<Output = ()>) -> hyper::Result<()> {
    let (stream, cork) = CorkedStream::new(Wire::unscanned(handle));
    let connection = pin!(CorkedConnection::new(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADER_LIST)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .auto_date_header(false)
            .max_send_buf_size(SEND_BUFFER)
            .serve_connection(TokioIo::new(stream), calls),
        cork
    ));
    until_closing(connection, closing, |connection| connection.connection().graceful_shutdown()).await
}

/// Begins HTTP/1. This is not done in the future serving the connection, as the builder would take
/// memory there all the time.
fn begin_http1(handle: &WireHandle, calls: Calls) -> http1::Connection<TokioIo<Wire>, Calls> {
    http1::Builder::new()
        .preserve_header_case(true) // names reach the upstream as they were written (P10)
        .max_headers(MOST_LINES + 1) // with the line that ends a head which is cut
        .max_buf_size(HEAD_BYTES)
        .header_read_timeout(None) // the filter of the wire has its own
        .auto_date_header(false)
        .half_close(false) // a client that ends its side is gone (P6)
        .serve_connection(TokioIo::new(Wire::scanned(handle)), calls)
}

/// The time for a client's first bytes: kube-apiserver waits 32 s for a head.
const FIRST_BYTES: Duration = Duration::from_secs(30);
/// The least idle time before a connection is closed. Clients keep connections for 90 s and must be
/// first to close.
const IDLE: Duration = Duration::from_secs(120);
const HEADER_LIST: u32 = 1 << 20;
/// The most concurrent streams offered to a client: past these Go's client opens another
/// connection; others queue.
const STREAMS: u32 = 1000;
/// The most bytes held for a stream with a large window and a slow client; hyper's own limit is 400
/// KiB.
const SEND_BUFFER: usize = 64 << 10;
/// The HTTP/2 window of one stream, and so the memory for one stalled upload; the connection's
/// window must hold many.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// The interval of HTTP/2 pings, the same as client-go's.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::future::Either;
    use http::Response;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;
    use crate::clock::Clock;
    use crate::proxy::body::Body as AnswerBody;
    use crate::proxy::conservation;

    /// Makes a call to a gate with an unreachable upstream.
    async fn call(client: &mut DuplexStream) {
        client.write_all(b"GET /api/v1/nodes/a HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("open");
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            assert!(client.read_buf(&mut answer).await.expect("open") > 0, "closed");
        }
        assert!(answer.starts_with(b"HTTP/1.1 50"), "{}", String::from_utf8_lossy(&answer));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_calls_is_closed() {
        let clock = Clock::start();
        let gate = conservation::idle_gate(clock);
        let (mut client, end) = duplex(4096);
        let calling = async {
            for wait in [119, 1, 119] {
                call(&mut client).await;
                clock.sleep(Duration::from_secs(wait)).await;
            }
            call(&mut client).await;
            let called = clock.now();
            assert_eq!(client.read(&mut [0]).await.expect("closed"), 0);
            clock.now().since(called)
        };
        let (idle, ()) = tokio::join!(calling, gate.serve(Box::new(end), Peer::default(), false));
        assert!(idle >= IDLE && idle <= 2 * IDLE, "{idle:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_calls_closes_with_the_gate() {
        let clock = Clock::start();
        let gate = conservation::idle_gate(clock);
        let (mut client, end) = duplex(4096);
        let calling = async {
            call(&mut client).await;
            clock.sleep(Duration::from_secs(1)).await;
            gate.clients.closing.cancel();
            let closed = tokio::time::timeout(Duration::from_millis(10), client.read(&mut [0])).await;
            assert_eq!(closed.expect("at once").expect("closed"), 0);
        };
        tokio::join!(calling, gate.serve(Box::new(end), Peer::default(), false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_lasts_keeps_its_connection() {
        let clock = Clock::start();
        let gate = conservation::idle_gate(clock);
        let path = stack::path(Arc::clone(&gate.parts.responder), move |_| {
            Either::Right(Box::pin(async move {
                clock.sleep(10 * IDLE).await;
                Ok(Response::new(AnswerBody::own("done")))
            }))
        });
        let (mut client, end) = duplex(1 << 10);
        let handle = WireHandle::new(Box::new(end), &Default::default(), None);
        let calling = async move {
            for _ in 0..2 {
                client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("open");
                let mut answer = Vec::new();
                while !answer.ends_with(b"done") {
                    assert!(client.read_buf(&mut answer).await.expect("open") > 0, "closed");
                }
            }
        };
        tokio::join!(calling, serve_calls(&handle, path, &gate.clients.closing, "gate"));
    }
}
