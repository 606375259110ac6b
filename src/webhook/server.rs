//! The HTTPS server that the API server calls.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::budget::{self, Budget};
use super::certificate::Certificate;
use super::{Settings, review};
use crate::bind::{self, BindError};
use crate::body;
use crate::clock::Clock;
use crate::places::{self, Door, Place};

/// The webhook's server.
#[derive(derive_more::Debug)]
#[debug("Server({address})")]
pub struct Server {
    address: SocketAddr,
    listener: TcpListener,
    settings: Settings,
    certificate: Certificate,
    door: Arc<Door>,
    bodies: Arc<Budget>,
    clock: Clock,
    tasks: TaskTracker,
    /// Set when the webhook stops: the readiness probe then fails, so that the Service sends no
    /// more requests here.
    stopping: AtomicBool,
    /// Cancelled when connections must close.
    closing: CancellationToken,
}

// === impl Server ===

impl Server {
    /// Opens the port.
    ///
    /// # Errors
    /// It cannot be opened.
    pub async fn bind(settings: Settings, certificate: Certificate, clock: Clock) -> Result<Arc<Self>, BindError> {
        let failed = |error| BindError::new("the webhook (--listen)", &settings.listen, error);
        let listener = bind::tcp("webhook", settings.listen).await.map_err(failed)?;
        Ok(Arc::new(Self {
            address: listener.local_addr().map_err(failed)?,
            listener,
            settings,
            certificate,
            door: Door::new("webhook", places::few(MOST_CONNECTIONS), clock),
            bodies: Budget::new(BODIES),
            clock,
            tasks: TaskTracker::new(),
            stopping: AtomicBool::new(false),
            closing: CancellationToken::new(),
        }))
    }

    /// Returns the address of the port.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`. Then serves five seconds longer, until the Service sends no more
    /// requests here, and waits for the last answers.
    pub async fn serve(self: &Arc<Self>, stop: CancellationToken) {
        tokio::select! {
            () = self.accept() => {}
            () = self.certificate.keep() => {}
            () = async {
                stop.cancelled().await;
                self.stopping.store(true, Ordering::SeqCst);
                self.clock.sleep(LEAVING).await;
            } => {}
        }
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Accepts connections, and serves each in a task of its own.
    async fn accept(self: &Arc<Self>) {
        loop {
            let stream = self.door.accept(async || Ok(self.listener.accept().await?.0)).await;
            // No connection is busy here: the idlest goes.
            if let Some(place) = self.door.take() {
                let server = Arc::clone(self);
                self.tasks.spawn(async move { place.serve(server.handshake(stream, &place)).await });
            }
        }
    }

    async fn handshake(self: Arc<Self>, stream: TcpStream, place: &Arc<Place>) {
        // Only latency is lost.
        drop(stream.set_nodelay(true));
        match TlsAcceptor::from(self.certificate.config()).accept(stream).await {
            Ok(stream) => self.serve_connection(stream, Arc::clone(place)).await,
            Err(error) => tracing::debug!(%error, "the API server's TLS handshake with the webhook failed"),
        }
    }

    async fn serve_connection(self: Arc<Self>, stream: TlsStream<TcpStream>, place: Arc<Place>) {
        let closing = self.closing.clone();
        let service = service_fn(move |request| {
            place.touch();
            let server = Arc::clone(&self);
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(BUFFER);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(IDLE).max_concurrent_streams(MOST_STREAMS);
        builder.http2().initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let goodbye = closing.cancelled();
        let served = places::until_closing(connection, goodbye, |connection| connection.graceful_shutdown());
        if let Err(error) = served.await {
            tracing::debug!(%error, "a connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/livez") => text(StatusCode::OK, "ok"),
            (&Method::GET, "/readyz") if self.stopping.load(Ordering::SeqCst) => {
                text(StatusCode::SERVICE_UNAVAILABLE, "stopping")
            }
            (&Method::GET, "/readyz") => text(StatusCode::OK, "ok"),
            (&Method::POST, "/inject") => self.review(request.into_body(), true).await,
            (&Method::POST, "/policies") => self.review(request.into_body(), false).await,
            _ => text(StatusCode::NOT_FOUND, "there is POST /inject, POST /policies, GET /livez and GET /readyz"),
        }
    }

    async fn review(&self, body: Incoming, is_labelled: bool) -> Response<Full<Bytes>> {
        // The memory of the review itself is not counted: there is one at a time.
        let share = self.bodies.share();
        let body = tokio::select! {
            body = body::whole(body, LARGEST, |bytes| share.set(bytes)) => body,
            () = share.lost() => None,
        };
        let Some(body) = body.filter(|body| budget::cost(body) <= REVIEWED) else {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "the body ended early, or is larger than any AdmissionReview");
        };
        match review(&body, &self.settings, is_labelled).await {
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
/// The most connections: a cluster has few API servers, each with few connections.
const MOST_CONNECTIONS: usize = 64;
const MOST_STREAMS: u32 = 8;
/// The flow-control window of an HTTP/2 connection.
const WINDOW: u32 = 64 << 10;
/// The longest request head.
const BUFFER: usize = 16 << 10;
/// The longest request body. The API server accepts objects of 3 MiB, and JSON may be longer.
const LARGEST: usize = 4 << 20;
/// The most bytes of all bodies together. With the memory needed to review one of them, that makes
/// 16 MiB.
const BODIES: usize = 6 << 20;
const REVIEWED: usize = 10 << 20;
const IDLE: Duration = Duration::from_secs(120);
/// The time to serve on after `stop`, until kube-proxy has removed this pod from the Service.
const LEAVING: Duration = Duration::from_secs(5);
