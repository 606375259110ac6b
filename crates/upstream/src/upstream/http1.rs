//! HTTP/1.1 towards an upstream: its limits, and a socket with byte counts.

use std::io;
use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use http_body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};

use super::dial::Socket;
use super::error::DialFailure;

/// The future driving an HTTP/1.1 connection.
pub(super) type ConnectionDriver<B> = http1::Connection<TokioIo<CountedSocket>, B>;

/// The state of a connection, shared with its socket. The byte counts show whether any part of a
/// request was sent, or of a response received.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) read: AtomicU64,
    pub(super) written: AtomicU64,
    /// Set when the connection's call has ended. The next call may use it once hyper is ready.
    pub(super) releasing: AtomicBool,
    /// Counts the connection among those of upgrades, if it is one.
    pub(super) upgrade: Option<Arc<()>>,
    /// Set when the connection has ended and its driver was dropped.
    pub(super) over: AtomicBool,
    /// Wakes the call waiting for a response.
    pub(super) waiting: AtomicWaker,
}

/// A socket with byte counts. Each read is of at most [`READ`] bytes.
pub(super) struct CountedSocket {
    socket: Take<Socket>,
    traffic: Arc<Traffic>,
    /// Set once a write has failed.
    write_failed: bool,
}

/// Starts HTTP/1.1 on a socket.
pub(super) async fn handshake<B>(
    socket: Socket,
    traffic: Arc<Traffic>,
) -> Result<(http1::SendRequest<B>, ConnectionDriver<B>), DialFailure>
where
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let socket = CountedSocket { socket: socket.take(READ), traffic, write_failed: false };
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD_BYTES).preserve_header_case(true);
    builder.handshake(TokioIo::new(socket)).await.map_err(DialFailure::Http)
}

// === impl Traffic ===

impl Traffic {
    /// Records the end of the connection, once its driver was dropped.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.waiting.wake();
    }

    /// Returns true if the connection has ended. Otherwise its end will wake the task.
    pub(super) fn poll_over(&self, cx: &Context<'_>) -> bool {
        self.waiting.register(cx.waker());
        self.over.load(Ordering::Acquire)
    }
}

// === impl CountedSocket ===

impl AsyncRead for CountedSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        self.socket.set_limit(READ);
        let poll = Pin::new(&mut self.socket).poll_read(cx, buf);
        self.traffic.read.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        poll
    }
}

impl CountedSocket {
    /// Writes by calling `send`, and counts the bytes.
    fn write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        send: impl FnOnce(Pin<&mut Socket>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.write_failed {
            return Poll::Pending;
        }
        let poll = send(Pin::new(self.socket.get_mut()), cx);
        if let Poll::Ready(Ok(bytes)) = &poll {
            self.traffic.written.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
        self.await_answer(poll, cx)
    }

    /// Hides an error of writing, because the upstream may have responded before it.
    ///
    /// hyper would drop that response because of the error. After it nothing more is written.
    /// Reading shows how the connection ends: with the response, without one, or with an error.
    fn await_answer<T>(&mut self, poll: Poll<io::Result<T>>, cx: &Context<'_>) -> Poll<io::Result<T>> {
        match poll {
            Poll::Ready(Err(error))
                if self.traffic.upgrade.is_none() // a tunnel ends with the first error
                    && matches!(error.kind(), BrokenPipe | ConnectionReset | ConnectionAborted) =>
            {
                self.write_failed = true;
                cx.waker().wake_by_ref(); // hyper has looked for an answer before it wrote
                Poll::Pending
            }
            poll => poll,
        }
    }
}

impl AsyncWrite for CountedSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |socket, cx| socket.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |socket, cx| socket.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.write_failed {
            return Poll::Pending;
        }
        let poll = Pin::new(self.socket.get_mut()).poll_flush(cx);
        self.await_answer(poll, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.socket.get_mut()).poll_shutdown(cx)
    }
}

/// The largest head, in bytes: the 1 MiB of kube-apiserver's own limit, and some more for the
/// status line.
const MAX_HEAD_BYTES: usize = (1 << 20) + (64 << 10);
/// The most header lines; hyper's default of 100 is fewer than real servers send.
const MAX_HEADERS: usize = 512;
/// The most bytes of one read.
///
/// hyper doubles its buffer whenever a read fills it, up to the MiB of a head, and holds as many
/// pieces as it reads. With this limit, a client that does not read causes a few hundred KiB of its
/// response to be held here, and not a few MiB.
const READ: u64 = 16 << 10;
