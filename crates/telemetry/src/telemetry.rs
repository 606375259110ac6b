//! Metrics, the log, and the call log.
//!
//! Every metric and its labels are in [`table`]. Values of labels are from closed sets or capped,
//! and are never the name of an object or a path (P9, P12). Metric handles are looked up once: a
//! registry lookup per call would cost more than the limiter.

// In the path of a call nothing may panic; every exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

pub mod call_log;
pub mod log;
pub mod meters;
mod passing;
pub mod table;
pub mod trace;

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use self::table::{MetricKind, TABLE};

pub use self::call_log::{CallClass, CallLog, CallRecord, CallTarget, CallTimes, Spans};
pub use self::meters::{GateMeters, UpstreamMeters};
pub use self::passing::ScrapeGauges;
pub use self::trace::Trace;

/// A function updating gauges just before they are read.
pub type Sampler = dyn Fn(&mut ScrapeGauges) + Send + Sync;

/// The process's metrics.
#[derive(Debug)]
pub struct Metrics {
    handle: PrometheusHandle,
    samplers: Mutex<Vec<Weak<Sampler>>>,
}

/// The process's metrics. A process can have only one recorder.
static METRICS: OnceLock<Metrics> = OnceLock::new();

/// Returns the process's metrics; the first call installs the recorder.
///
/// # Panics
/// Another recorder was installed before, by a program that uses two.
pub fn metrics() -> &'static Metrics {
    METRICS.get_or_init(Metrics::install)
}

// === impl Metrics ===

impl Metrics {
    #[expect(clippy::expect_used, reason = "once, at the start of the process, of a table that a test installs too")]
    fn install() -> Self {
        let mut builder = PrometheusBuilder::new();
        for metric in TABLE {
            if let MetricKind::Histogram(buckets) = metric.kind {
                builder = builder
                    .set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)
                    .expect("the table's buckets are not empty");
            }
        }
        let handle = builder.install_recorder().expect("the only recorder of the process");
        for metric in TABLE {
            metric.describe();
        }
        Self { handle, samplers: Mutex::new(Vec::new()) }
    }

    /// Registers `sampler` to be called before every reading of the metrics, until it is dropped.
    pub fn sample_by(&self, sampler: &Arc<Sampler>) {
        self.samplers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(sampler));
    }

    /// Writes all metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        table::BUILD_INFO.gauge(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        table::CALL_LOG_DROPPED.counter(&[]).increment(0);
        // Locked until all is read: of two readers at once, one would set a gauge back to what it had seen before the other.
        let mut samplers = self.samplers.lock().unwrap_or_else(PoisonError::into_inner);
        samplers.retain(|sampler| sampler.strong_count() > 0);
        let mut passing = ScrapeGauges::default();
        for sampler in samplers.iter().filter_map(Weak::upgrade) {
            sampler(&mut passing);
        }
        let mut text = self.handle.render();
        drop(samplers);
        passing.write(&mut text);
        text
    }

    /// Moves recorded values into histogram buckets. Call it every second: until then each value
    /// takes 16 bytes (10 MiB in a busy minute).
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// The interval for calling [`Metrics::upkeep`].
pub const UPKEEP: std::time::Duration = std::time::Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn what_is_rendered_is_what_the_table_declares() {
        table::KEYS_FAILING.gauge(&["render_test"]).set(3.0);
        table::WAIT_SECONDS.histogram(&["render_test", "default", "bucket"]).record(0.3);
        let text = metrics().render();
        assert!(text.contains("# TYPE tidegate_keys_failing gauge"), "{text}");
        assert!(text.contains("tidegate_keys_failing{gate=\"render_test\"} 3"), "{text}");
        assert!(text.contains("# TYPE tidegate_wait_seconds histogram"), "{text}");
        assert!(text.contains("tidegate_build_info{version="), "{text}");
    }

    #[test]
    fn a_sampler_runs_before_each_rendering_and_not_after_its_owner_is_gone() {
        let sampler: Arc<Sampler> = Arc::new(|_: &mut ScrapeGauges| table::WAITING.gauge(&["sampled"]).increment(1.0));
        metrics().sample_by(&sampler);
        assert!(metrics().render().contains("tidegate_waiting{gate=\"sampled\"} "));
        drop(sampler);
        let before = metrics().render();
        let line = |text: &str| text.lines().find(|line| line.contains("sampled")).map(str::to_owned);
        assert_eq!(line(&before), line(&metrics().render()));
    }

    #[test]
    fn of_two_readers_at_once_none_sets_a_gauge_back() {
        let inside = AtomicBool::new(false);
        let sampler: Arc<Sampler> = Arc::new(move |_: &mut ScrapeGauges| {
            assert!(!inside.swap(true, Ordering::SeqCst), "another reader is between its samples and its text");
            (0..100).for_each(|_| std::thread::yield_now());
            inside.store(false, Ordering::SeqCst);
        });
        metrics().sample_by(&sampler);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| drop(metrics().render())));
            }
        });
    }
}
