//! The HTTPS server that the API server calls.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
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
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::budget::{self, Budget};
use super::certificate::Certificate;
use super::{Settings, review};
use crate::bind;
use crate::body;
use crate::clock::Clock;
use crate::places::{self, Door, Place};

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
    door: Arc<Door>,
    bodies: Arc<Budget>,
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
        let listener = bind::tcp("webhook", settings.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Shared {
            listener,
            settings,
            certificate,
            door: Door::new("webhook", places::few(MOST_CONNECTIONS), clock),
            bodies: Budget::new(BODIES),
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
            let stream = self.door.accept(async || Ok(self.listener.accept().await?.0)).await;
            // No connection is busy here: the idlest goes.
            if let Some(place) = self.door.take() {
                let shared = Arc::clone(self);
                self.tasks.spawn(async move {
                    tokio::select! {
                        () = shared.receive(stream, &place) => {}
                        () = place.over() => {}
                    }
                });
            }
        }
    }

    async fn receive(self: Arc<Self>, stream: TcpStream, place: &Arc<Place>) {
        // Only latency is lost.
        drop(stream.set_nodelay(true));
        match TlsAcceptor::from(self.certificate.config()).accept(stream).await {
            Ok(stream) => self.converse(stream, place).await,
            Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
        }
    }

    async fn converse(self: Arc<Self>, stream: TlsStream<TcpStream>, place: &Arc<Place>) {
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let closing = self.closing.clone();
        let place = Arc::clone(place);
        let service = service_fn(move |request| {
            place.touch();
            let shared = Arc::clone(&self);
            async move { Ok::<_, Infallible>(shared.answer(request).await) }
        });
        let stream = TokioIo::new(stream);
        let served = if is_http2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.timer(TokioTimer::new()).keep_alive_interval(IDLE).max_concurrent_streams(MOST_STREAMS);
            builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
            until(builder.serve_connection(stream, service), &closing, |it| it.graceful_shutdown()).await
        } else {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE)
                .max_buf_size(BUFFER)
                .serve_connection(stream, service);
            until(connection, &closing, |it| it.graceful_shutdown()).await
        };
        if let Err(error) = served {
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
            (&Method::POST, "/inject") => self.review(request.into_body()).await,
            _ => text(StatusCode::NOT_FOUND, "there is POST /inject, GET /livez and GET /readyz"),
        }
    }

    async fn review(&self, body: Incoming) -> Response<Full<Bytes>> {
        // What the review itself takes is not among it: there is one at a time.
        let share = self.bodies.share();
        let body = tokio::select! {
            body = body::whole(body, LARGEST, |bytes| share.set(bytes)) => body,
            () = share.lost() => None,
        };
        let Some(body) = body.filter(|body| budget::cost(body) <= REVIEWED) else {
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

/// Serves a connection to its end, and has it say goodbye when the server closes.
async fn until<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    closing: &CancellationToken,
    say_goodbye: impl Fn(Pin<&mut C>),
) -> hyper::Result<()> {
    let mut connection = pin!(connection);
    tokio::select! {
        served = connection.as_mut() => served,
        () = closing.cancelled() => {
            say_goodbye(connection.as_mut());
            connection.await
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
const MOST_CONNECTIONS: usize = 64;
const MOST_STREAMS: u32 = 8;
/// The bytes that a client may send unasked, on each connection.
const WINDOW: u32 = 64 << 10;
/// The longest head.
const BUFFER: usize = 16 << 10;
/// The API server takes objects of up to 3 MiB; in JSON they may be written longer.
const LARGEST: usize = 4 << 20;
/// The bytes of all bodies together, and of what is made of the one that is reviewed: 16 MiB.
const BODIES: usize = 6 << 20;
const REVIEWED: usize = 10 << 20;
const IDLE: Duration = Duration::from_secs(120);
/// The time in which kube-proxy learns that the pod leaves.
const LEAVING: Duration = Duration::from_secs(5);
