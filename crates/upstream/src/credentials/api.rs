//! The process's own requests to the API server: the webhook stores its certificate, and gates
//! review tokens.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use serde_json::Value;

use super::{Credential, ExecPluginError, ResolvedUpstream};
use crate::clock::Clock;
use crate::own_client::{OwnCallError, OwnClient};
use crate::tls::TlsError;

/// Why a request of the process itself to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No response came from this address, or it broke off.
    #[error("the request to the API server at {0} failed")]
    Call(String, #[source] OwnCallError),
    /// The response is not what was expected.
    #[error("the response of the API server cannot be read: {0}")]
    Answer(String),
    /// No response came within this time.
    #[error("the API server did not answer within {} s", .0.as_secs())]
    Late(Duration),
    /// The API server answered with an error.
    #[error("the API server answers {status} to {method} {path}: {message}")]
    Status {
        /// The HTTP status.
        status: StatusCode,
        /// The method of the request.
        method: Method,
        /// The path of the request.
        path: String,
        /// The message in the response.
        message: String,
    },
    /// The gate has no credential of its own at the moment.
    #[error(transparent)]
    Credential(#[from] Arc<ExecPluginError>),
    /// The request is malformed.
    #[error("the request to the API server is malformed")]
    Request(#[from] http::Error),
    /// TLS to the API server cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A client of the API server.
#[derive(derive_more::Debug)]
#[debug("Api({client:?})")]
pub struct Api {
    client: OwnClient,
    /// The path put before the path of each request.
    base_path: String,
    credential: Option<Credential>,
    /// The User-Agent to send.
    agent: &'static str,
    clock: Clock,
}

// === impl Api ===

impl Api {
    /// Creates a client of an API server, with `agent` as its User-Agent.
    ///
    /// # Errors
    /// TLS to the API server cannot be set up.
    pub fn new(resolved: &ResolvedUpstream, agent: &'static str, clock: Clock) -> Result<Self, ApiError> {
        let target = &resolved.target;
        let tls = resolved.tls(true)?;
        Ok(Self {
            client: OwnClient::new(target.authority.clone(), target.server_name.clone(), tls, clock),
            base_path: target.base_path.clone(),
            credential: resolved.credential.clone(),
            agent,
            clock,
        })
    }

    /// Reads an object.
    pub async fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.call(Method::GET, path, "application/json", Bytes::new()).await
    }

    /// Patches an object; `kind` is the patch's media type.
    pub async fn patch(&self, path: &str, kind: &'static str, patch: &Value) -> Result<Value, ApiError> {
        self.call(Method::PATCH, path, kind, Bytes::from(patch.to_string())).await
    }

    /// Posts a review, such as a `TokenReview`, and returns the answer. It changes nothing on the
    /// server.
    pub async fn post(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        self.call(Method::POST, path, "application/json", Bytes::from(object.to_string())).await
    }

    async fn call(&self, method: Method, path: &str, kind: &'static str, body: Bytes) -> Result<Value, ApiError> {
        let exchange = self.exchange(method, path, kind, body);
        tokio::time::timeout(PATIENCE, exchange).await.unwrap_or(Err(ApiError::Late(PATIENCE)))
    }

    async fn exchange(&self, method: Method, path: &str, kind: &'static str, body: Bytes) -> Result<Value, ApiError> {
        let mut request = Request::builder()
            .method(&method)
            .uri(format!("{}{path}", self.base_path))
            .header(header::USER_AGENT, self.agent)
            .header(header::CONTENT_TYPE, kind);
        let mut version = 0;
        if let Some(Credential { header, prefix, secret }) = &self.credential {
            secret.ready(true, self.clock).await?;
            let (value, number) = secret.header(prefix, self.clock.now());
            version = number;
            if let Some(value) = value {
                request = request.header(header, value);
            }
        }
        let answer = self.client.send(request.body(body)?, method != Method::PATCH, LARGEST).await;
        let answer = answer.map_err(|error| ApiError::Call(self.client.authority().to_string(), error))?;
        let status = answer.status();
        if let (StatusCode::UNAUTHORIZED, Some(credential)) = (status, &self.credential) {
            credential.secret.refused(version, self.clock);
        }
        let value: Value =
            serde_json::from_slice(answer.body()).map_err(|error| ApiError::Answer(error.to_string()))?;
        if status.is_success() {
            return Ok(value);
        }
        let message = value.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        Err(ApiError::Status { status, method, path: path.to_owned(), message })
    }
}

// === impl ApiError ===

impl ApiError {
    /// Returns true for the status 409: another client has changed the object meanwhile.
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { status: StatusCode::CONFLICT, .. })
    }
}

const PATIENCE: Duration = Duration::from_secs(10);
/// The largest response: the objects read here are a few KiB.
const LARGEST: usize = 4 << 20;
