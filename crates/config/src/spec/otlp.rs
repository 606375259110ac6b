//! Where spans and metrics are sent.

use std::path::PathBuf;
use std::time::Duration;

use http::Uri;

/// A collector that gets spans and metrics by OpenTelemetry's protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// Its URL, before `/v1/traces`.
    pub endpoint: Uri,
    /// The CA that it is verified with; `None` for the system's.
    pub ca: Option<PathBuf>,
    /// True if it gets a span for each call whose trace is sampled.
    pub traces: bool,
    /// The share of the calls without a trace of their client for which a trace is begun.
    pub sample: f64,
    /// True if it gets the metrics.
    pub metrics: bool,
    /// The time between two sendings of the metrics.
    pub interval: Duration,
}
