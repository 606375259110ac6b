//! A connection established to HTTP, and the task that drives it.
//!
//! hyper's HTTP/2 connection is two futures: one reads frames, the other hands out requests and is not woken when SETTINGS or a GOAWAY
//! arrive. [`Wakeful`] wakes the second whenever the first has run, so that the number of streams is exact and a connection that is going
//! away is retired at once, not at the next call that fails on it.

use std::{
    future::poll_fn,
    io::{
        self,
        ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset},
    },
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::HeaderMap;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};

use crate::api::Group;
use crate::upstream::{
    body::Outgoing,
    dial::{Dialer, Socket, certificate_alert},
    error::DialFailure,
    pool::Pool,
    stream_accounts::ConnectionId,
    trailing::Trailing,
    upgrade::Open,
    windows::{STREAMS, Window},
};

/// A connection that can take calls, not yet in the accounts. Its driver is boxed while it is handed around: it is large.
pub(in crate::upstream) enum Established {
    Http1 { sender: http1::SendRequest<Outgoing>, connection: Box<Http1>, traffic: Arc<Traffic> },
    Http2 { sender: http2::SendRequest<Outgoing>, connection: Box<Http2>, limit: usize },
}

type Http1 = http1::Connection<TokioIo<Counted>, Outgoing>;

/// The half of an HTTP/2 connection that hands out requests, and what wakes it.
pub(in crate::upstream) struct Http2 {
    connection: http2::Connection<TokioIo<Socket>, Outgoing, Wakeful>,
    waker: Arc<AtomicWaker>,
    _window: Window,
}

/// What has gone over an HTTP/1.1 connection, in bytes: tells a request that was not sent, or not answered, from one that was.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Traffic {
    pub(in crate::upstream) read: AtomicU64,
    pub(in crate::upstream) written: AtomicU64,
    /// Its call is over, and the connection is to be used again once hyper is ready for it.
    pub(in crate::upstream) releasing: AtomicBool,
    /// The trailers of the request that is being sent.
    pub(in crate::upstream) trailing: Mutex<Option<Box<Trailing>>>,
    /// Whether there are any.
    pub(in crate::upstream) trails: AtomicBool,
    /// Counts it among the connections of upgrades.
    pub(in crate::upstream) open: Option<Open>,
}

/// A socket that counts, and is read by [`READ`] bytes at a time.
pub(in crate::upstream) struct Counted {
    socket: Take<Socket>,
    traffic: Arc<Traffic>,
    /// The upstream takes no more.
    is_deaf: bool,
}

/// Spawns the tasks of one HTTP/2 connection.
#[derive(Clone)]
pub(in crate::upstream) struct Wakeful {
    waker: Arc<AtomicWaker>,
    /// The first task is the one that reads frames.
    reader_spawned: Arc<AtomicBool>,
}

/// Dials and raises a connection.
pub(in crate::upstream) async fn connect(dialer: &Dialer, group: Group) -> Result<Established, DialFailure> {
    let connecting = async {
        let (socket, h2) = dialer.connect().await?;
        if h2 { handshake_http2(socket, dialer.windows().open(group)).await } else { handshake_http1(socket).await }
    };
    dialer.within(connecting).await
}

async fn handshake_http1(socket: Socket) -> Result<Established, DialFailure> {
    let traffic = Arc::new(Traffic::default());
    let io = TokioIo::new(Counted::new(socket, Arc::clone(&traffic)));
    let (sender, connection) = http1_builder().handshake(io).await.map_err(DialFailure::Http)?;
    Ok(Established::Http1 { sender, connection: Box::new(connection), traffic })
}

/// HTTP/1.1 as every connection here speaks it.
pub(in crate::upstream) fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD_BYTES).preserve_header_case(true);
    builder
}

