//! Trace spans for an OpenTelemetry collector: OTLP over HTTP, in protobuf.
//!
//! Nothing here delays a call. The thread of the call log passes each call's record to the
//! `spans::Tracer`, and OpenTelemetry's SDK sends spans in batches. If the collector is slow or
//! does not answer, spans are dropped.
//!
//! OpenTelemetry's crates make the program 1.7 MiB larger. So they are behind the feature `otlp`;
//! without it, `absent` rejects `[otlp]`.

#[cfg(not(feature = "otlp"))]
mod absent;
#[cfg(feature = "otlp")]
mod collector;
#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod spans;

#[cfg(not(feature = "otlp"))]
pub(crate) use self::absent::{Exporter, Exporter as PreparedOtlp};
#[cfg(feature = "otlp")]
pub(crate) use self::exporter::{Exporter, PreparedOtlp};
use crate::tls::TlsError;

/// What is wrong with the settings in `[otlp]`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OtlpSettingsError {
    /// The CA for the collector cannot be read.
    #[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "nothing is read without the feature"))]
    #[error("otlp.ca: the CA for the collector cannot be used: {0}")]
    Ca(TlsError),
    /// The program was built without OpenTelemetry.
    #[cfg_attr(feature = "otlp", expect(dead_code, reason = "it can"))]
    #[error(
        "otlp: this program was built without OpenTelemetry; expected one that has it, by `cargo install tidegate --features otlp` \
         or `docker build --build-arg FEATURES=otlp`, or no [otlp]"
    )]
    Absent,
}
