//! An HTTP connection, and its task.
//!
//! hyper's HTTP/2 connection is two futures. One reads frames; the other opens streams, and is not
//! woken when SETTINGS or a GOAWAY arrive. [`WakingExecutor`] wakes the second whenever the first
//! has run. So the number of streams is always exact, and a connection that is shutting down is
//! closed at once, not when the next call fails on it.

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
use crate::upstream::corked::{Cork, CorkedConnection, CorkedStream};
use crate::upstream::dial::{Dialer, Socket, certificate_alert};
use crate::upstream::error::DialFailure;
use crate::upstream::http1::{ConnectionDriver, Traffic, handshake};
use crate::upstream::stream_accounts::ConnectionId;
use crate::upstream::windows::{STREAMS, Window};

/// A new connection, not in the pool yet.
pub(super) struct NewConnection {
    /// The most streams on the connection.
    pub(super) limit: usize,
    pub(super) is_http2: bool,
    /// Starts a task to drive the connection and report changes to the pool.
    pub(super) start: Box<DriverStart>,
}

type DriverStart = dyn FnOnce(&Arc<Pool>, ConnectionId) -> Handle + Send;

/// An HTTP/2 connection, with the waker of its task.
pub(super) struct Http2 {
    connection: http2::Connection<TokioIo<CorkedStream<Socket>>, SentBody, WakingExecutor>,
    waker: Arc<AtomicWaker>,
    _window: Window,
}

/// The means to open streams on a connection in the pool.
pub(super) enum Handle {
    Http1 {
        /// Sends requests; `None` during a call.
        sender: Option<http1::SendRequest<SentBody>>,
        traffic: Arc<Traffic>,
        driver: AbortHandle,
        reused: bool,
    },
    Http2(http2::SendRequest<SentBody>),
}

/// Spawns the tasks of one HTTP/2 connection. The first is the reader of frames: after each of its
/// runs, the connection's driver is woken.
#[derive(Clone)]
struct WakingExecutor {
    waker: Arc<AtomicWaker>,
    /// The [`Cork`] of the stream, for the reader of frames.
    cork: Cork,
    /// Set once the first task, the reader of frames, is spawned.
    reader_spawned: Arc<AtomicBool>,
}

/// Makes a connection, and starts HTTP in the negotiated version.
pub(super) async fn connect(dialer: &Dialer, group: Group) -> Result<NewConnection, DialFailure> {
    let socket = dialer.connect(false).await?;
    if matches!(&socket, Socket::Right(tls) if tls.get_ref().1.alpn_protocol() == Some(b"h2")) {
        return handshake_http2(socket, dialer.windows.open(group)).await;
    }
    let traffic = Arc::new(Traffic::default());
    let (sender, connection) = handshake(socket, Arc::clone(&traffic)).await?;
    let connection = Box::new(connection);
    let start = move |pool: &Arc<Pool>, id| {
        let driving = drive_http1(connection, Arc::clone(&traffic), Arc::downgrade(pool), id);
        Handle::Http1 { sender: Some(sender), traffic, driver: tokio::spawn(driving).abort_handle(), reused: false }
    };
    Ok(NewConnection { limit: 1, is_http2: false, start: Box::new(start) })
}

async fn handshake_http2(socket: Socket, window: Window) -> Result<NewConnection, DialFailure> {
    let waker = Arc::new(AtomicWaker::new());
    let (stream, cork) = CorkedStream::new(socket);
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
    let mut connection = Box::new(Http2 { connection, waker, _window: window });
    let limit = poll_fn(|cx| match connection.poll(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(Err(DialFailure::ClosedAtOnce)),
        Poll::Ready(Err(error)) => Poll::Ready(Err(http_failure(error))),
        Poll::Pending if connection.limit() > 0 => Poll::Ready(Ok(connection.limit())),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    let start = move |pool: &Arc<Pool>, id| {
        tokio::spawn(connection.drive(Arc::downgrade(pool), id, limit));
        Handle::Http2(sender)
    };
    Ok(NewConnection { limit, is_http2: true, start: Box::new(start) })
}

/// Converts an HTTP error to a failure with advice for the user. A refused client certificate is
/// noticed only here, because a TLS 1.3 server reports it after the handshake.
fn http_failure(error: hyper::Error) -> DialFailure {
    certificate_alert(&error).map_or_else(|| DialFailure::Http(error), DialFailure::ClientCertificate)
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
    /// Drives the connection until it ends.
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

    /// Returns the most streams on the connection, as currently allowed by the server.
    fn limit(&self) -> usize {
        self.connection.current_max_send_streams().min(STREAMS as usize)
    }
}

/// Drives an HTTP/1.1 connection until it ends.
async fn drive_http1(
    mut connection: Box<ConnectionDriver<SentBody>>,
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

/// Removes a connection from the pool after its end.
fn ended(end: hyper::Result<()>, pool: &Weak<Pool>, id: ConnectionId) {
    if let Err(error) = end {
        tracing::debug!(%error, "a connection to the upstream broke");
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
        let mut future = CorkedConnection::new(future, self.cork.clone());
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

/// The longest list of headers, in bytes, the same as kube-apiserver's. With hyper's 16 KiB,
/// streams with long headers would be reset.
const MAX_HEADER_LIST: u32 = 1 << 20;
/// The time between pings. With the timeout, a dead connection is found within 45 s, as in
/// client-go.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long to wait for the answer to a ping before the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