async fn handshake_http2(socket: Socket, window: Window) -> Result<Established, DialFailure> {
    let waker = Arc::new(AtomicWaker::new());
    let spawner = Wakeful { waker: Arc::clone(&waker), reader_spawned: Arc::default() };
    let (sender, connection) = http2::Builder::new(spawner)
        .timer(TokioTimer::new())
        .initial_max_send_streams(0) // nothing may open before the server has said how many
        .initial_stream_window_size(window.stream())
        .initial_connection_window_size(window.connection())
        .max_header_list_size(MAX_HEADER_LIST)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(socket))
        .await
        .map_err(http_failure)?;
    let mut connection = Http2 { connection, waker, _window: window };
    let limit = poll_fn(|cx| match connection.poll(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(Err(DialFailure::ClosedAtOnce)),
        Poll::Ready(Err(error)) => Poll::Ready(Err(http_failure(error))),
        Poll::Pending if connection.limit() > 0 => Poll::Ready(Ok(connection.limit())),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    Ok(Established::Http2 { sender, connection: Box::new(connection), limit })
}

/// A refused client certificate shows only here: in TLS 1.3 the server answers it after the handshake.
fn http_failure(error: hyper::Error) -> DialFailure {
    certificate_alert(&error).map_or_else(|| DialFailure::Http(error), DialFailure::ClientCertificate)
}

// === impl Http2 ===

impl Http2 {
    /// Drives the connection to its end and keeps the accounts of `pool` about it.
    pub(in crate::upstream) async fn drive(mut self: Box<Self>, pool: Weak<Pool>, id: ConnectionId, mut limit: usize) {
        let end = poll_fn(|cx| {
            let poll = self.poll(cx);
            if poll.is_pending() && self.limit() != limit {
                limit = self.limit();
                if let Some(pool) = pool.upgrade() {
                    pool.set_limit(id, limit);
                }
            }
            poll
        })
        .await;
        if let Err(error) = end {
            tracing::debug!(%error, "upstream connection ended");
        }
        // dropped first: while it lives, senders do not see that it is closed
        drop(self);
        if let Some(pool) = pool.upgrade() {
            pool.gone(id);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.waker.register(cx.waker());
        pin!(&mut self.connection).poll(cx)
    }

    /// Streams it may have open.
    fn limit(&self) -> usize {
        self.connection.current_max_send_streams().min(STREAMS as usize)
    }
}

/// Drives an HTTP/1.1 connection to its end and keeps the accounts of `pool` about it.
pub(in crate::upstream) async fn drive_http1(
    mut connection: Box<Http1>,
    traffic: Arc<Traffic>,
    pool: Weak<Pool>,
    id: ConnectionId,
) {
    let end = poll_fn(|cx| {
        let poll = Pin::new(&mut connection).poll(cx);
        if poll.is_pending()
            && traffic.releasing.load(Ordering::SeqCst)
            && let Some(pool) = pool.upgrade()
        {
            pool.released(id);
        }
        poll
    })
    .await;
    if let Err(error) = end {
        tracing::debug!(%error, "upstream connection ended");
    }
    drop(connection);
    if let Some(pool) = pool.upgrade() {
        pool.gone(id);
    }
}

// === impl Wakeful ===

impl<F> hyper::rt::Executor<F> for Wakeful
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        if self.reader_spawned.swap(true, Ordering::Relaxed) {
            tokio::spawn(future);
            return;
        }
        let waker = Arc::clone(&self.waker);
        tokio::spawn(async move {
            let mut future = pin!(future);
            poll_fn(|cx| {
                let poll = future.as_mut().poll(cx);
                waker.wake();
                poll
            })
            .await;
        });
    }
}

// === impl Traffic ===

impl Traffic {
    /// Has these trailers written at the end of the request's body, which is to end in the bytes that are returned; only in a
    /// body that is sent in chunks. None if there is nothing to write.
    pub(in crate::upstream) fn trail(&self, trailers: &HeaderMap) -> Option<Bytes> {
        let (mark, trailing) = Trailing::new(trailers)?;
        *self.trailing.lock().unwrap_or_else(PoisonError::into_inner) = Some(trailing);
        self.trails.store(true, Ordering::Relaxed);
        Some(mark)
    }
}

