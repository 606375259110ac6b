//! A client's connection in three hands: hyper, the task that serves it, and the call under way.
//!
//! Three jobs meet here, each with a state of its own: the scanner of the guard, which alone
//! decides on every byte of HTTP/1 ([`Filter`], hyper's own: no other task can reach it); reading
//! ahead ([`ReadAhead`]); and resting ([`Idle`]). Only the last two are shared with the
//! connection's task and with the call under way.

mod ending;
mod filter;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use self::ending::Ending;
use self::filter::Filter;
use super::idle::{Idle, Ready};
use super::read_ahead::ReadAhead;
use super::stream::{HangUp, Stream};
use crate::places::Place;
use crate::proxy::guard::buffers::{AheadShare, AnswerShare, Buffers};
use crate::proxy::guard::scan::Fault;
use crate::proxy::stack::Sent;
use crate::upstream::Trailing;

/// The connection as hyper reads and writes it.
pub(crate) struct Wire {
    shared: Arc<Mutex<Shared>>,
    /// Scans what comes in; `None` for HTTP/2, whose frames say where everything ends.
    filter: Option<Filter>,
}

/// The part of a connection that hyper, the connection's task and the call under way share.
struct Shared {
    input: ReadAhead,
    idle: Idle,
    /// The answers that hyper was given and has not written.
    answers: AnswerShare,
    /// The replacement for the last chunk that hyper writes, if there is one.
    ending: Option<Ending>,
    /// The fault of the bytes that were refused, the last that came.
    fault: Option<Fault>,
    /// A large head came: the connection ends with the answer, and hyper's buffer with it.
    large_head: bool,
    /// The answer to a call that asked for another protocol, until the scanner knows of it.
    switched: Option<bool>,
    /// hyper has shut down writing: true if the client had sent a part of a request by then.
    goodbye: Option<bool>,
}

/// The client has left: there is no one to answer.
#[derive(Debug, thiserror::Error)]
#[error("the client has left")]
pub(super) struct Gone;

/// The same connection, whether hyper has it or not.
#[derive(Clone)]
pub(crate) struct WireHandle {
    shared: Arc<Mutex<Shared>>,
    /// The place that it has at its door.
    pub(crate) place: Option<Arc<Place>>,
}

/// The same connection as the call sees it that is under way there; it does not rest before this is
/// dropped.
pub(crate) struct ActiveCall {
    shared: Arc<Mutex<Shared>>,
}

// === impl Wire ===

impl Wire {
    /// The connection for an HTTP/1 hyper that begins: every byte is scanned.
    pub(super) fn scanned(handle: &WireHandle) -> Self {
        let Shared { input, idle, answers, .. } = &mut *lock(&handle.shared);
        idle.begin(input.bytes());
        Self { shared: Arc::clone(&handle.shared), filter: Some(Filter::new(Arc::clone(&answers.all))) }
    }

    /// The connection for an HTTP/2 hyper, or for a tunnel.
    pub(crate) fn unscanned(handle: &WireHandle) -> Self {
        Self { shared: Arc::clone(&handle.shared), filter: None }
    }

