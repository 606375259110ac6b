//! The guard's byte half: a client's connection, read under the gate's own eye before hyper sees it.
//!
//! It is here for three reasons. hyper (1.12) stops reading an HTTP/1 connection while a call with unread body or pipelined bytes is being
//! answered, and so does not notice that the client has left (measured): [`ActiveCall::poll_gone`] reads ahead into a small buffer and does.
//! And what hyper silently forgives (a bare LF, Content-Length beside Transfer-Encoding) can only be seen here: [`Scanner`] looks at every
//! byte of HTTP/1 on its way, and where it finds fault hyper gets a byte that no parser takes. hyper then answers 400 in its turn, after
//! the answers that are still owed, and closes.
//!
//! And between calls it lets hyper go: hyper keeps a connection's buffers and the room for a call's future for as long as it has the connection,
//! 15 KiB where the socket needs one. So when nothing has come for a while hyper is told that the connection ended, and the [`WireHandle`] waits
//! alone; with the next byte hyper begins anew, and the client sees nothing of it. So it does, between two calls, when a head comes that hyper
//! is not [`Ready`] for.

mod handle;
mod pause;
mod writing;

use std::{
    fmt, io,
    mem::{self, MaybeUninit},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, ReadBuf, Take},
    time::Sleep,
};

pub(crate) use self::handle::{ActiveCall, WireHandle};
use self::pause::Pause;
use super::stream::{HangUp, Stream};
pub(crate) use crate::proxy::guard::scan::Ready;
use crate::{
    clock::timer,
    proxy::guard::{
        room::{HeadRoom, HeadShare},
        scan::{Examined, Fault, Rest, Scanner},
    },
    upstream::Trailing,
};

/// The connection as hyper reads and writes it.
pub(crate) struct Wire {
    shared: Arc<Mutex<State>>,
}

struct State {
    /// Read by [`READ`] bytes at a time.
    stream: Take<Box<dyn Stream>>,
    /// Looks at what comes in; `None` for HTTP/2, whose frames say where everything ends.
    heads: Option<Scanner>,
    /// What the upstream speaks has no upper case.
    lower_case: Arc<AtomicBool>,
    /// The next head waits for a hyper that is ready for it.
    turning: bool,
    /// What came last was replaced, perhaps by nothing.
    dropped: bool,
    /// What was wrong with it.
    fault: Option<Fault>,
    /// What its large heads hold.
    share: HeadShare,
    /// When a head that has begun must have come; none while there is no such head.
    patience: Option<Pin<Box<Sleep>>>,
    /// Read ahead of hyper.
    ahead: BytesMut,
    /// Examined, and changed on the way: hyper gets it before anything else.
    replaced: BytesMut,
    /// Tells that the client has left, while it has sent more than is read ahead.
    hang_up: Option<HangUp>,
    /// Nothing more will come.
    end: Option<End>,
    /// hyper, waiting to read.
    reader: Option<Waker>,
    /// hyper has a call whose answer it has not been given to its end.
    busy: bool,
    /// hyper has something to write, or to flush.
    unflushed: bool,
    /// A body that is not asked for more before hyper has written what it has.
    giver: Option<Waker>,
    /// Trailers that end the body which hyper is writing.
    trailing: Option<Box<Trailing>>,
    pause: Pause,
    /// hyper was told that the connection ended.
    resting: bool,
    /// hyper has shut down writing.
    said_goodbye: bool,
}

/// How reading ended.
enum End {
    Closed,
    /// hyper is told once, then sees the connection as closed.
    Failed(Option<io::Error>),
}

// === impl Wire ===

impl Wire {
    /// `lower_case`: how the client writes the names of its fields does not show upstream.
    pub(crate) fn new(stream: Box<dyn Stream>, room: HeadRoom, lower_case: Arc<AtomicBool>) -> Self {
        let (stream, share) = (stream.take(0), HeadShare::of(room));
        let (heads, fault, patience) = (None, None, None);
        let (ahead, replaced, trailing, giver) = (BytesMut::new(), BytesMut::new(), None, None);
        let (hang_up, end, reader, pause) = (None, None, None, Pause::Unknown);
        let (turning, dropped, busy, unflushed, resting, said_goodbye) = (false, false, false, false, false, false);
        #[rustfmt::skip]
        let state = State { stream, heads, lower_case, turning, dropped, fault, share, patience, ahead, replaced, hang_up, end, reader, busy, unflushed, giver, trailing, pause, resting, said_goodbye };
        Self { shared: Arc::new(Mutex::new(state)) }
    }

