//! The HTTPS server that the API server calls.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::certificate::Certificate;
use super::{Settings, review};
use crate::body;
use crate::clock::Clock;

/// The port that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the webhook cannot listen on {address}; choose another address with --listen")]
pub struct ListenError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// A webhook that listens.
#[derive(Clone, derive_more::Debug)]
#[debug("Server({address})")]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    listener: TcpListener,
    settings: Settings,
    certificate: Certificate,
    connections: Arc<Semaphore>,
    clock: Clock,
    tasks: TaskTracker,
    /// It stops: readiness says no.
    stopping: AtomicBool,
    /// Connections say goodbye.
    closing: CancellationToken,
}

// === impl Server ===

impl Server {
    /// Opens the port.
    ///
    /// # Errors
    /// It cannot be opened.
    pub async fn bind(settings: Settings, certificate: Certificate, clock: Clock) -> Result<Self, ListenError> {
        let failed = |source| ListenError { address: settings.listen, source };
        let listener = match TcpListener::bind(settings.listen).await {
            // A node without IPv6 cannot listen on all of its addresses that way.
            Err(error) if settings.listen.is_ipv6() && settings.listen.ip().is_unspecified() => {
                let all = SocketAddr::from((Ipv4Addr::UNSPECIFIED, settings.listen.port()));
                let listener = TcpListener::bind(all).await.map_err(|_| failed(error))?;
                tracing::info!(listen = %all, "there is no IPv6 here: listening on IPv4");
                listener
            }
            listener => listener.map_err(failed)?,
        };
        let address = listener.local_addr().map_err(failed)?;
        let shared = Shared {
            listener,
            settings,
            certificate,
            connections: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
            clock,
            tasks: TaskTracker::new(),
            stopping: AtomicBool::new(false),
            closing: CancellationToken::new(),
        };
        Ok(Self { address, shared: Arc::new(shared) })
    }

    /// Returns the address that it listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`. Then it goes on for a few seconds, in which the Service learns that it
    /// leaves, and lets the last answers out.
    pub async fn serve(&self, stop: CancellationToken) {
        let shared = &self.shared;
        tokio::select! {
            () = shared.accept() => {}
            () = shared.certificate.keep() => {}
            () = async {
                stop.cancelled().await;
                shared.stopping.store(true, Ordering::SeqCst);
                shared.clock.sleep(LEAVING).await;
            } => {}
        }
        shared.closing.cancel();
        shared.tasks.close();
        shared.tasks.wait().await;
    }
}

// === impl Shared ===

impl Shared {
    /// Accepts connections, each served in a task of its own.
    async fn accept(self: &Arc<Self>) {
        loop {
            let Ok(place) = Arc::clone(&self.connections).acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let shared = Arc::clone(self);
                    self.tasks.spawn(async move {
                        shared.receive(stream).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the webhook cannot accept a connection");
                    self.clock.sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    async fn receive(self: Arc<Self>, stream: TcpStream) {
        // Only latency is lost.
        drop(stream.set_nodelay(true));
        let acceptor = TlsAcceptor::from(self.certificate.config());
        match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => self.converse(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn converse(self: Arc<Self>, stream: TlsStream<TcpStream>) {
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let closing = self.closing.clone();
        let service = service_fn(move |request| {
            let shared = Arc::clone(&self);
            async move { Ok::<_, Infallible>(shared.answer(request).await) }
        });
        let stream = TokioIo::new(stream);
        let served = if is_http2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.timer(TokioTimer::new()).keep_alive_interval(IDLE).max_concurrent_streams(MOST_STREAMS);
            let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
            tokio::select! {
                served = connection.as_mut() => served,
                () = closing.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .serve_connection(stream, service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                served = connection.as_mut() => served,
                () = closing.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body::whole(body, LARGEST).await;
        match (&head.method, head.uri.path()) {
            (&Method::GET, "/livez") => text(StatusCode::OK, "ok"),
            (&Method::GET, "/readyz") if self.stopping.load(Ordering::SeqCst) => {
                text(StatusCode::SERVICE_UNAVAILABLE, "stopping")
            }
            (&Method::GET, "/readyz") => text(StatusCode::OK, "ok"),
            (&Method::POST, "/inject") => self.review(body),
            _ => text(StatusCode::NOT_FOUND, "there is POST /inject, GET /livez and GET /readyz"),
        }
    }

    fn review(&self, body: Option<Bytes>) -> Response<Full<Bytes>> {
        let Some(body) = body else {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "the body broke off, or is larger than any AdmissionReview");
        };
        match review(&body, &self.settings) {
            Ok(answer) => {
                let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
                response.headers_mut().insert(header::CONTENT_TYPE, JSON);
                response
            }
            Err(error) => text(StatusCode::BAD_REQUEST, &error.to_string()),
        }
    }
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response
}

const JSON: http::HeaderValue = http::HeaderValue::from_static("application/json");
/// A cluster has few API servers, each with few connections.
const MOST_CONNECTIONS: usize = 256;
const MOST_STREAMS: u32 = 64;
/// The API server takes objects of up to 3 MiB; in JSON they may be written longer.
const LARGEST: usize = 8 << 20;
const HANDSHAKE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(120);
/// The time in which kube-proxy learns that the pod leaves.
const LEAVING: Duration = Duration::from_secs(5);
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
