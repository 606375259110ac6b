//! A client's connection as three users share it: hyper, the connection's task, and the current
//! call.
//!
//! hyper reads and writes a [`Wire`] from the first byte to the last. Three promises need something
//! between hyper and the socket:
//!
//! - P10: over HTTP/1 the guard's scanner decides on every byte that comes in ([`Filter`]), and a
//!   client that may still be sending gets its answer before the connection is closed
//!   ([`WireHandle::has_unread`]).
//! - P6: reading ahead of hyper ([`ReadAhead`]) notices a client that hangs up while its call
//!   waits.
//! - P9: the memory for answers that clients do not read is bounded ([`AnswerShare`]).

mod filter;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use self::filter::Filter;
use super::read_ahead::ReadAhead;
use super::stream::{HangUp, Stream};
use crate::lock;
use crate::places::Place;
use crate::proxy::guard::buffers::{AnswerShare, Buffers};
use crate::proxy::guard::scan::Fault;
use crate::proxy::share::Share;

/// The connection as hyper reads and writes it.
pub(crate) struct Wire {
    state: Arc<Mutex<WireState>>,
    /// Scans the input; `None` for HTTP/2, because its frames leave nothing ambiguous.
    filter: Option<Filter>,
}

/// What hyper, the connection's task and its call share.
struct WireState {
    input: ReadAhead,
    /// Counts the bytes of answers given to hyper and not written yet.
    answers: AnswerShare,
    write_half: WriteHalf,
    /// Why the scanner refused the last bytes, if it did.
    fault: Option<Fault>,
    /// Set once a large head came: the connection ends with the answer, to free hyper's buffer.
    large_head: bool,
    /// Set after a request for another protocol or a tunnel was not granted, until the scanner knows.
    stays: bool,
    /// Set while a call is under way.
    busy: bool,
    /// Set if bytes were read, or a call ended, since the last `take_used`.
    used: bool,
}

/// The state of the connection's direction to the client.
#[derive(Clone, Copy)]
enum WriteHalf {
    Open,
    /// hyper has shut down writing, perhaps after the client had sent a part of a request.
    Closed {
        mid_request: bool,
    },
}

/// The error of a call whose client has hung up.
#[derive(Debug, thiserror::Error)]
#[error("the client closed its connection")]
pub(super) struct ClientGoneError;

/// A handle to the connection for its task and its calls; hyper has the [`Wire`]. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WireHandle {
    state: Arc<Mutex<WireState>>,
    /// The number of bytes of large heads of all clients together.
    heads: Arc<AtomicUsize>,
    /// Counts the connection against the limit of its listener, if there is one.
    pub(crate) place: Option<Arc<Place>>,
}

/// Marks the connection as having a call under way, until dropped.
pub(crate) struct ActiveCall {
    state: Arc<Mutex<WireState>>,
}

// === impl Wire ===

impl Wire {
    /// Returns the connection for hyper over HTTP/1: every incoming byte is scanned.
    pub(super) fn scanned(handle: &WireHandle) -> Self {
        Self { state: Arc::clone(&handle.state), filter: Some(Filter::new(&handle.heads)) }
    }

    /// Returns the connection for hyper over HTTP/2, or for a tunnel.
    pub(crate) fn unscanned(handle: &WireHandle) -> Self {
        Self { state: Arc::clone(&handle.state), filter: None }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { state, filter } = self.get_mut();
        let state = &mut *lock(state);
        if let Some(filter) = filter {
            return filter.poll_read(state, cx, buf);
        }
        let before = buf.filled().len();
        let is_ahead = !state.input.bytes().is_empty();
        let Poll::Ready(read) = state.input.poll_read(cx, buf) else { return state.input.park(cx) };
        let read_all = buf.filled().get(before..).unwrap_or_default();
        state.input.consume(is_ahead, read_all, read_all.len());
        Poll::Ready(read)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        lock(&self.state).input.stream().poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let WireState { input, answers, .. } = &mut *lock(&self.state);
        ready!(input.stream().poll_flush(cx))?;
        answers.written();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mid_request = self.filter.as_ref().is_some_and(|filter| !filter.scanner.is_between_requests());
        let mut state = lock(&self.state);
        state.write_half = WriteHalf::Closed { mid_request };
        state.input.stream().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        lock(&self.state).input.stream().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.state).input.stream().is_write_vectored()
    }
}

