//! The types that replace the exporter in a program without OpenTelemetry. They have no values.

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

    /// Is never called, because no exporter exists.
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

    /// Is never called, because no exporter exists.
    pub(crate) async fn finish(self) {
        match self {}
    }
}
