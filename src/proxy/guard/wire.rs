//! The guard's byte half: a client's connection, read under the gate's own eye before hyper sees it.
//!
//! It is here for two reasons. hyper (1.12) stops reading an HTTP/1 connection while a call with unread body or pipelined bytes is being
//! answered, and so does not notice that the client has left (measured): [`Line::poll_gone`] reads ahead into a small buffer and does.
//! And what hyper silently forgives (a bare LF, Content-Length beside Transfer-Encoding) can only be seen here: [`Heads`] looks at every
//! byte of HTTP/1 on its way, and where it finds fault hyper gets a byte that no parser takes. hyper then answers 400 in its turn, after
//! the answers that are still owed, and closes.

use std::{
    fmt, io,
    mem::MaybeUninit,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take},
    time::{Sleep, sleep},
};

use super::{
    heads::{Examined, Fault, Heads, Rest},
    room::{HeadRoom, HeadShare},
};

/// A client's connection of whatever kind. Behind a box, so that everything above it is there once and not once for each kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

/// The connection as hyper reads and writes it.
pub(crate) struct Wire {
    shared: Arc<Mutex<State>>,
}

/// The same connection as a waiting call watches it.
#[derive(Clone)]
pub(crate) struct Line {
    shared: Arc<Mutex<State>>,
}

struct State {
    /// Read by [`READ`] bytes at a time.
    stream: Take<Box<dyn Stream>>,
    /// Looks at what comes in; `None` for HTTP/2, whose frames say where everything ends.
    heads: Option<Heads>,
    /// What was wrong with it.
    fault: Option<Fault>,
    /// What its large heads hold.
    share: HeadShare,
    /// When a head that has begun must have come; none while there is no such head.
    patience: Option<Pin<Box<Sleep>>>,
    /// Read ahead of hyper.
    ahead: BytesMut,
    /// Nothing more will come.
    end: Option<End>,
    /// hyper, waiting to read.
    reader: Option<Waker>,
}

/// How reading ended.
enum End {
    Closed,
    /// hyper is told once, then sees the connection as closed.
    Failed(Option<io::Error>),
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

// === impl Wire ===

impl Wire {
    pub(crate) fn new(stream: Box<dyn Stream>, room: HeadRoom) -> Self {
        let (stream, share) = (stream.take(0), HeadShare::of(room));
        let (heads, fault, patience, ahead) = (None, None, None, BytesMut::new());
        let state = State { stream, heads, fault, share, patience, ahead, end: None, reader: None };
        Self { shared: Arc::new(Mutex::new(state)) }
    }

    /// From here on every byte is examined as HTTP/1.
    pub(crate) fn examine(&self) {
        lock(&self.shared).heads = Some(Heads::default());
    }

    /// The same connection for those who wait.
    pub(crate) fn line(&self) -> Line {
        Line { shared: Arc::clone(&self.shared) }
    }