    /// The heads for which hyper must be ready.
    pub(super) fn ready(&self) -> Ready {
        lock(&self.shared).idle.ready
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { shared, filter } = self.get_mut();
        let shared = &mut *lock(shared);
        if let Some(filter) = filter {
            return filter.poll_read(shared, cx, buf);
        }
        let (before, is_ahead) = (buf.filled().len(), !shared.input.bytes().is_empty());
        let Poll::Ready(read) = shared.input.poll_read(cx, buf) else { return shared.input.park(cx) };
        let read_all = buf.filled().get(before..).unwrap_or_default();
        shared.input.consume(is_ahead, read_all, read_all.len());
        Poll::Ready(read)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut shared = lock(&self.shared);
        match shared.poll_write_ending(cx, &[IoSlice::new(buf)]) {
            Some(written) => written,
            None => shared.input.stream().poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Shared { input, idle, answers, ending, .. } = &mut *lock(&self.shared);
        if let Some(Ending::Trailers(trailing)) = ending {
            ready!(trailing.poll_drain(input.stream(), cx))?;
            ending.take_if(|ending| ending.is_over());
        }
        let flushed = input.stream().poll_flush(cx);
        if flushed.is_ready() && idle.unflushed {
            idle.unflushed = false;
            answers.written();
            idle.release(input);
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = lock(&self.shared);
        if shared.idle.resting || matches!(shared.ending, Some(Ending::Outlasts(_))) {
            return Poll::Ready(Ok(()));
        }
        shared.goodbye = Some(self.filter.as_ref().is_some_and(|filter| !filter.scanner.is_between_requests()));
        shared.input.stream().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut shared = lock(&self.shared);
        match shared.poll_write_ending(cx, bufs) {
            Some(written) => written,
            None => shared.input.stream().poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.shared).input.stream().is_write_vectored()
    }
}

/// TLS inside of a connection whose beginning was plain.
impl Stream for TlsStream<Wire> {
    fn hang_up(&self) -> Option<HangUp> {
        lock(&self.get_ref().0.shared).input.stream().hang_up()
    }
}

// === impl WireHandle ===

impl WireHandle {
    /// Takes a connection. `lower_case` says that the upstream does not see how the client writes
    /// the names of fields.
    pub(crate) fn new(stream: Box<dyn Stream>, buffers: Arc<Buffers>, lower_case: Arc<AtomicBool>) -> Self {
        let shared = Shared {
            input: ReadAhead::new(stream, AheadShare::of(Arc::clone(&buffers))),
            idle: Idle::new(lower_case),
            answers: AnswerShare::of(buffers),
            ending: None,
            fault: None,
            large_head: false,
            switched: None,
            goodbye: None,
        };
        Self { shared: Arc::new(Mutex::new(shared)), place: None }
    }

    /// True if the client begins with HTTP/2's preface. This is decided at the first byte that
    /// tells, and nothing is lost of what was read.
    pub(crate) async fn speaks_http2(&self) -> bool {
        poll_fn(|cx| {
            let input = &mut lock(&self.shared).input;
            loop {
                if input.bytes().starts_with(PREFACE) {
                    return Poll::Ready(true);
                }
                if !PREFACE.starts_with(input.bytes()) || input.has_ended() {
                    return Poll::Ready(false);
                }
                ready!(input.poll_fill(cx));
            }
        })
        .await
    }

    /// Reads ahead until `decide` has decided by the bytes that have come; `None` if the client
    /// ends before that. Nothing is lost of what was read.
    pub(crate) async fn peek<T>(&self, mut decide: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        poll_fn(|cx| {
            let input = &mut lock(&self.shared).input;
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

    /// Takes this many of the bytes that were read ahead.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        let input = &mut lock(&self.shared).input;
        let taken = input.bytes().get(..bytes).unwrap_or_default().to_vec();
        input.consume(true, &taken, taken.len());
        taken
    }

    /// Notes that a call begins.
    pub(crate) fn begin(&self) -> ActiveCall {
        let idle = &mut lock(&self.shared).idle;
        idle.busy = true;
        idle.calls += 1;
        ActiveCall { shared: Arc::clone(&self.shared) }
    }

    /// Takes the rest of the answer that has outlasted hyper.
    pub(super) fn take_outlasting(&self) -> Option<Sent> {
        let Shared { idle, ending, .. } = &mut *lock(&self.shared);
        match ending.take_if(|ending| matches!(ending, Ending::Outlasts(_)))? {
            Ending::Outlasts(body) => {
                idle.turning = false; // nothing was declined
                Some(body)
            }
            Ending::Trailers(_) => None,
        }
    }

    /// Writes some of these bytes where hyper did, and flushes the connection when there are none.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Shared { input, idle, answers, .. } = &mut *lock(&self.shared);
        if !bytes.is_empty() {
            return input.stream().poll_write(cx, bytes);
        }
        ready!(input.stream().poll_flush(cx))?;
        idle.unflushed = false;
        answers.written();
        Poll::Ready(Ok(0))
    }

    /// True if hyper was let go for a rest, and not because the connection is over.
    pub(crate) fn rests(&self) -> bool {
        lock(&self.shared).idle.resting
    }

    /// Waits until there is something for a new hyper to read; false if nothing will come.
    pub(crate) async fn has_more(&self) -> bool {
        poll_fn(|cx| {
            let input = &mut lock(&self.shared).input;
            while input.bytes().is_empty() && !input.has_ended() {
                ready!(input.poll_fill(cx));
            }
            Poll::Ready(!input.bytes().is_empty())
        })
        .await
    }

    /// Ends the connection as hyper would: over TLS the client is told.
    pub(crate) async fn close(&self) {
        if let Err(error) = poll_fn(|cx| lock(&self.shared).input.stream().poll_shutdown(cx)).await {
            tracing::debug!(%error, "a client had left before its connection was closed");
        }
    }

    /// True if hyper has said goodbye to a client that may still be sending: it is between two
    /// requests neither by its bytes nor by ours.
    pub(crate) fn has_unread(&self) -> bool {
        let Shared { input, goodbye, fault, .. } = &*lock(&self.shared);
        let left = goodbye.map(|is_amid| is_amid || fault.is_some() || !input.bytes().is_empty());
        left.unwrap_or_default() && !input.has_ended()
    }

    /// Reads into `room` bytes that are discarded; true if there were any.
    pub(crate) async fn discard(&self, room: &mut [u8]) -> bool {
        poll_fn(|cx| lock(&self.shared).input.poll_discard(cx, room)).await
    }

    /// The fault of what came in.
    pub(crate) fn fault(&self) -> Option<Fault> {
        lock(&self.shared).fault
    }
}

// === impl ActiveCall ===

impl ActiveCall {
    /// Becomes ready when the client has hung up.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        lock(&self.shared).input.poll_gone(cx)
    }

    /// Notes the answer to a call that asked for another protocol: what was held back behind it is
    /// that protocol, or the next request.
    pub(crate) fn resolve(&self, switched: bool) {
        let mut shared = lock(&self.shared);
        shared.switched = Some(switched);
        shared.input.wake_reader();
    }

    /// Notes that hyper is given the head of the answer. True if a large head came on the
    /// connection: it should end with the answer, and hyper's buffer with it.
    pub(super) fn answer(&self) -> bool {
        let Shared { idle, large_head, .. } = &mut *lock(&self.shared);
        idle.unflushed = true;
        *large_head
    }

    /// Becomes ready when hyper may be given more of an answer; before that it must write what it
    /// has, as fast as the client reads.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        lock(&self.shared).answers.poll_room(cx)
    }

    /// Counts bytes more that hyper is given.
    pub(crate) fn give(&self, bytes: usize) {
        let Shared { idle, answers, .. } = &mut *lock(&self.shared);
        idle.unflushed = true;
        answers.give(bytes);
    }

    /// Has these trailers written at the end of the body, which is to end in the bytes that are
    /// returned; only in a body that is sent in chunks. None if there is nothing to write.
    pub(crate) fn trail(&self, trailers: &HeaderMap) -> Option<Bytes> {
        let (mark, trailing) = Trailing::new(trailers)?;
        lock(&self.shared).ending = Some(Ending::Trailers(trailing));
        Some(mark)
    }

    /// True if hyper has nothing to do but to wait for more of an answer: it may be let go before.
    pub(super) fn may_outlast(&self) -> bool {
        let Shared { idle, ending, fault, .. } = &*lock(&self.shared);
        idle.is_quiet() && ending.is_none() && fault.is_none()
    }

    /// Has the rest of an answer outlast hyper, which is to be told that the body has ended. Only
    /// for a body that is sent in chunks.
    pub(super) fn outlast(&self, rest: Sent) {
        let Shared { idle, ending, .. } = &mut *lock(&self.shared);
        *ending = Some(Ending::Outlasts(rest));
        (idle.turning, idle.unflushed) = (true, true); // hyper goes once it has written a last chunk
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        let Shared { input, idle, .. } = &mut *lock(&self.shared);
        idle.busy = false;
        input.hang_up = None;
        idle.release(input);
    }
}

// === impl Shared ===

impl Shared {
    /// Writes by way of what takes the place of the last chunk, if something does.
    fn poll_write_ending(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Option<Poll<io::Result<usize>>> {
        self.idle.unflushed = true;
        let written = self.ending.as_mut()?.poll_write(self.input.stream(), cx, bufs);
        self.ending.take_if(|ending| ending.is_over());
        Some(written)
    }
}

/// Takes the lock. Nothing panics while it holds it, so a poisoned state is still a whole one.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::filter::HEAD;
    use super::*;
    use crate::proxy::guard::buffers::HeadShare;
    use crate::proxy::listener::idle::PAUSE;
    use crate::proxy::listener::read_ahead::{AHEAD, STEP};