    /// From here on every byte is examined as HTTP/1.
    pub(crate) fn examine(&self) {
        let mut state = lock(&self.shared);
        state.heads = Some(Scanner::default());
        state.begin();
    }

    /// What hyper is to be ready for.
    pub(crate) fn ready(&self) -> Ready {
        lock(&self.shared).heads.as_ref().map_or(Ready::All, Scanner::ready)
    }

    /// The same connection for those who outlive hyper's use of it.
    pub(crate) fn line(&self) -> WireHandle {
        WireHandle { shared: Arc::clone(&self.shared) }
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

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

// === impl State ===

impl State {
    /// Gives hyper what was read ahead, then what comes, as far as it passes.
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        loop {
            let polled = self.poll_examined(cx, buf);
            take_from(&mut self.replaced, buf);
            // All that came may be of a target that is too long, and dropped.
            if !mem::take(&mut self.dropped) || buf.filled().len() > before || self.is_late(cx) {
                return polled;
            }
        }
    }

    /// Reads once. If nothing passes and nothing is awaited, `dropped` says so.
    fn poll_examined(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.fault.is_some() || !self.replaced.is_empty() {
            return Poll::Ready(Ok(())); // the end, or what was changed
        }
        if self.turning {
            return self.poll_turn(cx);
        }
        let before = buf.filled().len();
        if !self.ahead.is_empty() {
            let some = self.ahead.len().min(buf.remaining()).min(READ);
            buf.put_slice(self.ahead.get(..some).unwrap_or_default());
            let taken = self.examine(before, buf);
            self.ahead.advance(taken);
            if self.ahead.is_empty() {
                self.ahead = BytesMut::new(); // the usual connection holds no buffer of ours
            }
            return if buf.filled().len() > before || self.dropped { Poll::Ready(Ok(())) } else { self.poll_turn(cx) };
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
                match &mut self.pause {
                    Pause::Asked { stirred, .. } => *stirred = true,
                    pause => *pause = Pause::Unknown,
                }
                self.examine(before, buf);
                if buf.filled().len() == before && !self.dropped {
                    return self.poll_turn(cx); // all of it is held
                }
            }
            Poll::Ready(Err(error)) => {
                self.end = Some(End::Failed(None));
                return Poll::Ready(Err(error));
            }
            Poll::Pending => return self.poll_quiet(cx),
        }
        Poll::Ready(Ok(()))
    }

    /// Takes back from the buffer what must not pass, not yet, or not as it is; says how much is done with.
    fn examine(&mut self, before: usize, buf: &mut ReadBuf<'_>) -> usize {
        let read = buf.filled().get(before..).unwrap_or_default();
        let Some(heads) = &mut self.heads else { return read.len() };
        let mut examined = heads.examine(read, !self.lower_case.load(Ordering::Relaxed));
        if !heads.is_in_head() {
            self.patience = None;
            self.share.end();
        } else if !matches!(examined.rest, Rest::Replaced(_))
            && !self.share.grow(read.len())
            && examined.rest == Rest::None
        {
            examined = Examined { passed: 0, rest: Rest::Refused(Fault::Crowded) };
        }
        match examined.rest {
            Rest::None => {}
            Rest::Held | Rest::Unready => {
                self.turning = examined.rest == Rest::Unready;
                if self.ahead.is_empty() {
                    self.ahead.extend_from_slice(read.get(examined.passed..).unwrap_or_default());
                }
                buf.set_filled(before + examined.passed);
            }
            Rest::Replaced(taken) => {
                let done = examined.passed + taken;
                self.replaced.extend_from_slice(&heads.take_replaced());
                if self.ahead.is_empty() {
                    self.ahead.extend_from_slice(read.get(done..).unwrap_or_default());
                }
                buf.set_filled(before + examined.passed);
                self.dropped = true;
                return done;
            }
            Rest::Refused(fault) => {
                self.fault = Some(fault);
                buf.set_filled(before + examined.passed);
                buf.put_slice(b"\0"); // part of no head and of no chunk's size
            }
        }
        examined.passed
    }