// === impl Counted ===

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        self.socket.set_limit(READ);
        let poll = Pin::new(&mut self.socket).poll_read(cx, buf);
        self.traffic.read.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        poll
    }
}

impl Counted {
    pub(in crate::upstream) fn new(socket: Socket, traffic: Arc<Traffic>) -> Self {
        Self { socket: socket.take(READ), traffic, is_deaf: false }
    }

    fn poll_write_trailing(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let poll = self.poll_trailing(cx, bufs);
        self.wrote(poll, cx)
    }

    /// Writes by way of the trailers, until they have gone.
    fn poll_trailing(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut trailing = self.traffic.trailing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut socket = Pin::new(self.socket.get_mut());
        let Some(some) = trailing.as_mut() else { return socket.poll_write_vectored(cx, bufs) };
        let written = match bufs {
            [] => ready!(some.poll_drain(socket.as_mut(), cx)).map(|()| 0)?,
            bufs => ready!(some.poll_write(socket.as_mut(), cx, bufs))?,
        };
        if some.is_over() {
            *trailing = None;
            self.traffic.trails.store(false, Ordering::Relaxed);
        }
        Poll::Ready(Ok(written))
    }

    fn wrote(&mut self, poll: Poll<io::Result<usize>>, cx: &Context<'_>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &poll {
            self.traffic.written.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
        self.heard(poll, cx)
    }

    /// An upstream that takes no more may have answered before, and hyper would give that up for the error. So nothing is ever written
    /// again, and what there is to read says how it ends: with the answer, with the end, or with an error too.
    fn heard<T>(&mut self, poll: Poll<io::Result<T>>, cx: &Context<'_>) -> Poll<io::Result<T>> {
        match poll {
            Poll::Ready(Err(error))
                if self.traffic.open.is_none() // a tunnel ends with the first error
                    && matches!(error.kind(), BrokenPipe | ConnectionReset | ConnectionAborted) =>
            {
                self.is_deaf = true;
                cx.waker().wake_by_ref(); // hyper has looked for an answer before it wrote
                Poll::Pending
            }
            poll => poll,
        }
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_deaf {
            return Poll::Pending;
        }
        if self.traffic.trails.load(Ordering::Relaxed) {
            return self.poll_write_trailing(cx, &[io::IoSlice::new(buf)]);
        }
        let poll = Pin::new(self.socket.get_mut()).poll_write(cx, buf);
        self.wrote(poll, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_deaf {
            return Poll::Pending;
        }
        if self.traffic.trails.load(Ordering::Relaxed) {
            return self.poll_write_trailing(cx, bufs);
        }
        let poll = Pin::new(self.socket.get_mut()).poll_write_vectored(cx, bufs);
        self.wrote(poll, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_deaf {
            return Poll::Pending;
        }
        if self.traffic.trails.load(Ordering::Relaxed) {
            let poll = self.poll_trailing(cx, &[]);
            ready!(self.heard(poll, cx))?;
        }
        let poll = Pin::new(self.socket.get_mut()).poll_flush(cx);
        self.heard(poll, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.socket.get_mut()).poll_shutdown(cx)
    }
}

/// As kube-apiserver's own limit; hyper's 16 KiB would reset streams with long headers.
const MAX_HEADER_LIST: u32 = 1 << 20;
/// The same for HTTP/1.1, and a little for the status line.
const MAX_HEAD_BYTES: usize = (1 << 20) + (64 << 10);
/// hyper doubles its buffer whenever a read fills it, up to the megabyte that a head may have, and holds as many pieces as it reads: so a
/// client that does not read leaves a few hundred KiB of its answer here, and not a few MiB.
const READ: u64 = 16 << 10;
/// Lines of headers; hyper's default of 100 is fewer than real servers send.
const MAX_HEADERS: usize = 512;
/// As client-go: a dead connection is found within 45 s.
const PING_EVERY: Duration = Duration::from_secs(30);
/// See [`PING_EVERY`].
const PING_TIMEOUT: Duration = Duration::from_secs(15);