    /// Whether the client begins with HTTP/2's preface; decided at the first byte that says so, and nothing is lost of what was read.
    pub(crate) async fn speaks_http2(&self) -> bool {
        std::future::poll_fn(|cx| {
            let mut state = lock(&self.shared);
            loop {
                if state.ahead.starts_with(PREFACE) {
                    return Poll::Ready(true);
                }
                if !PREFACE.starts_with(&state.ahead) || state.end.is_some() {
                    return Poll::Ready(false);
                }
                ready!(state.poll_read_ahead(cx));
            }
        })
        .await
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        lock(&self.shared).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(lock(&self.shared).stream.get_mut()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(lock(&self.shared).stream.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(lock(&self.shared).stream.get_mut()).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(lock(&self.shared).stream.get_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.shared).stream.get_ref().is_write_vectored()
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

// === impl Line ===

impl Line {
    /// Ready when the client has closed, half-closed or reset the connection. To be polled by the connection's own task only: there is one
    /// waker for reading. A client with more than [`AHEAD`] bytes unread cannot be watched any further and counts as there.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.shared);
        while state.end.is_none() {
            if state.ahead.len() >= AHEAD {
                return Poll::Pending;
            }
            ready!(state.poll_read_ahead(cx));
        }
        Poll::Ready(())
    }

    /// A call that asked for another protocol has its answer: what was held back behind it is that protocol, or the next request.
    pub(crate) fn resolve(&self, switched: bool) {
        let mut state = lock(&self.shared);
        if let Some(heads) = &mut state.heads {
            heads.resolve(switched);
        }
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// Whether a large head came on it: it should end with the answer, and the buffer with it.
    pub(crate) fn had_large_head(&self) -> bool {
        lock(&self.shared).share.is_taken()
    }

    /// What was wrong with what came in.
    pub(crate) fn fault(&self) -> Option<Fault> {
        lock(&self.shared).fault
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Line")
    }
}

// === impl State ===

impl State {
    /// Gives hyper what was read ahead, then what comes, as far as it passes.
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.fault.is_some() {
            return Poll::Ready(Ok(())); // the end
        }
        let before = buf.filled().len();
        if !self.ahead.is_empty() {
            let some = self.ahead.len().min(buf.remaining()).min(READ);
            buf.put_slice(self.ahead.get(..some).unwrap_or_default());
            let passed = self.examine(before, buf);
            self.ahead.advance(passed);
            if self.ahead.is_empty() {
                self.ahead = BytesMut::new(); // the usual connection holds no buffer of ours
            }
            return if buf.filled().len() > before { Poll::Ready(Ok(())) } else { self.park(cx) };
        }
        match &mut self.end {
            Some(End::Closed) => return Poll::Ready(Ok(())),
            Some(End::Failed(error)) => return Poll::Ready(error.take().map_or(Ok(()), Err)),
            None => {}
        }
        self.stream.set_limit(READ as u64);
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) if buf.filled().len() == before && buf.remaining() > 0 => self.end = Some(End::Closed),
            Poll::Ready(Ok(())) => {
                self.examine(before, buf);
                if buf.filled().len() == before {
                    return self.park(cx); // all of it is held
                }
            }
            Poll::Ready(Err(error)) => {
                self.end = Some(End::Failed(None));
                return Poll::Ready(Err(error));
            }
            Poll::Pending => return self.poll_patience(cx),
        }
        Poll::Ready(Ok(()))
    }

    /// Takes back from the buffer what must not pass, or not yet; says how much passed.
    fn examine(&mut self, before: usize, buf: &mut ReadBuf<'_>) -> usize {
        let read = buf.filled().get(before..).unwrap_or_default();
        let Some(heads) = &mut self.heads else { return read.len() };
        let mut examined = heads.examine(read);
        if !heads.is_in_head() {
            self.patience = None;
            self.share.end();
        } else if !self.share.grow(read.len()) && examined.rest == Rest::None {
            examined = Examined { passed: 0, rest: Rest::Refused(Fault::Crowded) };
        }
        match examined.rest {
            Rest::None => {}
            Rest::Held => {
                if self.ahead.is_empty() {
                    self.ahead.extend_from_slice(read.get(examined.passed..).unwrap_or_default());
                }
                buf.set_filled(before + examined.passed);
            }
            Rest::Refused(fault) => {
                self.fault = Some(fault);
                buf.set_filled(before + examined.passed);
                buf.put_slice(b"\0"); // part of no head and of no chunk's size
            }
        }
        examined.passed
    }

    /// Nothing comes. A head that has begun must come to its end; between heads there is all the time in the world, and in bodies.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.heads.as_ref().is_some_and(Heads::is_in_head) {
            let patience = self.patience.get_or_insert_with(patience);
            if patience.as_mut().poll(cx).is_ready() {
                self.fault = Some(Fault::Slow);
                return Poll::Ready(Ok(()));
            }
        }
        self.park(cx)
    }

    /// hyper waits to read.
    fn park(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if !self.reader.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.reader = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Reads once into the buffer, and wakes hyper if it waits for what came.
    fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut step = [const { MaybeUninit::uninit() }; STEP]; // on the stack: a client that sends nothing holds no buffer
        let mut read = ReadBuf::uninit(&mut step);
        self.stream.set_limit(READ as u64);
        match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read)) {
            Ok(()) if read.filled().is_empty() => self.end = Some(End::Closed),
            Ok(()) => self.ahead.extend_from_slice(read.filled()),
            Err(error) => self.end = Some(End::Failed(Some(error))),
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(())
    }
}

/// Until a head that has begun must have come.
fn patience() -> Pin<Box<Sleep>> {
    #[expect(
        clippy::disallowed_methods,
        reason = "below everything that has a clock; it ends a connection and decides no call"
    )]
    Box::pin(sleep(HEAD))
}

