//! The few calls of the API server that the process makes for itself, with its own identity: the
//! webhook keeps its certificate, and gates ask who their clients are.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use serde_json::Value;

use super::{Credential, CredentialError, Resolved};
use crate::clock::Clock;
use crate::own_client::{OwnCallError, OwnClient};
use crate::tls::TlsError;

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
#[debug("Api({client:?})")]
pub struct Api {
    client: OwnClient,
    /// The path that every call begins with.
    base_path: String,
    credential: Option<Credential>,
    /// The name for itself that it sends.
    agent: &'static str,
    clock: Clock,
}

// === impl Api ===

impl Api {
    /// Makes a client of a resolved API server, which names itself `agent`.
    ///
    /// # Errors
    /// TLS to it cannot be set up.
    pub fn new(resolved: &Resolved, agent: &'static str, clock: Clock) -> Result<Self, ApiError> {
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
        let answer = self.client.send(request, method != Method::PATCH, LARGEST).await;
        let answer = answer.map_err(|error| self.error(error))?;
        let status = answer.status();
        if let (StatusCode::UNAUTHORIZED, Some(credential)) = (status, &self.credential) {
            credential.secret.refused(number, self.clock);
        }
        let value: Value =
            serde_json::from_slice(answer.body()).map_err(|error| ApiError::Answer(error.to_string()))?;
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
    ) -> Result<(Request<Bytes>, u64), ApiError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base_path))
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
        Ok((request.body(body)?, number))
    }

    fn error(&self, error: OwnCallError) -> ApiError {
        match error {
            OwnCallError::Connection(error) => ApiError::Connection(self.client.authority().to_string(), error),
            OwnCallError::Call(error) => ApiError::Call(error),
            OwnCallError::Response(error) => ApiError::Answer(error.to_string()),
            OwnCallError::Host(error) => ApiError::Request(error.into()),
        }
    }
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