/// TLS inside a connection with a plain beginning.
impl Stream for TlsStream<Wire> {
    fn hang_up(&self) -> Option<HangUp> {
        lock(&self.get_ref().0.state).input.stream().hang_up()
    }
}

// === impl WireHandle ===

impl WireHandle {
    /// Wraps a connection. What it holds for its client is counted in `buffers`.
    pub(crate) fn new(stream: Box<dyn Stream>, buffers: &Buffers, place: Option<Arc<Place>>) -> Self {
        let state = WireState {
            input: ReadAhead::new(stream, Share::of(&buffers.ahead)),
            answers: AnswerShare::of(&buffers.answers),
            write_half: WriteHalf::Open,
            fault: None,
            large_head: false,
            stays: false,
            busy: false,
            used: true,
        };
        Self { state: Arc::new(Mutex::new(state)), heads: Arc::clone(&buffers.heads), place }
    }

    /// Returns true if the client begins with HTTP/2's first bytes. Decides at the first byte that
    /// differs.
    pub(crate) async fn speaks_http2(&self) -> bool {
        let decide = |bytes: &[u8]| match bytes.starts_with(PREFACE) {
            true => Some(true),
            false => (!PREFACE.starts_with(bytes)).then_some(false),
        };
        self.peek(decide).await == Some(true)
    }

    /// Reads ahead until `decide` returns a result from what has come; `None` if the client ends
    /// before. Nothing that was read is lost.
    pub(crate) async fn peek<T>(&self, mut decide: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        poll_fn(|cx| {
            let input = &mut lock(&self.state).input;
            loop {
                let decided = decide(input.bytes());
                if decided.is_some() || input.has_ended() {
                    return Poll::Ready(decided);
                }
                ready!(input.poll_fill(cx));
            }
        })
        .await
    }

    /// Marks the beginning of a call.
    pub(crate) fn begin(&self) -> ActiveCall {
        lock(&self.state).busy = true;
        ActiveCall { state: Arc::clone(&self.state) }
    }

    /// Returns true if the connection was used since the last time: a call was under way, or bytes
    /// were read.
    pub(super) fn take_used(&self) -> bool {
        let WireState { busy, used, .. } = &mut *lock(&self.state);
        mem::take(used) || *busy
    }

    /// Closes the connection as hyper would, over TLS with `close_notify`.
    pub(crate) async fn close(&self) {
        if let Err(error) = poll_fn(|cx| lock(&self.state).input.stream().poll_shutdown(cx)).await {
            tracing::debug!(%error, "a client closed its connection before the gate did");
        }
    }

    /// Shuts down writing if hyper has not: it leaves that to a tunnel, which a refused CONNECT does
    /// not get.
    pub(super) async fn end(&self) {
        let is_open = matches!(lock(&self.state).write_half, WriteHalf::Open);
        if is_open {
            lock(&self.state).write_half = WriteHalf::Closed { mid_request: true };
            self.close().await;
        }
    }

    /// Returns true if hyper has shut down writing but the client may still be sending: a part of
    /// its last request is missing, or there are unread bytes.
    pub(crate) fn has_unread(&self) -> bool {
        let WireState { input, write_half, fault, .. } = &*lock(&self.state);
        let WriteHalf::Closed { mid_request } = *write_half else { return false };
        (mid_request || fault.is_some() || !input.bytes().is_empty()) && !input.has_ended()
    }

    /// Reads and discards bytes. Returns true if there were any.
    pub(crate) async fn discard(&self, room: &mut [u8]) -> bool {
        poll_fn(|cx| lock(&self.state).input.poll_discard(cx, room)).await
    }

    /// Returns why the scanner refused bytes, if it did.
    pub(crate) fn fault(&self) -> Option<Fault> {
        lock(&self.state).fault
    }
}

// === impl ActiveCall ===