    /// Nothing passes. If that is because hyper is not ready for it, hyper is let go as soon as it has nothing else to do.
    fn poll_turn(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.turning && !self.is_occupied() {
            self.resting = true;
            return Poll::Ready(Ok(()));
        }
        self.park(cx)
    }

    /// hyper begins, or begins anew.
    fn begin(&mut self) {
        self.resting = false;
        let is_turn = mem::take(&mut self.turning);
        if let Some(heads) = self.heads.as_mut().filter(|_| !is_turn) {
            heads.begin(&self.ahead, !self.lower_case.load(Ordering::Relaxed));
        }
    }

    /// Nothing comes. A head that has begun must come to its end; between calls hyper is let go; in bodies there is all the time in the world.
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.heads.as_ref().is_some_and(Scanner::is_in_head) {
            if self.is_late(cx) {
                return Poll::Ready(Ok(()));
            }
        } else if self.heads.as_ref().is_some_and(Scanner::is_between_requests) && self.poll_pause(cx).is_ready() {
            self.resting = true;
            return Poll::Ready(Ok(()));
        }
        self.park(cx)
    }

    /// Whether a head that has begun took too long: that is the end of it.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        let patience = self.patience.get_or_insert_with(|| timer(HEAD));
        let is_late = patience.as_mut().poll(cx).is_ready();
        if is_late {
            self.fault = Some(Fault::Slow);
        }
        is_late
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

