//! The collector, over connections of the gate's own: one for each sending, for there is one every
//! few seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;

use crate::clock::Clock;
use crate::telemetry::table;
use crate::tls;

/// A collector that is sent to.
#[derive(Debug)]
pub(super) struct Collector {
    /// Its URL without a slash at the end.
    url: String,
    host: String,
    port: u16,
    tls: Option<tls::Client>,
    /// Where connections are made, whatever thread asks for them.
    runtime: Handle,
    clock: Clock,
    is_away: AtomicBool,
}

/// The form in which OpenTelemetry's exporter takes it.
#[derive(Clone, Debug)]
pub(super) struct Client(pub(super) Arc<Collector>);

// === impl Collector ===

impl Collector {
    pub(super) fn new(endpoint: &Uri, tls: Option<tls::Client>, runtime: Handle, clock: Clock) -> Self {
        let url = endpoint.to_string().trim_end_matches('/').to_owned();
        let host = endpoint.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let usual = if tls.is_some() { 443 } else { 80 };
        let port = endpoint.port_u16().unwrap_or(usual);
        for result in ["ok", "failed"] {
            table::OTLP_SENDINGS.counter(&[SIGNAL, result]).increment(0);
        }
        Self { url, host, port, tls, runtime, clock, is_away: AtomicBool::new(false) }
    }

    /// Returns its URL without a slash at the end.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request, and counts what became of it. The log tells when the collector goes away
    /// and when it is back.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = tokio::time::timeout(TIMEOUT, self.exchange(request)).await;
        let answer = sent.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs()).into()));
        let fault = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answered {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        let result = if fault.is_none() { "ok" } else { "failed" };
        table::OTLP_SENDINGS.counter(&[SIGNAL, result]).increment(1);
        let was_away = self.is_away.swap(fault.is_some(), Ordering::SeqCst);
        let collector = &*self.url;
        match fault {
            Some(error) if !was_away => {
                tracing::warn!(
                    collector,
                    signal = SIGNAL,
                    error,
                    "the OpenTelemetry collector does not take what it is sent; calls go on, spans are dropped until it does"
                );
            }
            None if was_away => tracing::info!(collector, "the OpenTelemetry collector takes what it is sent again"),
            Some(_) | None => {}
        }
        answer
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return exchange(stream, request).await };
        tls.refresh(self.clock.now());
        let name = ServerName::try_from(self.host.clone())?;
        let stream = TlsConnector::from(tls.http1_config()).connect(name, stream).await;
        exchange(stream.map_err(|error| format!("TLS: {error}"))?, request).await
    }
}

// === impl Client ===

#[async_trait]
impl HttpClient for Client {
    /// The exporter's thread is none of the runtime's.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let collector = Arc::clone(&self.0);
        self.0.runtime.spawn(async move { collector.send(request).await }).await?
    }
}

/// Makes one exchange over a connection of its own.
async fn exchange<S>(stream: S, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    let authority = parts.uri.authority().map_or("", |authority| authority.as_str());
    parts.headers.insert(HOST, HeaderValue::from_str(authority)?);
    let target = parts.uri.path_and_query().cloned();
    parts.uri = target.map_or_else(|| Uri::from_static("/"), Uri::from);
    let answer = sender.send_request(Request::from_parts(parts, Full::new(body))).await;
    let (head, body) = match answer {
        Ok(answer) => answer.into_parts(),
        Err(error) => {
            connection.abort();
            return Err(error.into());
        }
    };
    let body = Limited::new(body, LONGEST_ANSWER).collect().await;
    connection.abort();
    Ok(Response::from_parts(head, body?.to_bytes()))
}

/// What is sent, in the metric's and the log's word.
const SIGNAL: &str = "traces";
const TIMEOUT: Duration = Duration::from_secs(5);
/// An answer says which spans were refused, in few words.
const LONGEST_ANSWER: usize = 64 * 1024;
