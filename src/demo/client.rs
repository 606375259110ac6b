//! An API client that behaves as client-go does: it sleeps on a Retry-After inside the worker, up
//! to ten times, and retries nothing else.

use std::{net::SocketAddr, sync::Arc, sync::atomic::AtomicUsize, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use http::{
    Method, Request, StatusCode,
    header::{CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::clock::Clock;

/// client-go's `maxRetries`.
const MAX_RETRIES: u32 = 10;

/// The address for calls, their user agent, and the number of calls that are out.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) server: SocketAddr,
    pub(super) agent: Arc<str>,
    pub(super) clock: Clock,
    /// The calls sent and not answered yet, without watches.
    pub(super) unanswered: Arc<AtomicUsize>,
}

/// The reason why a call gave no object.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The API answered with an error status.
    #[error("the API answered {0}")]
    Status(StatusCode),
    /// There was no connection, or it broke.
    #[error("the connection failed")]
    Transport,
}

/// A client's connection, opened when it is needed. There is one per worker, as a worker makes one
/// call at a time.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    sender: Option<http1::SendRequest<Full<Bytes>>>,
}

/// An unanswered call: counted while this value lives, however the call ends.
struct Unanswered<'a>(&'a AtomicUsize);

// === impl Unanswered ===

impl<'a> Unanswered<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Session ===

impl Session {
    pub(super) fn new(client: Client) -> Self {
        Self { client, sender: None }
    }

    /// Makes one call with client-go's retries and returns the object of the answer.
    pub(super) async fn call(&mut self, method: Method, path: &str, body: &Value) -> Result<Value, CallError> {
        let mut attempt = 0;
        loop {
            let (status, retry_after, body) = self.once(&method, path, body).await?;
            if status.is_success() {
                return serde_json::from_slice(&body).map_err(|_| CallError::Transport);
            }
            let retryable = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
            match retry_after.filter(|_| retryable && attempt < MAX_RETRIES) {
                Some(wait) => self.client.clock.sleep(wait).await,
                None => return Err(CallError::Status(status)),
            }
            attempt += 1;
        }
    }

    /// Opens a stream, which takes the connection with it.
    pub(super) async fn stream(mut self, path: &str) -> Result<Incoming, CallError> {
        let response = self.send(&Method::GET, path, &Value::Null).await?;
        if response.status().is_success() {
            Ok(response.into_body())
        } else {
            Err(CallError::Status(response.status()))
        }
    }

    async fn once(
        &mut self,
        method: &Method,
        path: &str,
        body: &Value,
    ) -> Result<(StatusCode, Option<Duration>, Bytes), CallError> {
        let unanswered = Arc::clone(&self.client.unanswered);
        let _out = Unanswered::new(&unanswered);
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = response.into_body().collect().await.map_err(|_| CallError::Transport)?.to_bytes();
        Ok((status, seconds.map(Duration::from_secs), body))
    }

    async fn send(&mut self, method: &Method, path: &str, body: &Value) -> Result<http::Response<Incoming>, CallError> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let kind = if *method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.client.server.to_string())
            .header(USER_AGENT, &*self.client.agent)
            .header(CONTENT_TYPE, kind)
            .body(Full::new(body))
            .map_err(|_| CallError::Transport)?;
        let response = self.sender().await?.send_request(request).await;
        response.map_err(|_| {
            self.sender = None;
            CallError::Transport
        })
    }

    /// Returns the live connection, or a new one.
    async fn sender(&mut self) -> Result<&mut http1::SendRequest<Full<Bytes>>, CallError> {
        let live = match self.sender.take() {
            Some(mut sender) => sender.ready().await.is_ok().then_some(sender),
            None => None,
        };
        let sender = match live {
            Some(sender) => sender,
            None => self.connect().await.map_err(|_| CallError::Transport)?,
        };
        Ok(self.sender.insert(sender))
    }

    async fn connect(&self) -> Result<http1::SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(self.client.server).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The task ends when the sender is dropped; an error reaches the call that it broke.
        drop(tokio::spawn(connection));
        Ok(sender)
    }
}