/// Nothing panics while it holds this lock, so a poisoned state is still a whole one.
fn lock(shared: &Mutex<State>) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an HTTP/2 client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Read at once at most. hyper doubles its buffer whenever a read fills it, up to the megabyte that a head may have: so a body stays at 32 KiB.
const READ: usize = 16 * 1024;
/// Read ahead of hyper at most: enough for whatever a client pipelines, little beside the 3 MiB of a waiting body.
const AHEAD: usize = 64 * 1024;
/// From the first byte of a head to its last; kube-apiserver waits 32 s.
const HEAD: Duration = Duration::from_secs(30);
/// One read ahead: a request's head fits.
const STEP: usize = 4096;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn what_was_read_ahead_is_not_lost_and_comes_in_order() {
        let (mut client, server) = duplex(16);
        let mut wire = Wire::new(Box::new(server), HeadRoom::default());
        let line = wire.line();
        client.write_all(b"GET / HTTP").await.expect("room");
        assert!(!wire.speaks_http2().await);
        assert!(poll_fn(|cx| Poll::Ready(line.poll_gone(cx))).await.is_pending());
        client.write_all(b"/1.1").await.expect("room");
        client.shutdown().await.expect("closes");
        poll_fn(|cx| line.poll_gone(cx)).await;
        let mut read = Vec::new();
        wire.read_to_end(&mut read).await.expect("reads");
        assert_eq!(read, b"GET / HTTP/1.1");
    }

    #[tokio::test]
    async fn a_client_that_sends_nothing_holds_no_buffer() {
        let (_client, server) = duplex(16);
        let wire = Wire::new(Box::new(server), HeadRoom::default());
        assert!(poll_fn(|cx| Poll::Ready(wire.line().poll_gone(cx))).await.is_pending());
        assert_eq!(lock(&wire.shared).ahead.capacity(), 0);
    }

    #[tokio::test]
    async fn a_large_head_that_finds_no_room_is_refused_however_full_the_buffer_is() {
        let room = HeadRoom::default();
        let mut others = HeadShare::of(room.clone());
        while others.grow(1 << 20) {}
        let (mut client, server) = duplex(1 << 20);
        let mut wire = Wire::new(Box::new(server), room);
        wire.examine();
        let head = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(100_000));
        client.write_all(head.as_bytes()).await.expect("room");
        let (mut all, mut some) = (0, [0; 1000]);
        while let read @ 1.. = wire.read(&mut some).await.expect("reads") {
            all += read;
        }
        assert!(all < 70_000, "{all} bytes passed");
        assert_eq!(wire.line().fault(), Some(Fault::Crowded));
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken_by_what_the_watcher_read() {
        let (mut client, server) = duplex(64);
        let mut wire = Wire::new(Box::new(server), HeadRoom::default());
        let line = wire.line();
        let reader = tokio::spawn(async move {
            let mut some = [0; 4];
            wire.read_exact(&mut some).await.map(|_| some)
        });
        tokio::task::yield_now().await;
        let watcher = tokio::spawn(async move { poll_fn(|cx| line.poll_gone(cx)).await });
        tokio::task::yield_now().await;
        client.write_all(b"body").await.expect("room");
        assert_eq!(&reader.await.expect("no panic").expect("reads"), b"body");
        drop(client);
        watcher.await.expect("no panic");
    }

    #[tokio::test]
    async fn a_client_with_a_full_buffer_counts_as_there() {
        let (mut client, server) = duplex(2 * AHEAD);
        let wire = Wire::new(Box::new(server), HeadRoom::default());
        client.write_all(&vec![0; AHEAD + STEP]).await.expect("room");
        drop(client);
        assert!(poll_fn(|cx| Poll::Ready(wire.line().poll_gone(cx))).await.is_pending());
    }

    #[tokio::test]
    async fn the_preface_is_seen_in_pieces() {
        let (mut client, server) = duplex(64);
        let wire = Wire::new(Box::new(server), HeadRoom::default());
        let speaks = tokio::spawn(async move { wire.speaks_http2().await });
        for piece in PREFACE.chunks(5) {
            client.write_all(piece).await.expect("room");
            tokio::task::yield_now().await;
        }
        assert!(speaks.await.expect("no panic"));
    }
}
