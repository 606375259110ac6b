//! Stand-ins for the types of the exporter, in a build without OpenTelemetry. They have no values,
//! because `[otlp]` is rejected.

use std::convert::Infallible;

use super::OtlpSettingsError;
use crate::clock::Clock;
use crate::spec::Otlp;
use crate::telemetry::Spans;

/// An exporter; none can exist.
#[derive(Debug)]
pub(crate) enum Exporter {}

// === impl Exporter ===

impl Exporter {
    /// Rejects the settings.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn new(_: Otlp) -> Result<Self, OtlpSettingsError> {
        Err(OtlpSettingsError::Absent)
    }

    /// Cannot be called, because there is no value to call it on.
    ///
    /// # Errors
    /// None.
    pub(crate) fn start(self, _: Clock) -> Result<Self, Infallible> {
        match self {}
    }

    /// Is never called, because no exporter exists.
    pub(crate) fn spans(&self) -> Spans {
        match *self {}
    }

    /// Cannot be called, because there is no value to call it on.
    pub(crate) async fn finish(self) {
        match self {}
    }
}
