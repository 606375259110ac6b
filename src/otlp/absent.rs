//! The stand-ins for the exporter in a program that was built without OpenTelemetry.

use std::convert::Infallible;

use super::Unusable;
use crate::clock::Clock;
use crate::spec::Otlp;
use crate::telemetry::Spans;

/// An exporter that is never prepared.
#[derive(Debug)]
pub(crate) enum PreparedOtlp {}

/// An exporter that never sends.
#[derive(Debug)]
pub(crate) enum Exporter {}

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
