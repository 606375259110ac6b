//! The admin port and the control socket: `/metrics`, `/livez`, `/readyz`, `/status`; the socket
//! also accepts commands. No secret is shown, and nothing depends on the upstream.
//!
//! The port says "ready" once all listeners are open. An outage of the upstream never shows there,
//! because it must not take the pod's webhooks out of service. Only the process's own user can open
//! the socket (0600).

// In the path of a call nothing may panic; every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

mod answer;
pub mod client;
pub mod control;
mod docs;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::answer::{Handler, Origin};
use self::control::Operator;
use crate::bind::{self, BindError, UnixSocket};
use crate::clock::Clock;
use crate::places::{self, Door, Place};

/// The server of the admin port and the control socket.
#[derive(Clone, derive_more::Debug)]
#[debug("Admin")]
pub struct Admin {
    handler: Handler,
    // The connections by origin: a storm from elsewhere takes none of this machine's.
    network: Arc<Door>,
    loopback: Arc<Door>,
    socket: Arc<Door>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

// === impl Admin ===

impl Admin {
    /// Creates a server listening nowhere yet; `stop` ends it.
    pub fn new(clock: Clock, stop: CancellationToken) -> Self {
        let door = |name: &str, most| Door::new(name, places::few(most), clock);
        Self {
            handler: Handler::default(),
            network: door("admin", FROM_ELSEWHERE),
            loopback: door("admin over loopback", FROM_HERE),
            socket: door("control socket", FROM_HERE),
            stop,
            tasks: TaskTracker::new(),
        }
    }

    /// Sets the source of status and the receiver of commands, once all listeners are open. Before
    /// that, only metrics and health are served, and the process is not ready.
    pub fn set_operator(&self, operator: Arc<dyn Operator>) {
        let first = self.handler.operator.set(operator).is_ok();
        debug_assert!(first, "there is one operator");
    }

    /// Opens the admin port and returns its address.
    ///
    /// # Errors
    /// The port cannot be opened.
    pub async fn listen(&self, listen: SocketAddr) -> Result<SocketAddr, BindError> {
        let failed = |error| BindError::new("the admin port", &listen, error);
        let listener = bind::tcp("admin", listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let admin = self.clone();
        self.tasks.spawn(async move {
            admin.accept(&admin.network, origin, async || Ok(listener.accept().await?.0)).await;
        });
        Ok(address)
    }

    /// Opens the control socket.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub async fn listen_at(&self, path: &Path) -> Result<(), BindError> {
        let bound = async {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            UnixSocket::bind(path, 0o600).await
        };
        let failed = |error| BindError::new("the control socket (admin.socket)", &path.display(), error);
        let socket = bound.await.map_err(failed)?;
        let admin = self.clone();
        self.tasks.spawn(async move {
            let origin = |_: &UnixStream| Origin::Socket;
            admin.accept(&admin.socket, origin, || socket.accept()).await;
        });
        Ok(())
    }

    /// Waits until every connection is closed and the last answer is sent.
    pub async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Accepts connections until the server is stopped, and serves each in a task of its own.
    /// `origin` returns from where a connection comes.
    async fn accept<S, F>(&self, door: &Door, origin: impl Fn(&S) -> Origin, accept: impl Fn() -> F)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = io::Result<S>>,
    {
        loop {
            let stream = tokio::select! {
                stream = door.accept(&accept) => stream,
                () = self.stop.cancelled() => return,
            };
            let from = origin(&stream);
            let door = match from {
                Origin::Network(_) => &self.network,
                Origin::Loopback => &self.loopback,
                Origin::Socket => &self.socket,
            };
            // No connection is busy here: the idlest goes.
            if let Some(place) = door.take() {
                let admin = self.clone();
                self.tasks.spawn(async move { place.serve(admin.serve(stream, from, &place)).await });
            }
        }
    }

    /// Serves one connection.
    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S, from: Origin, place: &Place) {
        let answer = service_fn(|request| {
            place.touch();
            async move { Ok::<_, Infallible>(self.handler.answer(request, from).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_buf_size(SMALL)
            .serve_connection(TokioIo::new(stream), answer);
        let connection = pin!(connection);
        let goodbye = self.stop.cancelled();
        let served = places::until_closing(connection, goodbye, |connection| connection.graceful_shutdown());
        if let Err(error) = served.await {
            tracing::debug!(%error, "an admin connection ended");
        }
    }
}

/// Returns whether a connection comes over loopback: both of its ends must be loopback addresses. A
/// mesh's proxy in the pod forwards calls of other machines from an address like 127.0.0.6, but not
/// to a loopback address.
fn origin(stream: &TcpStream) -> Origin {
    let ip = |end: io::Result<SocketAddr>| end.ok().map(|end| end.ip().to_canonical());
    match (ip(stream.peer_addr()), ip(stream.local_addr())) {
        (Some(peer), Some(local)) if peer.is_loopback() && local.is_loopback() => Origin::Loopback,
        (_, local) => Origin::Network(local),
    }
}

/// The most connections from other machines and pods, such as probes and scrapers.
const FROM_ELSEWHERE: usize = 48;
/// The most connections from this machine over loopback; the control socket accepts as many again.
const FROM_HERE: usize = 16;
/// The longest wait for a request head, and the longest idle time of a connection. A metrics
/// scraper simply connects again.
const IDLE: Duration = Duration::from_secs(10);
/// The size of a connection's buffer. Requests here are one line, a few headers and a short body.
const SMALL: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::client::{At, NoAnswer};
    use super::*;

    #[tokio::test]
    async fn health_asks_the_port_and_believes_it() {
        let stop = CancellationToken::new();
        let admin = Admin::new(Clock::start(), stop.clone());
        let address = admin.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
        let port = At::Port(address);
        let refused = port.health().await.expect_err("not ready");
        assert!(refused.to_string().contains("waiting for listeners"), "{refused}");
        let status = port.get("/status", Duration::from_secs(5)).await;
        assert!(matches!(status, Err(NoAnswer::Refused { status: 404, .. })), "there is no operator: {status:?}");
        stop.cancel();
        admin.finished().await;
        assert!(matches!(port.health().await, Err(NoAnswer::Unreachable { .. })));
    }
}
