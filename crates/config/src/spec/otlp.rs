//! Where traces are sent.

use std::path::PathBuf;

use http::Uri;

/// The OpenTelemetry collector to send traces to.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The collector's URL, without `/v1/traces`.
    pub endpoint: Uri,
    /// The CA the collector's certificate is signed by; `None` for the system's.
    pub ca: Option<PathBuf>,
    /// The share of calls to begin a trace for, if the client began none.
    pub sample: f64,
}
