//! The HTTP/1.1 client for the process's own requests, with reuse of idle connections.
//!
//! It is used for the API server, for a telemetry collector, and in the demo.

use std::error::Error;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::HOST;
use http::uri::Authority;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;

use crate::clock::Clock;
use crate::{lock, tls};

/// An HTTP/1.1 client of one server, for the process's own requests.
#[derive(derive_more::Debug)]
#[debug("OwnClient({authority})")]
pub struct OwnClient {
    authority: Authority,
    host: String,
    port: u16,
    /// The name expected in the server's certificate.
    server_name: String,
    tls: Option<Arc<tls::Client>>,
    clock: Clock,
    /// Idle connections.
    idle: Mutex<Vec<Sender>>,
}

/// Why a request of the process itself got no response, or one that is too long.
pub type OwnCallError = Box<dyn Error + Send + Sync>;

type Sender = SendRequest<Full<Bytes>>;

// === impl OwnClient ===

impl OwnClient {
    /// Creates a client. The server's certificate must be valid for `server_name`, or else for the
    /// host.
    pub fn new(authority: Authority, server_name: Option<String>, tls: Option<Arc<tls::Client>>, clock: Clock) -> Self {
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Self {
            port: authority.port_u16().unwrap_or_else(|| if tls.is_some() { 443 } else { 80 }),
            server_name: server_name.unwrap_or_else(|| host.clone()),
            authority,
            host,
            tls,
            clock,
            idle: Mutex::default(),
        }
    }

    /// Returns host and port, as in a URL.
    pub const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Sends a request, and reads the whole response of at most `longest` bytes.
    ///
    /// An idle connection may end before the server has seen the request, or after it acted on it.
    /// So only `is_repeatable` requests use idle connections, with one retry on a new connection.
    ///
    /// # Errors
    /// No response came, or it is too long.
    pub async fn send(
        &self,
        request: Request<Bytes>,
        is_repeatable: bool,
        longest: usize,
    ) -> Result<Response<Bytes>, OwnCallError> {
        let mut request = request.map(Full::new);
        request.headers_mut().insert(HOST, HeaderValue::from_str(self.authority.as_str())?);
        let target = request.uri().path_and_query().cloned();
        *request.uri_mut() = target.map_or_else(|| Uri::from_static("/"), Uri::from);
        let idle = if is_repeatable { self.take_idle() } else { None };
        if let Some(mut sender) = idle
            && sender.ready().await.is_ok()
            && let Ok(response) = sender.send_request(request.clone()).await
        {
            return self.read(response, sender, longest).await;
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await?;
        self.read(response, sender, longest).await
    }

    async fn read(
        &self,
        response: Response<Incoming>,
        sender: Sender,
        longest: usize,
    ) -> Result<Response<Bytes>, OwnCallError> {
        let (head, body) = response.into_parts();
        let body = Limited::new(body, longest).collect().await?;
        let mut idle = lock(&self.idle);
        if idle.len() < MOST_IDLE && !sender.is_closed() {
            idle.push(sender);
        }
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    async fn connect(&self) -> Result<Sender, OwnCallError> {
        let stream = TcpStream::connect((&*self.host, self.port)).await?;
        // Without it only latency is lost.
        drop(stream.set_nodelay(true));
        let stream = match &self.tls {
            None => Either::Left(stream),
            Some(tls) => {
                tls.refresh(self.clock.now());
                let name = ServerName::try_from(self.server_name.clone())?;
                Either::Right(TlsConnector::from(tls.http1_config()).connect(name, stream).await?)
            }
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Its end shows in the call.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    /// Returns an idle connection, if one is still open.
    fn take_idle(&self) -> Option<Sender> {
        let mut idle = lock(&self.idle);
        idle.retain(|sender| !sender.is_closed());
        idle.pop()
    }
}

/// The most idle connections to keep: enough for a controller's workers, or for many clients at
/// once.
const MOST_IDLE: usize = 16;
