//! Where spans are sent.

use std::path::PathBuf;

use http::Uri;

/// A collector of spans by OpenTelemetry's protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    /// Its URL, before `/v1/traces`.
    pub endpoint: Uri,
    /// Its CA; `None` for the system's.
    pub ca: Option<PathBuf>,
    /// The share of traced calls among those without a trace of their client.
    pub sample: f64,
}
