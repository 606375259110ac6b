//! The stand-ins for the exporter in a program without OpenTelemetry. They have no values.

use std::convert::Infallible;

use super::OtlpSettingsError;
use crate::clock::Clock;
use crate::spec::Otlp;
use crate::telemetry::Spans;

/// A prepared exporter.
#[derive(Debug)]
pub(crate) enum PreparedOtlp {}

/// A running exporter.
#[derive(Debug)]
pub(crate) enum Exporter {}

// === impl PreparedOtlp ===

impl PreparedOtlp {
    /// Rejects the settings.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn new(_: Otlp) -> Result<Self, OtlpSettingsError> {
        Err(OtlpSettingsError::Absent)
    }

    /// Is never called.
    ///
    /// # Errors
    /// None.
    pub(crate) fn start(self, _: Clock) -> Result<Exporter, Infallible> {
        match self {}
    }
}

// === impl Exporter ===

impl Exporter {
    /// Is never called.
    pub(crate) fn spans(&self) -> Spans {
        match *self {}
    }

    /// Is never called.
    pub(crate) async fn finish(self) {
        match self {}
    }
}
