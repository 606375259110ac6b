//! The OpenTelemetry collector, and the HTTP connections to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::uri::Authority;
use http::{Request, Response, Uri};
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::own_client::OwnClient;
use crate::telemetry::table;
use crate::tls;

/// The HTTP client through which OpenTelemetry's exporter sends to the collector.
#[derive(Clone, Debug)]
pub(super) struct Collector {
    /// The URL of the collector, without a slash at the end.
    url: String,
    client: Arc<OwnClient>,
    /// The async runtime that carries the connections; the exporter itself runs on another thread.
    runtime: Handle,
    is_away: Arc<AtomicBool>,
}

// === impl Collector ===

impl Collector {
    pub(super) fn new(endpoint: &Uri, tls: Option<tls::Client>, runtime: Handle, clock: Clock) -> Self {
        let url = endpoint.to_string().trim_end_matches('/').to_owned();
        // A URL of the configuration has one.
        let authority = endpoint.authority().cloned().unwrap_or_else(|| Authority::from_static("localhost"));
        let client = Arc::new(OwnClient::new(authority, None, tls.map(Arc::new), clock));
        for result in ["ok", "failed"] {
            table::OTLP_SENDINGS.counter(&[SIGNAL, result]).increment(0);
        }
        Self { url, client, runtime, is_away: Arc::default() }
    }

    /// Returns the URL of the collector, without a slash at the end.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request, and counts its result. Logs when the collector stops answering and when it
    /// answers again.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = tokio::time::timeout(TIMEOUT, self.client.send(request, true, LONGEST_ANSWER)).await;
        let late = |_| Err(HttpError::from(format!("no answer within {} s", TIMEOUT.as_secs())));
        let answer = sent.unwrap_or_else(late);
        let fault = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("the collector answered {}", answer.status())),
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
                    "the OpenTelemetry collector does not accept spans: calls go on, and spans are dropped until it does"
                );
            }
            None if was_away => tracing::info!(collector, "the OpenTelemetry collector accepts spans again"),
            Some(_) | None => {}
        }
        answer
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let collector = self.clone();
        self.runtime.spawn(async move { collector.send(request).await }).await?
    }
}

/// The kind of data sent, as a label in the metric and the log.
const SIGNAL: &str = "traces";
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest response to read: a collector says in few words which spans it refused.
const LONGEST_ANSWER: usize = 64 * 1024;
