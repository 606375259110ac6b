//! The few calls of the API that the webhook makes to keep its certificate, with the identity of
//! its own service account. One connection each: they come twice a minute.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::clock::Clock;
use crate::credentials::{Resolved, Secret};
use crate::tls::{self, TlsError};

/// A call of the API that failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The API server cannot be reached over TLS.
    #[error("no connection to {0} can be made")]
    Connection(String, #[source] io::Error),
    /// The connection broke.
    #[error("the call of the API server failed")]
    Call(#[from] hyper::Error),
    /// The answer is too large, or broke off.
    #[error("the answer of the API server cannot be read: {0}")]
    Answer(String),
    /// The API server took too long.
    #[error("the API server did not answer within {} s", PATIENCE.as_secs())]
    Late,
    /// It said no.
    #[error("the API server answers {status} to {method} {path}: {message}")]
    Status {
        /// The status.
        status: StatusCode,
        /// The method of the call.
        method: Method,
        /// The path of the call.
        path: String,
        /// Its own words.
        message: String,
    },
    /// The request cannot be made of these parts.
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
    /// TLS to it cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The API server, as a pod sees it.
#[derive(derive_more::Debug)]
#[debug("Api({authority})")]
pub struct Api {
    authority: String,
    host: String,
    port: u16,
    tls: Arc<tls::Client>,
    token: Option<Secret>,
    clock: Clock,
}

// === impl Api ===

impl Api {
    /// Makes a client of a resolved API server.
    ///
    /// # Errors
    /// TLS to it cannot be set up.
    pub fn new(resolved: &Resolved, clock: Clock) -> Result<Self, ApiError> {
        let target = &resolved.target;
        let tls = match resolved.tls(true)? {
            Some(tls) => tls,
            None => Arc::new(tls::Client::new(tls::Roots::System, None)?),
        };
        Ok(Self {
            authority: target.authority.to_string(),
            host: target.authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: target.authority.port_u16().unwrap_or(443),
            tls,
            token: resolved.credential.as_ref().map(|credential| credential.secret.clone()),
            clock,
        })
    }

    /// Reads an object.
    pub(super) async fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.call(Method::GET, path, "application/json", Bytes::new()).await
    }

    /// Changes an object by a patch of this type.
    pub(super) async fn patch(&self, path: &str, kind: &'static str, patch: &Value) -> Result<Value, ApiError> {
        self.call(Method::PATCH, path, kind, Bytes::from(patch.to_string())).await
    }

    async fn call(&self, method: Method, path: &str, kind: &'static str, body: Bytes) -> Result<Value, ApiError> {
        let call = self.exchange(method, path, kind, body);
        tokio::time::timeout(PATIENCE, call).await.unwrap_or(Err(ApiError::Late))
    }

    async fn exchange(&self, method: Method, path: &str, kind: &'static str, body: Bytes) -> Result<Value, ApiError> {
        let now = self.clock.now();
        self.tls.refresh(now);
        let failed = |error| ApiError::Connection(self.authority.clone(), error);
        let name = ServerName::try_from(self.host.clone()).map_err(|error| failed(io::Error::other(error)))?;
        let stream = TcpStream::connect((&*self.host, self.port)).await.map_err(failed)?;
        let stream = TlsConnector::from(self.tls.http1_config()).connect(name, stream).await.map_err(failed)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Its end shows in the call.
        tokio::spawn(async move { drop(connection.await) });
        let mut request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::USER_AGENT, "tidegate-webhook")
            .header(header::CONTENT_TYPE, kind);
        if let Some(token) = self.token.as_ref().and_then(|token| token.reveal(now)) {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(http::Error::from)?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        let answer = sender.send_request(request.body(Full::new(body))?).await?;
        let status = answer.status();
        let unreadable = |error: &dyn std::fmt::Display| ApiError::Answer(error.to_string());
        let body = Limited::new(answer.into_body(), LARGEST).collect().await.map_err(|error| unreadable(&error))?;
        let value: Value = serde_json::from_slice(&body.to_bytes()).map_err(|error| unreadable(&error))?;
        if status.is_success() {
            return Ok(value);
        }
        let message = value.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        Err(ApiError::Status { status, method, path: path.to_owned(), message })
    }
}

// === impl ApiError ===

impl ApiError {
    /// True if the object was changed by another meanwhile.
    pub(super) const fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { status: StatusCode::CONFLICT, .. })
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
/// The objects read here are a few KiB.
const LARGEST: usize = 4 << 20;
