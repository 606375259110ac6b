//! The stand-ins for the exporters in a program that was built without OpenTelemetry.

use std::convert::Infallible;

use super::Unusable;
use crate::clock::Clock;
use crate::spec::Otlp;
use crate::telemetry::Spans;

/// Exporters that are never prepared.
#[derive(Debug)]
pub(crate) enum PreparedOtlp {}

/// Exporters that never send.
#[derive(Debug)]
pub(crate) enum Exporters {}

// === impl PreparedOtlp ===

impl PreparedOtlp {
    /// Says what is missing.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn new(_: Otlp) -> Result<Self, Unusable> {
        Err(Unusable::Absent)
    }

    /// Is never called.
    ///
    /// # Errors
    /// None.
    pub(crate) fn start(self, _: Clock) -> Result<Exporters, Infallible> {
        match self {}
    }
}

// === impl Exporters ===

impl Exporters {
    /// Is never called.
    pub(crate) fn spans(&self) -> Option<Spans> {
        match *self {}
    }

    /// Is never called.
    pub(crate) async fn finish(self) {
        match self {}
    }
}
