//! The few calls of the API server that the process makes for itself, with its own identity: the
//! webhook keeps its certificate, and gates ask who their clients are. A connection that is idle is
//! used again.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Credential, CredentialError, Resolved};
use crate::clock::Clock;
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
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Late(Duration),
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
    /// The gate's own credential cannot be had.
    #[error(transparent)]
    Credential(#[from] Arc<CredentialError>),
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
    /// The path that every call begins with.
    base_path: String,
    server_name: String,
    tls: Option<Arc<tls::Client>>,
    credential: Option<Credential>,
    /// The name for itself that it sends.
    agent: &'static str,
    clock: Clock,
    /// Connections on which no call is under way.
    idle: Mutex<Vec<Sender>>,
}

type Sender = SendRequest<Full<Bytes>>;

// === impl Api ===

impl Api {
    /// Makes a client of a resolved API server, which names itself `agent`.
    ///
    /// # Errors
    /// TLS to it cannot be set up.
    pub fn new(resolved: &Resolved, agent: &'static str, clock: Clock) -> Result<Self, ApiError> {
        let target = &resolved.target;
        let host = target.authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = resolved.tls(true)?;
        Ok(Self {
            authority: target.authority.to_string(),
            port: target.authority.port_u16().unwrap_or_else(|| if tls.is_some() { 443 } else { 80 }),
            base_path: target.base_path.clone(),
            server_name: target.server_name.clone().unwrap_or_else(|| host.clone()),
            host,
            tls,
            credential: resolved.credential.clone(),
            agent,
            clock,
            idle: Mutex::default(),
        })
    }

    /// Reads an object.
    pub async fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.call(Method::GET, path, "application/json", Bytes::new()).await
    }

    /// Changes an object by a patch of this type.
    pub async fn patch(&self, path: &str, kind: &'static str, patch: &Value) -> Result<Value, ApiError> {
        self.call(Method::PATCH, path, kind, Bytes::from(patch.to_string())).await
    }

    /// Posts a question, such as a review, that changes nothing.
    pub async fn post(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        self.call(Method::POST, path, "application/json", Bytes::from(object.to_string())).await
    }

    async fn call(&self, method: Method, path: &str, kind: &'static str, body: Bytes) -> Result<Value, ApiError> {
        let call = self.exchange(method, path, kind, body);
        tokio::time::timeout(PATIENCE, call).await.unwrap_or(Err(ApiError::Late(PATIENCE)))
    }

    async fn exchange(&self, method: Method, path: &str, kind: &'static str, body: Bytes) -> Result<Value, ApiError> {
        if let Some(credential) = &self.credential {
            credential.secret.ready(true, self.clock).await?;
        }
        let (request, number) = self.request(&method, path, kind, body)?;
        // A connection that was idle may have ended before the server saw anything, or after it did
        // what it was asked: only what changes nothing is asked again.
        let kept = if method == Method::PATCH { None } else { self.kept() };
        let answered = match kept {
            Some(mut sender) => match sender.send_request(request.clone()).await {
                Ok(answer) => Some((answer, sender)),
                Err(_) => None,
            },
            None => None,
        };
        let (answer, sender) = match answered {
            Some(answered) => answered,
            None => {
                let mut sender = self.connect().await?;
                (sender.send_request(request).await?, sender)
            }
        };
        let status = answer.status();
        if let (StatusCode::UNAUTHORIZED, Some(credential)) = (status, &self.credential) {
            credential.secret.refused(number, self.clock);
        }
        let unreadable = |error: &dyn std::fmt::Display| ApiError::Answer(error.to_string());
        let body = Limited::new(answer.into_body(), LARGEST).collect().await.map_err(|error| unreadable(&error))?;
        self.keep(sender);
        let value: Value = serde_json::from_slice(&body.to_bytes()).map_err(|error| unreadable(&error))?;
        if status.is_success() {
            return Ok(value);
        }
        let message = value.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        Err(ApiError::Status { status, method, path: path.to_owned(), message })
    }

    /// Makes a request, and returns the number of the credential in it.
    fn request(
        &self,
        method: &Method,
        path: &str,
        kind: &'static str,
        body: Bytes,
    ) -> Result<(Request<Full<Bytes>>, u64), ApiError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base_path))
            .header(header::HOST, &self.authority)
            .header(header::USER_AGENT, self.agent)
            .header(header::CONTENT_TYPE, kind);
        let mut number = 0;
        if let Some(Credential { header, prefix, secret }) = &self.credential {
            let (value, of_credential) = secret.header(prefix, self.clock.now());
            number = of_credential;
            if let Some(value) = value {
                request = request.header(header, value);
            }
        }
        Ok((request.body(Full::new(body))?, number))
    }

    async fn connect(&self) -> Result<Sender, ApiError> {
        let failed = |error| ApiError::Connection(self.authority.clone(), error);
        let stream = TcpStream::connect((&*self.host, self.port)).await.map_err(failed)?;
        let Some(tls) = &self.tls else { return handshake(stream).await };
        tls.refresh(self.clock.now());
        let name = ServerName::try_from(self.server_name.clone()).map_err(|error| failed(io::Error::other(error)))?;
        handshake(TlsConnector::from(tls.http1_config()).connect(name, stream).await.map_err(failed)?).await
    }

    /// Takes an idle connection that is still open.
    fn kept(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(SendRequest::is_ready);
        idle.pop()
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE && !sender.is_closed() {
            idle.push(sender);
        }
    }
}

async fn handshake<S>(stream: S) -> Result<Sender, ApiError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Its end shows in the call.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

// === impl ApiError ===

impl ApiError {
    /// True if the object was changed by another meanwhile.
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { status: StatusCode::CONFLICT, .. })
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
/// The objects read here are a few KiB.
const LARGEST: usize = 4 << 20;
/// Enough for a gate whose clients have all come at once.
const MOST_IDLE: usize = 8;
