//! The exporters, as they are prepared, started and finished.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::collector::Collector;
use super::spans::Tracer;
use super::{METRICS, Unusable, metrics};
use crate::clock::Clock;
use crate::spec::Otlp;
use crate::telemetry::Spans;
use crate::tls::{self, Pem, Roots};

/// Everything that is needed to send.
#[derive(Debug)]
pub(crate) struct PreparedOtlp {
    settings: Otlp,
    tls: Option<tls::Client>,
}

/// The running exporters, until they are finished.
#[derive(Debug)]
pub(crate) struct Exporters {
    tracer: Option<Arc<Tracer>>,
    /// True if calls without a trace may get one.
    begins: bool,
    metrics: Option<JoinHandle<()>>,
    stop: CancellationToken,
}

// === impl PreparedOtlp ===

impl PreparedOtlp {
    /// Reads the file that the settings name.
    ///
    /// # Errors
    /// The CA cannot be used.
    pub(crate) fn new(settings: Otlp) -> Result<Self, Unusable> {
        let roots = || settings.ca.as_deref().map_or(Ok(Roots::System), |ca| Pem::read(ca).map(Roots::Only));
        let is_tls = settings.endpoint.scheme_str() == Some("https");
        let tls = is_tls.then(|| tls::Client::new(roots()?, None)).transpose().map_err(Unusable::Ca)?;
        Ok(Self { settings, tls })
    }

    /// Starts to send. Call it on the runtime.
    ///
    /// # Errors
    /// OpenTelemetry's exporter does not take the endpoint.
    pub(crate) fn start(self, clock: Clock) -> Result<Exporters, opentelemetry_otlp::ExporterBuildError> {
        let Self { settings, tls } = self;
        let collector = Arc::new(Collector::new(&settings.endpoint, tls, Handle::current(), clock));
        let (resource, stop) = (resource(), CancellationToken::new());
        let tracer = settings.traces.then(|| Tracer::new(&collector, &resource, settings.sample, clock));
        let tracer = tracer.transpose()?.map(Arc::new);
        let (interval, stopped) = (settings.interval, stop.clone());
        let metrics = settings.metrics.then(|| {
            tokio::spawn(async move {
                let mut stops = false;
                let from = crate::clock::wall_clock();
                while !stops {
                    stops = tokio::select! {
                        () = stopped.cancelled() => true,
                        () = clock.sleep(interval) => false,
                    };
                    let now = crate::clock::wall_clock();
                    let text = crate::telemetry::metrics().render();
                    // What became of it is counted; the next sending has all of it again.
                    collector.post(METRICS, metrics::encoded(&text, &resource, (from, now))).await;
                }
            })
        });
        Ok(Exporters { tracer, begins: settings.sample > 0.0, metrics, stop })
    }
}

// === impl Exporters ===

impl Exporters {
    /// Returns what the call log hands its records to.
    pub(crate) fn spans(&self) -> Option<Spans> {
        let tracer = Arc::clone(self.tracer.as_ref()?);
        Some(Spans { begins: self.begins, take: Arc::new(move |record| tracer.take(record)) })
    }

    /// Sends what is left, for five seconds at most.
    pub(crate) async fn finish(self) {
        self.stop.cancel();
        let spans = async {
            if let Some(tracer) = self.tracer {
                // Waits for its thread, which sends on this one.
                drop(tokio::task::spawn_blocking(move || tracer.finish(PATIENCE)).await);
            }
        };
        let metrics = async {
            if let Some(metrics) = self.metrics {
                drop(tokio::time::timeout(PATIENCE, metrics).await); // the collector's absence is logged already
            }
        };
        tokio::join!(spans, metrics);
    }
}

/// Returns what describes this process. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` go
/// first.
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

/// The time that the end of the process waits for the collector.
const PATIENCE: Duration = Duration::from_secs(5);
