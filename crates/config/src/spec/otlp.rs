//! Where traces are sent.

use std::path::PathBuf;

use http::Uri;

/// The OpenTelemetry collector to send traces to.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// The collector's URL, without `/v1/traces`.
    pub endpoint: Uri,
    /// The CA of the collector's certificate; `None` for the system's CAs.
    pub ca: Option<PathBuf>,
    /// The fraction of calls to trace, from 0 to 1. It does not apply to calls already traced by
    /// their client.
    pub sample: f64,
}
