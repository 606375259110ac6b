//! The admin port and the control socket: `/metrics`, `/livez`, `/readyz`, `/status`; the socket
//! also takes orders. No secret is shown, and nothing depends on the upstream.
//!
//! Readiness is a set of latches: each task that must finish first holds one, and the port says
//! "ready" when the last is dropped. An outage of the upstream never shows there, because it must
//! not take the pod's webhooks out of service.

// In the path of a call nothing may panic; every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

mod answer;
pub mod client;
pub mod control;
pub mod health;
mod readiness;
mod socket;

use std::{convert::Infallible, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    answer::{Handler, Origin},
    control::Operator,
    socket::Socket,
};
use crate::clock::Clock;

pub use self::{
    readiness::{Latch, Readiness},
    socket::SocketError,
};

/// The error of an admin port that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("admin port {address} cannot be opened")]
pub struct AdminError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// Serves clients that ask about the process or give it orders.
pub struct Admin {
    handler: Handler,
    clock: Clock,
    stop: CancellationToken,
    tasks: TaskTracker,
}

// === impl Admin ===

impl Admin {
    /// Creates a server that does not listen yet; `stop` ends it.
    #[must_use]
    pub fn new(readiness: Readiness, clock: Clock, stop: CancellationToken) -> Self {
        Self { handler: Handler { readiness, operator: Arc::default() }, clock, stop, tasks: TaskTracker::new() }
    }

    /// Sets the operator, which knows the gates; before, there are only metrics and health. Must be
    /// called only once.
    pub fn set_operator(&self, operator: Arc<dyn Operator>) {
        let first = self.handler.operator.set(operator).is_ok();
        debug_assert!(first, "there is one operator");
    }

    /// Opens the admin port and returns its address.
    ///
    /// # Errors
    /// The port cannot be opened.
    pub async fn listen(&self, listen: SocketAddr) -> Result<SocketAddr, AdminError> {
        let opened = async {
            let listener = TcpListener::bind(listen).await?;
            let address = listener.local_addr()?;
            io::Result::Ok((listener, address))
        };
        let (listener, address) = opened.await.map_err(|source| AdminError { address: listen, source })?;
        let server = self.server(Origin::Port);
        self.tasks.spawn(async move {
            while let Some(stream) = server.next(|| listener.accept()).await {
                server.serve(stream);
            }
        });
        Ok(address)
    }

    /// Opens the control socket.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub async fn listen_at(&self, path: &Path) -> Result<(), SocketError> {
        let socket = Socket::bind(path).await?;
        let server = self.server(Origin::Socket);
        self.tasks.spawn(async move {
            while let Some(stream) = server.next(|| socket.listener.accept()).await {
                server.serve(stream);
            }
        });
        Ok(())
    }

    /// Returns when everything is closed and the last answer is out.
    pub async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn server(&self, from: Origin) -> AdminServer {
        let Self { handler, clock, stop, tasks } = self;
        AdminServer { handler: handler.clone(), clock: *clock, stop: stop.clone(), tasks: tasks.clone(), from }
    }
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

/// Serves the connections of one origin.
struct AdminServer {
    handler: Handler,
    clock: Clock,
    stop: CancellationToken,
    tasks: TaskTracker,
    from: Origin,
}

// === impl AdminServer ===

impl AdminServer {
    /// Returns the next connection; `None` when it is time to stop.
    async fn next<S, A, F>(&self, mut accept: impl FnMut() -> F) -> Option<S>
    where
        F: Future<Output = io::Result<(S, A)>>,
    {
        loop {
            let accepted = tokio::select! {
                accepted = accept() => accepted,
                () = self.stop.cancelled() => return None,
            };
            match accepted {
                Ok((stream, _)) => return Some(stream),
                Err(error) => {
                    tracing::warn!(%error, "the admin port cannot accept");
                    self.clock.sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    /// Serves one connection in a task of its own.
    fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S) {
        let (handler, stop, from) = (self.handler.clone(), self.stop.clone(), self.from);
        self.tasks.spawn(async move {
            let answer = service_fn(move |request| {
                let handler = handler.clone();
                async move { Ok::<_, Infallible>(handler.answer(request, from).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .max_buf_size(SMALL)
                .serve_connection(TokioIo::new(stream), answer);
            let mut connection = std::pin::pin!(connection);
            let served = tokio::select! {
                served = connection.as_mut() => served,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = served {
                tracing::debug!(%error, "an admin connection ended");
            }
        });
    }
}

/// The time after which an idle connection is closed. Scrapers keep their connection between
/// scrapes, a minute apart.
const IDLE: Duration = Duration::from_secs(120);
/// The size of a connection's buffer. Requests here are one line, a few headers and a short body.
const SMALL: usize = 16 * 1024;
/// The pause after a failed accept. Without file descriptors left, some must be closed before the
/// next try.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::{client::NoAnswer, *};

    #[tokio::test]
    async fn health_asks_the_port_and_believes_it() {
        let readiness = Readiness::new();
        let (listeners, upstream) = (readiness.latch("listeners"), readiness.latch("upstream"));
        let stop = CancellationToken::new();
        let admin = Admin::new(readiness, Clock::start(), stop.clone());
        let address = admin.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a port");
        let refused = health::check(address).await.expect_err("not ready");
        assert!(refused.to_string().contains("waiting for listeners, upstream"), "{refused}");
        drop(listeners);
        let refused = health::check(address).await.expect_err("not ready");
        assert!(refused.to_string().contains("waiting for upstream"), "{refused}");
        drop(upstream);
        health::check(address).await.expect("ready");
        let status = client::At::Port(address).get("/status", Duration::from_secs(5)).await;
        assert!(matches!(status, Err(NoAnswer::Refused { status: 404, .. })), "there is no operator: {status:?}");
        stop.cancel();
        admin.finished().await;
        assert!(matches!(health::check(address).await, Err(health::Unhealthy::Unreachable { .. })));
    }
}
