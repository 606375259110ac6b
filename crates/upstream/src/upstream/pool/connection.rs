//! A connection that speaks HTTP, and the task that drives it.
//!
//! hyper's HTTP/2 connection is two futures: one reads frames, the other hands out requests and is
//! not woken when SETTINGS or a GOAWAY arrive. [`WakingExecutor`] wakes the second whenever the
//! first has run. So the number of streams is exact, and a connection that is going away is retired
//! at once, not at the next call that fails on it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::AbortHandle;

use super::Pool;
use super::stream_lease::{Exclusive, SentBody, Stream, StreamUnit};
use crate::api::Group;
use crate::upstream::corked::{Cork, Corked, Uncorked};
use crate::upstream::dial::{Dialer, Socket, certificate_alert};
use crate::upstream::error::DialFailure;
use crate::upstream::http1::{Connection, Traffic, handshake};
use crate::upstream::stream_accounts::ConnectionId;
use crate::upstream::windows::{STREAMS, Window};

/// A connection that can take calls and is not yet registered. Its driver is boxed while it is
/// handed around: it is large.
pub(super) enum Established {
    Http1 { sender: http1::SendRequest<SentBody>, connection: Box<Connection<SentBody>>, traffic: Arc<Traffic> },
    Http2 { sender: http2::SendRequest<SentBody>, connection: Box<Http2>, limit: usize },
}

/// The half of an HTTP/2 connection that hands out requests, and its waker.
pub(super) struct Http2 {
    connection: http2::Connection<TokioIo<Corked<Socket>>, SentBody, WakingExecutor>,
    waker: Arc<AtomicWaker>,
    _window: Window,
}

/// A registered connection, to open streams on.
pub(super) enum Handle {
    Http1 {
        /// `None` while it serves a call.
        sender: Option<http1::SendRequest<SentBody>>,
        traffic: Arc<Traffic>,
        driver: AbortHandle,
        reused: bool,
    },
    Http2(http2::SendRequest<SentBody>),
}

/// Spawns the tasks of one HTTP/2 connection.
#[derive(Clone)]
struct WakingExecutor {
    waker: Arc<AtomicWaker>,
    /// That of the stream, to which the first task writes.
    cork: Cork,
    /// The first task is the one that reads frames.
    reader_spawned: Arc<AtomicBool>,
}

/// Dials, and begins HTTP in the version that the other side chose.
pub(super) async fn connect(dialer: &Dialer, group: Group) -> Result<Established, DialFailure> {
    let (socket, h2) = dialer.connect().await?;
    if h2 {
        return handshake_http2(socket, dialer.windows.open(group)).await;
    }
    let traffic = Arc::new(Traffic::default());
    let (sender, connection) = handshake(socket, Arc::clone(&traffic)).await?;
    Ok(Established::Http1 { sender, connection: Box::new(connection), traffic })
}

async fn handshake_http2(socket: Socket, window: Window) -> Result<Established, DialFailure> {
    let waker = Arc::new(AtomicWaker::new());
    let (stream, cork) = Corked::new(socket);
    let executor = WakingExecutor { waker: Arc::clone(&waker), cork, reader_spawned: Arc::default() };
    let (sender, connection) = http2::Builder::new(executor)
        .timer(TokioTimer::new())
        .initial_max_send_streams(0) // nothing may open before the server has said how many
        .initial_stream_window_size(window.stream())
        .initial_connection_window_size(window.connection)
        .max_header_list_size(MAX_HEADER_LIST)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
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

/// Names the cause. A refused client certificate shows only here: in TLS 1.3 the server answers it
/// after the handshake.
fn http_failure(error: hyper::Error) -> DialFailure {
    certificate_alert(&error).map_or_else(|| DialFailure::Http(error), DialFailure::ClientCertificate)
}

// === impl Established ===

impl Established {
    /// Returns the number of streams that it may have open.
    pub(super) fn limit(&self) -> usize {
        if let Self::Http2 { limit, .. } = self { *limit } else { 1 }
    }

    /// Starts the task that drives it and keeps the accounts of `pool` about it.
    pub(super) fn start(self, pool: &Arc<Pool>, id: ConnectionId) -> Handle {
        let pool = Arc::downgrade(pool);
        match self {
            Self::Http1 { sender, connection, traffic } => {
                let driver = tokio::spawn(drive_http1(connection, Arc::clone(&traffic), pool, id)).abort_handle();
                Handle::Http1 { sender: Some(sender), traffic, driver, reused: false }
            }
            Self::Http2 { sender, connection, limit } => {
                tokio::spawn(connection.drive(pool, id, limit));
                Handle::Http2(sender)
            }
        }
    }
}

// === impl Handle ===

impl Handle {
    /// Opens a stream; `None` if the connection has closed.
    pub(super) fn open(&mut self, pool: &Arc<Pool>, id: ConnectionId) -> Option<Stream> {
        match self {
            Self::Http1 { sender, traffic, reused, .. } => {
                let sender = Some(sender.take().filter(|sender| !sender.is_closed())?);
                let pool = Arc::clone(pool);
                let traffic = Arc::clone(traffic);
                Some(Stream::Http1(Exclusive { pool, id, sender, traffic, reused: *reused, busy: false }))
            }
            Self::Http2(sender) if sender.is_closed() => None,
            Self::Http2(sender) => {
                let unit = Arc::new(StreamUnit { pool: Arc::clone(pool), id });
                Some(Stream::Http2 { unit, sender: sender.clone() })
            }
        }
    }
}

// === impl Http2 ===

impl Http2 {
    /// Drives the connection to its end.
    async fn drive(mut self: Box<Self>, pool: Weak<Pool>, id: ConnectionId, mut limit: usize) {
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
        // dropped first: while it lives, senders do not see that it is closed
        drop(self);
        ended(end, &pool, id);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.waker.register(cx.waker());
        pin!(&mut self.connection).poll(cx)
    }

    /// Returns the number of streams that it may have open.
    fn limit(&self) -> usize {
        self.connection.current_max_send_streams().min(STREAMS as usize)
    }
}

/// Drives an HTTP/1.1 connection to its end.
async fn drive_http1(
    mut connection: Box<Connection<SentBody>>,
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
    drop(connection);
    traffic.end();
    ended(end, &pool, id);
}

/// Takes a connection that has ended out of the accounts.
fn ended(end: hyper::Result<()>, pool: &Weak<Pool>, id: ConnectionId) {
    if let Err(error) = end {
        tracing::debug!(%error, "upstream connection ended");
    }
    if let Some(pool) = pool.upgrade() {
        pool.gone(id);
    }
}

// === impl WakingExecutor ===

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for WakingExecutor {
    fn execute(&self, future: F) {
        // Boxed: hyper's future of a call has the room of a connection's, and would be moved
        // several times until it runs, and once more when it ends.
        let future = Box::pin(future);
        if self.reader_spawned.swap(true, Ordering::Relaxed) {
            tokio::spawn(future);
            return;
        }
        let mut future = Uncorked::new(future, self.cork.clone());
        let waker = Arc::clone(&self.waker);
        tokio::spawn(async move {
            poll_fn(|cx| {
                let poll = Pin::new(&mut future).poll(cx);
                waker.wake();
                poll
            })
            .await;
        });
    }
}

/// The longest headers. kube-apiserver has the same limit; hyper's 16 KiB would reset streams with
/// long headers.
const MAX_HEADER_LIST: u32 = 1 << 20;
/// The time between pings. As with client-go, a dead connection is found within 45 s.
const PING_EVERY: Duration = Duration::from_secs(30);
/// The time that an answer to a ping may take.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