impl ActiveCall {
    /// Becomes ready when the client has hung up.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        lock(&self.state).input.poll_gone(cx)
    }

    /// Records that a request for another protocol or a tunnel was not granted: the bytes held back
    /// behind it belong to the next request.
    pub(crate) fn stay(&self) {
        let mut state = lock(&self.state);
        state.stays = true;
        state.input.wake_reader();
    }

    /// Returns true if a large head came: the connection should end with the answer, to free
    /// hyper's buffer.
    pub(super) fn had_large_head(&self) -> bool {
        lock(&self.state).large_head
    }

    /// Becomes ready when hyper may be given more of an answer; before that, it must write what it
    /// has.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        lock(&self.state).answers.poll_room(cx)
    }

    /// Counts bytes of an answer given to hyper.
    pub(crate) fn give(&self, bytes: usize) {
        lock(&self.state).answers.give(bytes);
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.busy = false;
        state.used = true;
        state.input.hang_up = None;
    }
}

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::proxy::guard::buffers::HeadShare;
    use crate::proxy::listener::read_ahead::{AHEAD, STEP};

    fn wire(stream: DuplexStream) -> Wire {
        Wire::unscanned(&WireHandle::new(Box::new(stream), &Buffers::default(), None))
    }

    fn handle_of(wire: &Wire) -> WireHandle {
        WireHandle { state: Arc::clone(&wire.state), heads: Arc::default(), place: None }
    }

    #[tokio::test]
    async fn what_was_read_ahead_is_not_lost_and_comes_in_order() {
        let (mut client, server) = duplex(16);
        let mut wire = wire(server);
        let handle = handle_of(&wire).begin();
        client.write_all(b"GET / HTTP").await.expect("room");
        assert!(!handle_of(&wire).speaks_http2().await);
        assert!(poll_fn(|cx| Poll::Ready(handle.poll_gone(cx))).await.is_pending());
        client.write_all(b"/1.1").await.expect("room");
        client.shutdown().await.expect("closes");
        poll_fn(|cx| handle.poll_gone(cx)).await;
        let mut read = Vec::new();
        wire.read_to_end(&mut read).await.expect("reads");
        assert_eq!(read, b"GET / HTTP/1.1");
    }

    #[tokio::test]
    async fn a_large_head_that_finds_no_room_is_refused_however_full_the_buffer_is() {
        let buffers = Buffers::default();
        let mut others = HeadShare::of(&buffers.heads);
        while others.grow(1 << 20, 0) {}
        let (mut client, server) = duplex(1 << 20);
        let mut wire = Wire::scanned(&WireHandle::new(Box::new(server), &buffers, None));
        let head = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(100_000));
        client.write_all(head.as_bytes()).await.expect("room");
        let (mut all, mut some) = (0, [0; 1000]);
        while let read @ 1.. = wire.read(&mut some).await.expect("reads") {
            all += read;
        }
        assert!(all < 70_000, "{all} bytes passed");
        assert_eq!(handle_of(&wire).fault(), Some(Fault::Crowded));
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken_by_what_the_watcher_read() {
        let (mut client, server) = duplex(64);
        let mut wire = wire(server);
        let handle = handle_of(&wire).begin();
        let reader = tokio::spawn(async move {
            let mut some = [0; 4];
            wire.read_exact(&mut some).await.map(|_| some)
        });
        tokio::task::yield_now().await;
        let watcher = tokio::spawn(async move { poll_fn(|cx| handle.poll_gone(cx)).await });
        tokio::task::yield_now().await;
        client.write_all(b"body").await.expect("room");
        assert_eq!(&reader.await.expect("no panic").expect("reads"), b"body");
        drop(client);
        watcher.await.expect("no panic");
    }

    #[tokio::test]
    async fn a_client_with_a_full_buffer_counts_as_there() {
        let (mut client, server) = duplex(2 * AHEAD);
        let wire = wire(server);
        client.write_all(&vec![0; AHEAD + STEP]).await.expect("room");
        drop(client);
        assert!(poll_fn(|cx| Poll::Ready(handle_of(&wire).begin().poll_gone(cx))).await.is_pending());
    }

    #[tokio::test]
    async fn the_preface_is_seen_in_pieces() {
        let (mut client, server) = duplex(64);
        let wire = wire(server);
        let speaks = tokio::spawn(async move { handle_of(&wire).speaks_http2().await });
        for piece in PREFACE.chunks(5) {
            client.write_all(piece).await.expect("room");
            tokio::task::yield_now().await;
        }
        assert!(speaks.await.expect("no panic"));
    }
}
