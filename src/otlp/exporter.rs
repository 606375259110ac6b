//! The exporter of trace spans, from its settings to its last batch.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use tokio::runtime::Handle;

use super::OtlpSettingsError;
use super::collector::Collector;
use super::spans::Tracer;
use crate::clock::Clock;
use crate::spec::Otlp;
use crate::telemetry::Spans;
use crate::tls::{self, Pem, Roots};

/// An exporter with checked settings, not started yet.
#[derive(Debug)]
pub(crate) struct PreparedOtlp {
    settings: Otlp,
    tls: Option<tls::Client>,
}

/// The running exporter.
#[derive(Debug)]
pub(crate) struct Exporter {
    tracer: Arc<Tracer>,
    /// True if some calls without a trace get a new one.
    begins: bool,
}

// === impl PreparedOtlp ===

impl PreparedOtlp {
    /// Prepares an exporter: reads the CA, if one is configured.
    ///
    /// # Errors
    /// The CA cannot be used.
    pub(crate) fn new(settings: Otlp) -> Result<Self, OtlpSettingsError> {
        let roots = || settings.ca.as_deref().map_or(Ok(Roots::System), |ca| Pem::read(ca).map(Roots::Only));
        let is_tls = settings.endpoint.scheme_str() == Some("https");
        let tls = is_tls.then(|| tls::Client::new(roots()?, None)).transpose().map_err(OtlpSettingsError::Ca)?;
        Ok(Self { settings, tls })
    }

    /// Starts to send spans. Must be called on the async runtime.
    ///
    /// # Errors
    /// OpenTelemetry's exporter rejects the endpoint.
    pub(crate) fn start(self, clock: Clock) -> Result<Exporter, opentelemetry_otlp::ExporterBuildError> {
        let Self { settings, tls } = self;
        let collector = Collector::new(&settings.endpoint, tls, Handle::current(), clock);
        let tracer = Arc::new(Tracer::new(collector, &resource(), settings.sample, clock)?);
        Ok(Exporter { tracer, begins: settings.sample > 0.0 })
    }
}

// === impl Exporter ===

impl Exporter {
    /// Returns the functions that make spans from the call log's records.
    pub(crate) fn spans(&self) -> Spans {
        let tracer = Arc::clone(&self.tracer);
        Spans { begins: self.begins, take: Arc::new(move |record| tracer.take(record)) }
    }

    /// Sends the remaining spans, for five seconds at most.
    pub(crate) async fn finish(self) {
        // Waits for the tracer's thread, which sends on this one.
        drop(tokio::task::spawn_blocking(move || self.tracer.finish(PATIENCE)).await);
    }
}

/// Returns the attributes of this process for the collector. `OTEL_SERVICE_NAME` and
/// `OTEL_RESOURCE_ATTRIBUTES` override them.
fn resource() -> Resource {
    let own = Resource::builder_empty()
        .with_attribute(KeyValue::new("service.name", "tidegate"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let pod = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    let own = own.with_attributes(pod.map(|pod| KeyValue::new("service.instance.id", pod)));
    own.with_detector(Box::new(opentelemetry_sdk::resource::EnvResourceDetector::new()))
        .with_attributes(std::env::var("OTEL_SERVICE_NAME").ok().map(|name| KeyValue::new("service.name", name)))
        .build()
}

/// The longest wait for the collector at the end of the process.
const PATIENCE: Duration = Duration::from_secs(5);
