//! An API client that behaves as client-go does: it sleeps on a Retry-After inside the worker, up
//! to ten times, and retries nothing else.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self};
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::clock::Clock;
use crate::controller::MAX_RETRIES;

/// The client of one controller: its connections, its user agent, and the calls that are out.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: legacy::Client<HttpConnector, Full<Bytes>>,
    server: SocketAddr,
    pub(super) agent: Arc<str>,
    pub(super) clock: Clock,
    /// Held by each call that is sent and not answered yet, without watches.
    unanswered: Weak<()>,
}

/// The reason why a call gave no object.
#[derive(Debug)]
pub(super) enum CallError {
    /// The API answered with an error status.
    Status(StatusCode),
    /// There was no connection, or it broke.
    Transport,
}

// === impl Client ===

impl Client {
    pub(super) fn new(server: SocketAddr, agent: String, clock: Clock, unanswered: Weak<()>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
        Self { http, server, agent: agent.into(), clock, unanswered }
    }

    /// Makes one call with client-go's retries and returns the object of the answer.
    pub(super) async fn call(&self, method: Method, path: &str, body: &Value) -> Result<Value, CallError> {
        let mut retries = 0;
        loop {
            let out = self.unanswered.upgrade();
            let response = self.send(&method, path, body).await?;
            let status = response.status();
            let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let answer = response.into_body().collect().await.map_err(|_| CallError::Transport)?.to_bytes();
            drop(out);
            if status.is_success() {
                return serde_json::from_slice(&answer).map_err(|_| CallError::Transport);
            }
            let retryable = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
            let Some(seconds) = retry_after.filter(|_| retryable && retries < MAX_RETRIES) else {
                return Err(CallError::Status(status));
            };
            retries += 1;
            self.clock.sleep(Duration::from_secs(seconds)).await;
        }
    }

    /// Opens a stream, which takes a connection with it.
    pub(super) async fn stream(&self, path: &str) -> Result<Incoming, CallError> {
        let response = self.send(&Method::GET, path, &Value::Null).await?;
        let status = response.status();
        if status.is_success() { Ok(response.into_body()) } else { Err(CallError::Status(status)) }
    }

    async fn send(&self, method: &Method, path: &str, body: &Value) -> Result<Response<Incoming>, CallError> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let kind = if *method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.server))
            .header(USER_AGENT, &*self.agent)
            .header(CONTENT_TYPE, kind)
            .body(Full::new(body))
            .map_err(|_| CallError::Transport)?;
        self.http.request(request).await.map_err(|_| CallError::Transport)
    }
}
