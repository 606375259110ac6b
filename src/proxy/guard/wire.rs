//! The guard's byte half: a client's connection, read under the gate's own eye before hyper sees it.
//!
//! It is here for two reasons. hyper (1.12) stops reading an HTTP/1 connection while a call with unread body or pipelined bytes is being
//! answered, and so does not notice that the client has left (measured): [`Line::poll_gone`] reads ahead into a small buffer and does.
//! And what hyper silently forgives (a bare LF, Content-Length beside Transfer-Encoding) can only be seen here.

use std::{
    fmt, io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

/// The connection as hyper reads and writes it.
pub(crate) struct Wire<S> {
    shared: Arc<Mutex<State<S>>>,
}

/// The same connection as a waiting call watches it.
#[derive(Clone)]
pub(crate) struct Line {
    watched: Arc<dyn Watched>,
}

/// A connection of any kind, watched.
trait Watched: Send + Sync {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()>;
}

struct State<S> {
    stream: S,
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

// === impl Wire ===

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Wire<S> {
    pub(crate) fn new(stream: S) -> Self {
        let state = State { stream, ahead: BytesMut::new(), end: None, reader: None };
        Self { shared: Arc::new(Mutex::new(state)) }
    }

    /// The same connection for those who wait.
    pub(crate) fn line(&self) -> Line {
        Line { watched: Arc::clone(&self.shared) as Arc<dyn Watched> }
    }

    /// Whether the client begins with HTTP/2's preface; decided at the first byte that says so, and nothing is lost of what was read.
    pub(crate) async fn speaks_http2(&self) -> bool {
        std::future::poll_fn(|cx| {
            let mut state = lock(&self.shared);
            loop {
                let seen = state.ahead.len().min(PREFACE.len());
                if state.ahead[..seen] != PREFACE[..seen] || state.end.is_some() {
                    return Poll::Ready(false);
                }
                if seen == PREFACE.len() {
                    return Poll::Ready(true);
                }
                ready!(state.poll_read_ahead(cx));
            }
        })
        .await
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        lock(&self.shared).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut lock(&self.shared).stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.shared).stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.shared).stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut lock(&self.shared).stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.shared).stream.is_write_vectored()
    }
}

impl<S> fmt::Debug for Wire<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

// === impl Line ===

impl Line {
    /// Ready when the client has closed, half-closed or reset the connection. To be polled by the connection's own task only: there is one
    /// waker for reading. A client with more than [`AHEAD`] bytes unread cannot be watched any further and counts as there.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.watched.poll_gone(cx)
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Line")
    }
}

impl<S: AsyncRead + Unpin + Send> Watched for Mutex<State<S>> {
    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(self);
        while state.end.is_none() {
            if state.ahead.len() >= AHEAD {
                return Poll::Pending;
            }
            ready!(state.poll_read_ahead(cx));
        }
        Poll::Ready(())
    }
}

// === impl State ===

impl<S: AsyncRead + Unpin> State<S> {
    /// Gives hyper what was read ahead, then what comes.
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let some = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead[..some]);
            self.ahead.advance(some);
            if self.ahead.is_empty() {
                self.ahead = BytesMut::new(); // the usual connection holds no buffer of ours
            }
            return Poll::Ready(Ok(()));
        }
        match &mut self.end {
            Some(End::Closed) => return Poll::Ready(Ok(())),
            Some(End::Failed(error)) => return Poll::Ready(error.take().map_or(Ok(()), Err)),
            None => {}
        }
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) if buf.filled().len() == before && buf.remaining() > 0 => self.end = Some(End::Closed),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                self.end = Some(End::Failed(None));
                return Poll::Ready(Err(error));
            }
            Poll::Pending => {
                if !self.reader.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    self.reader = Some(cx.waker().clone());
                }
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once into the buffer, and wakes hyper if it waits for what came.
    fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.ahead.reserve(STEP);
        match ready!(poll_read_buf(Pin::new(&mut self.stream), cx, &mut self.ahead)) {
            Ok(0) => self.end = Some(End::Closed),
            Ok(_) => {}
            Err(error) => self.end = Some(End::Failed(Some(error))),
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Poll::Ready(())
    }
}

/// Nothing panics while it holds this lock, so a poisoned state is still a whole one.
fn lock<S>(shared: &Mutex<State<S>>) -> MutexGuard<'_, State<S>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an HTTP/2 client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Read ahead of hyper at most: enough for whatever a client pipelines, little beside the 3 MiB of a waiting body.
const AHEAD: usize = 64 * 1024;
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
        let mut wire = Wire::new(server);
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
    async fn a_reader_that_waits_is_woken_by_what_the_watcher_read() {
        let (mut client, server) = duplex(64);
        let mut wire = Wire::new(server);
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
        let wire = Wire::new(server);
        client.write_all(&vec![0; AHEAD + STEP]).await.expect("room");
        drop(client);
        assert!(poll_fn(|cx| Poll::Ready(wire.line().poll_gone(cx))).await.is_pending());
    }

    #[tokio::test]
    async fn the_preface_is_seen_in_pieces() {
        let (mut client, server) = duplex(64);
        let wire = Wire::new(server);
        let speaks = tokio::spawn(async move { wire.speaks_http2().await });
        for piece in PREFACE.chunks(5) {
            client.write_all(piece).await.expect("room");
            tokio::task::yield_now().await;
        }
        assert!(speaks.await.expect("no panic"));
    }
}