/// Moves as much as there is room for.
fn take_from(bytes: &mut BytesMut, buf: &mut ReadBuf<'_>) {
    let some = bytes.len().min(buf.remaining());
    buf.put_slice(bytes.get(..some).unwrap_or_default());
    bytes.advance(some);
    if bytes.is_empty() {
        *bytes = BytesMut::new();
    }
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
    use std::{future::poll_fn, pin::pin};

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::{pause::PAUSE, *};

    #[tokio::test]
    async fn what_was_read_ahead_is_not_lost_and_comes_in_order() {
        let (mut client, server) = duplex(16);
        let mut wire = Wire::new(Box::new(server), HeadRoom::default(), Arc::default());
        let line = wire.line().begin();
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
        let wire = Wire::new(Box::new(server), HeadRoom::default(), Arc::default());
        assert!(poll_fn(|cx| Poll::Ready(wire.line().begin().poll_gone(cx))).await.is_pending());
        assert_eq!(lock(&wire.shared).ahead.capacity(), 0);
    }

    #[tokio::test]
    async fn a_large_head_that_finds_no_room_is_refused_however_full_the_buffer_is() {
        let room = HeadRoom::default();
        let mut others = HeadShare::of(room.clone());
        while others.grow(1 << 20) {}
        let (mut client, server) = duplex(1 << 20);
        let mut wire = Wire::new(Box::new(server), room, Arc::default());
        examine_all(&wire);
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
        let mut wire = Wire::new(Box::new(server), HeadRoom::default(), Arc::default());
        let line = wire.line().begin();
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
        let wire = Wire::new(Box::new(server), HeadRoom::default(), Arc::default());
        client.write_all(&vec![0; AHEAD + STEP]).await.expect("room");
        drop(client);
        assert!(poll_fn(|cx| Poll::Ready(wire.line().begin().poll_gone(cx))).await.is_pending());
    }

    /// As if the reader were hyper, ready for whatever comes.
    fn examine_all(wire: &Wire) {
        lock(&wire.shared).heads = Some(Scanner::default());
    }

    /// A connection on which so much came and was read.
    async fn after(bytes: &[u8]) -> (tokio::io::DuplexStream, Wire) {
        let (mut client, server) = duplex(1 << 10);
        let mut wire = Wire::new(Box::new(server), HeadRoom::default(), Arc::default());
        examine_all(&wire);
        client.write_all(bytes).await.expect("room");
        wire.read_exact(&mut vec![0; bytes.len()]).await.expect("reads");
        (client, wire)
    }

    const WHOLE: &[u8] = b"GET / HTTP/1.1\r\nX-a: a\r\n\r\n";

    #[tokio::test(start_paused = true)]
    async fn between_calls_the_reader_is_let_go_and_the_next_byte_brings_it_back() {
        let (mut client, mut wire) = after(WHOLE).await;
        let line = wire.line();
        for _ in 0..3 {
            assert!(!line.rests());
            assert_eq!(wire.read(&mut [0; 9]).await.expect("an end"), 0);
            assert!(line.rests());
            wire.shutdown().await.expect("nothing is shut");
            drop(wire);
            assert!(poll_fn(|cx| Poll::Ready(pin!(line.stirs()).poll(cx))).await.is_pending());
            client.write_all(WHOLE).await.expect("still open");
            wire = line.stirs().await.expect("more");
            let mut read = vec![0; WHOLE.len()];
            wire.read_exact(&mut read).await.expect("reads");
            assert_eq!(read, WHOLE);
        }
        wire.write_all(b"HTTP/1.1 200 OK\r\n").await.expect("still open");
        wire.flush().await.expect("open");
        assert_eq!(wire.read(&mut [0; 9]).await.expect("an end"), 0);
        drop(client);
        assert!(line.stirs().await.is_none());
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
            assert!(!wire.line().rests());
        };
        for begun in ["GET", "GET / HTTP/1.1\r\nHost", "PUT / HTTP/1.1\r\nContent-Length: 2\r\n\r\n1"] {
            let (_client, wire) = after(begun.as_bytes()).await;
            quiet(wire).await;
        }
        let (_client, wire) = after(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n").await;
        quiet(wire).await;
        let (_client, wire) = after(WHOLE).await;
        let busy = wire.line().begin();
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
        let mut wire = Wire::new(Box::new(server), HeadRoom::default(), Arc::default());
        client.write_all(USUAL).await.expect("room");
        assert!(!wire.speaks_http2().await);
        wire.examine();
        let line = wire.line();
        assert_eq!(wire.ready(), Ready::Usual);
        client.write_all(&[USUAL, WHOLE, USUAL].concat()).await.expect("room");
        let mut read = vec![0; 2 * USUAL.len()];
        wire.read_exact(&mut read).await.expect("reads");
        assert_eq!(read, [USUAL, USUAL].concat());

        let busy = line.begin();
        let mut reader = tokio::spawn(async move {
            let read = wire.read(&mut [0; 9]).await;
            (read, wire)
        });
        assert!(tokio::time::timeout(HEAD, &mut reader).await.is_err(), "a call is under way");
        drop(busy);
        let (read, wire) = tokio::time::timeout(HEAD, reader).await.expect("woken").expect("no panic");
        assert_eq!(read.expect("an end"), 0);
        assert!(line.rests());
        drop(wire);

        let mut wire = line.stirs().await.expect("what was held");
        assert_eq!(wire.ready(), Ready::All);
        let mut read = vec![0; WHOLE.len() + USUAL.len()];
        wire.read_exact(&mut read).await.expect("reads");
        assert_eq!(read, [WHOLE, USUAL].concat());

        assert_eq!(wire.read(&mut [0; 9]).await.expect("an end"), 0); // it rests for good reason
        client.write_all(USUAL).await.expect("open");
        let mut wire = line.stirs().await.expect("more");
        assert_eq!(wire.ready(), Ready::Usual);

        // It has less room than the head: there may be more to it.
        assert_eq!(wire.read(&mut [0; 9]).await.expect("an end"), 0);
        let mut wire = line.stirs().await.expect("what was held");
        assert_eq!(wire.ready(), Ready::All);
        let mut read = vec![0; USUAL.len()];
        wire.read_exact(&mut read).await.expect("reads");
        assert_eq!(read, USUAL);
    }

    #[tokio::test]
    async fn the_preface_is_seen_in_pieces() {
        let (mut client, server) = duplex(64);
        let wire = Wire::new(Box::new(server), HeadRoom::default(), Arc::default());
        let speaks = tokio::spawn(async move { wire.speaks_http2().await });
        for piece in PREFACE.chunks(5) {
            client.write_all(piece).await.expect("room");
            tokio::task::yield_now().await;
        }
        assert!(speaks.await.expect("no panic"));
    }
}
