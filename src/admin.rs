//! The admin port: `/metrics`, `/livez`, `/readyz`. Read-only, no secrets, and independent of the upstream.
//!
//! Readiness is a set of latches: whoever must finish something first holds one, and the port says "ready" when the last is dropped. An
//! outage of the upstream never shows here, because it must not take the pod's webhooks out of service.

pub mod health;
mod readiness;

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{clock::Clock, telemetry};

pub use self::readiness::{Latch, Readiness};

/// The admin port could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("admin port {address} cannot be opened")]
pub struct AdminError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// The admin port, open.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    tasks: TaskTracker,
}

// === impl Admin ===

impl Admin {
    /// Opens the port and serves until `stop`.
    ///
    /// # Errors
    /// When the port cannot be opened.
    pub async fn start(
        listen: SocketAddr,
        readiness: Readiness,
        clock: Clock,
        stop: CancellationToken,
    ) -> Result<Self, AdminError> {
        let opened = async {
            let listener = TcpListener::bind(listen).await?;
            let address = listener.local_addr()?;
            io::Result::Ok((listener, address))
        };
        let (listener, address) = opened.await.map_err(|source| AdminError { address: listen, source })?;
        let tasks = TaskTracker::new();
        tasks.spawn(accept(listener, readiness, clock, stop, tasks.clone()));
        Ok(Self { address, tasks })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns when the port is closed and its last answer is out.
    pub async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Accepts until `stop`.
async fn accept(
    listener: TcpListener,
    readiness: Readiness,
    clock: Clock,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                tasks.spawn(serve(stream, readiness.clone(), stop.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "the admin port cannot accept");
                clock.sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Serves one connection.
async fn serve(stream: TcpStream, readiness: Readiness, stop: CancellationToken) {
    let answer_one = service_fn(move |request: Request<Incoming>| {
        let response = answer(request.method(), request.uri().path(), &readiness);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_buf_size(SMALL)
            .serve_connection(TokioIo::new(stream), answer_one)
    );
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
}

/// The answer to a request.
fn answer(method: &Method, path: &str, readiness: &Readiness) -> Response<Full<Bytes>> {
    if method != Method::GET && method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD here\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/livez" => text(StatusCode::OK, "ok\n"),
        "/metrics" => {
            let mut response = text(StatusCode::OK, telemetry::metrics().render());
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROMETHEUS));
            response
        }
        "/readyz" => match readiness.waiting_for() {
            waiting if waiting.is_empty() => text(StatusCode::OK, "ok\n"),
            waiting => text(StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", waiting.join(", "))),
        },
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /livez and /readyz here\n"),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Prometheus' text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Scrapers keep their connection between scrapes, a minute apart.
const IDLE: Duration = Duration::from_secs(120);
/// Requests here are one line and a few headers.
const SMALL: usize = 16 * 1024;
/// Out of file descriptors: let some be closed before trying again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: &Method, path: &str, readiness: &Readiness) -> u16 {
        answer(method, path, readiness).status().as_u16()
    }

    #[test]
    fn ready_when_the_last_latch_is_dropped() {
        let readiness = Readiness::new();
        let (listeners, upstream) = (readiness.latch("listeners"), readiness.latch("upstream"));
        assert_eq!(status(&Method::GET, "/readyz", &readiness), 503);
        drop(listeners);
        assert_eq!(readiness.waiting_for(), ["upstream"]);
        drop(upstream);
        assert_eq!(status(&Method::GET, "/readyz", &readiness), 200);
        assert_eq!(status(&Method::GET, "/livez", &readiness), 200);
    }

    #[test]
    fn nothing_else_is_there_and_nothing_can_be_changed() {
        let readiness = Readiness::new();
        assert_eq!(status(&Method::POST, "/metrics", &readiness), 405);
        for path in ["/", "/debug/pprof", "/config", "/metrics/", "/env.json"] {
            assert_eq!(status(&Method::GET, path, &readiness), 404, "{path}");
        }
    }

    #[tokio::test]
    async fn health_asks_the_port_and_believes_it() {
        let readiness = Readiness::new();
        let latch = readiness.latch("listeners");
        let stop = CancellationToken::new();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let admin = Admin::start(any, readiness, Clock::start(), stop.clone()).await.expect("a port");
        let refused = health::check(admin.address()).await.expect_err("not ready");
        assert!(refused.to_string().contains("waiting for listeners"), "{refused}");
        drop(latch);
        health::check(admin.address()).await.expect("ready");
        stop.cancel();
        admin.finished().await;
        assert!(matches!(health::check(admin.address()).await, Err(health::Unhealthy::Unreachable { .. })));
    }
}