    fn wire(stream: DuplexStream) -> Wire {
        Wire::unscanned(&WireHandle::new(Box::new(stream), Arc::default(), Arc::default()))
    }

    fn handle_of(wire: &Wire) -> WireHandle {
        WireHandle { shared: Arc::clone(&wire.shared), place: None }
    }

    /// A new hyper begins with what comes next.
    async fn again(handle: &WireHandle) -> Option<Wire> {
        handle.has_more().await.then(|| Wire::scanned(handle))
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
        let buffers = Arc::<Buffers>::default();
        let mut others = HeadShare::of(Arc::clone(&buffers));
        while others.grow(1 << 20, 0) {}
        let (mut client, server) = duplex(1 << 20);
        let mut wire = scan_all(Wire::unscanned(&WireHandle::new(Box::new(server), buffers, Arc::default())));
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

    /// As if the reader were hyper, ready for whatever comes.
    fn scan_all(mut wire: Wire) -> Wire {
        let buffers = Arc::clone(&lock(&wire.shared).answers.all);
        wire.filter = Some(Filter::new(buffers));
        wire
    }

    /// A connection on which so much came and was read.
    async fn after(bytes: &[u8]) -> (DuplexStream, Wire) {
        let (mut client, server) = duplex(1 << 10);
        let mut wire = scan_all(wire(server));
        client.write_all(bytes).await.expect("room");
        wire.read_exact(&mut vec![0; bytes.len()]).await.expect("reads");
        (client, wire)
    }

    const WHOLE: &[u8] = b"GET / HTTP/1.1\r\nX-a: a\r\n\r\n";

    #[tokio::test(start_paused = true)]
    async fn between_calls_the_reader_is_let_go_and_the_next_byte_brings_it_back() {
        let (mut client, mut wire) = after(WHOLE).await;
        let handle = handle_of(&wire);
        for _ in 0..3 {
            assert!(!handle.rests());
            assert_eq!(wire.read(&mut [0; 9]).await.expect("an end"), 0);
            assert!(handle.rests());
            wire.shutdown().await.expect("nothing is shut");
            drop(wire);
            assert!(poll_fn(|cx| Poll::Ready(pin!(handle.has_more()).poll(cx))).await.is_pending());
            client.write_all(WHOLE).await.expect("still open");
            wire = again(&handle).await.expect("more");
            let mut read = vec![0; WHOLE.len()];
            wire.read_exact(&mut read).await.expect("reads");
            assert_eq!(read, WHOLE);
        }
        wire.write_all(b"HTTP/1.1 200 OK\r\n").await.expect("still open");
        wire.flush().await.expect("open");
        assert_eq!(wire.read(&mut [0; 9]).await.expect("an end"), 0);
        drop(client);
        assert!(again(&handle).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_not_let_go_at_every_call_but_once_nothing_came_for_a_while() {
        let (mut client, mut wire) = after(WHOLE).await;
        for _ in 0..20 {
            assert!(tokio::time::timeout(PAUSE / 2, wire.read(&mut [0; 9])).await.is_err());
            client.write_all(WHOLE).await.expect("open");
            wire.read_exact(&mut vec![0; WHOLE.len()]).await.expect("reads");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_has_something_is_not_let_go() {
        let quiet = |mut wire: Wire| async move {
            tokio::time::timeout(HEAD / 2, wire.read(&mut [0; 9])).await.expect_err("nothing to read");
            assert!(!handle_of(&wire).rests());
        };
        for begun in ["GET", "GET / HTTP/1.1\r\nHost", "PUT / HTTP/1.1\r\nContent-Length: 2\r\n\r\n1"] {
            let (_client, wire) = after(begun.as_bytes()).await;
            quiet(wire).await;
        }
        let (_client, wire) = after(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n").await;
        quiet(wire).await;
        let (_client, wire) = after(WHOLE).await;
        let busy = handle_of(&wire).begin();
        quiet(wire).await;
        drop(busy);
        let (_client, mut wire) = after(WHOLE).await;
        assert!(wire.write(b"not flushed").await.is_ok());
        quiet(wire).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_the_reader_is_not_ready_for_waits_for_one_who_is() {
        const USUAL: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let (mut client, server) = duplex(1 << 10);
        let wire = wire(server);
        client.write_all(USUAL).await.expect("room");
        assert!(!handle_of(&wire).speaks_http2().await);
        let handle = handle_of(&wire);
        let mut wire = Wire::scanned(&handle);
        assert_eq!(wire.ready(), Ready::Usual);
        client.write_all(&[USUAL, WHOLE, USUAL].concat()).await.expect("room");
        let mut read = vec![0; 2 * USUAL.len()];
        wire.read_exact(&mut read).await.expect("reads");
        assert_eq!(read, [USUAL, USUAL].concat());

        let busy = handle.begin();
        let mut reader = tokio::spawn(async move {
            let read = wire.read(&mut [0; 9]).await;
            (read, wire)
        });
        assert!(tokio::time::timeout(HEAD, &mut reader).await.is_err(), "a call is under way");
        drop(busy);
        let (read, wire) = tokio::time::timeout(HEAD, reader).await.expect("woken").expect("no panic");
        assert_eq!(read.expect("an end"), 0);
        assert!(handle.rests());
        drop(wire);

        let mut wire = again(&handle).await.expect("what was held");
        assert_eq!(wire.ready(), Ready::All);
        let mut read = vec![0; WHOLE.len() + USUAL.len()];
        wire.read_exact(&mut read).await.expect("reads");
        assert_eq!(read, [WHOLE, USUAL].concat());

        assert_eq!(wire.read(&mut [0; 9]).await.expect("an end"), 0); // it rests for good reason
        client.write_all(USUAL).await.expect("open");
        let mut wire = again(&handle).await.expect("more");
        assert_eq!(wire.ready(), Ready::Usual);

        // It has less room than the head: there may be more to it.
        assert_eq!(wire.read(&mut [0; 9]).await.expect("an end"), 0);
        let mut wire = again(&handle).await.expect("what was held");
        assert_eq!(wire.ready(), Ready::All);
        let mut read = vec![0; USUAL.len()];
        wire.read_exact(&mut read).await.expect("reads");
        assert_eq!(read, USUAL);
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
