//! Where spans are sent.

use std::path::PathBuf;

use http::Uri;

/// A collector that gets spans by OpenTelemetry's protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// Its URL, before `/v1/traces`.
    pub endpoint: Uri,
    /// The CA that it is verified with; `None` for the system's.
    pub ca: Option<PathBuf>,
    /// The share of the calls without a trace of their client for which a trace is begun.
    pub sample: f64,
}
