//! Spans of sampled calls, made from the calls' records in the call log.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Event, SpanContext, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, SpanId};
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, IdGenerator as _, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample as _, SpanData,
    SpanEvents, SpanLinks, SpanProcessor as _,
};

use super::collector::Collector;
use crate::clock::{Clock, wall_clock};
use crate::moment::Moment;
use crate::telemetry::{CallRecord, Trace};

/// Makes spans from records, and passes them to OpenTelemetry's SDK, which sends them in batches.
#[derive(Debug)]
pub(super) struct Tracer {
    batches: BatchSpanProcessor,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    /// Decides which calls without a trace get a new one.
    sampler: Sampler,
    clock: Clock,
}

// === impl Tracer ===

impl Tracer {
    pub(super) fn new(
        collector: Collector,
        resource: &Resource,
        sample: f64,
        clock: Clock,
    ) -> Result<Self, ExporterBuildError> {
        let endpoint = format!("{}/v1/traces", collector.url());
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(collector)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .build()?;
        let mut batches = BatchSpanProcessor::builder(exporter).build();
        batches.set_resource(resource);
        let scope = InstrumentationScope::builder("tidegate").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Self {
            batches,
            ids: RandomIdGenerator::default(),
            scope,
            sampler: Sampler::TraceIdRatioBased(sample),
            clock,
        })
    }

    /// Makes the span of a call from its record. If the client sent no trace, some records get a
    /// new one.
    pub(super) fn take(&self, record: &mut CallRecord) {
        if record.trace.is_none() {
            record.trace = self.begun().map(Box::new);
        }
        if let Some(trace) = record.trace.as_deref().filter(|trace| trace.is_sampled) {
            self.batches.on_end(self.span(record, trace));
        }
    }

    /// Sends the remaining spans.
    pub(super) fn finish(&self, patience: Duration) {
        // What could not be sent is counted as a failed sending.
        drop(self.batches.shutdown_with_timeout(patience));
    }

    /// Returns a new trace if the sampler chooses the call; otherwise `None`.
    fn begun(&self) -> Option<Trace> {
        let id = self.ids.new_trace_id();
        let judged = self.sampler.should_sample(None, id, "", &SpanKind::Server, &[], &[]);
        let id = u128::from_be_bytes(id.to_bytes());
        (judged.decision == SamplingDecision::RecordAndSample).then(|| Trace {
            id,
            parent: 0,
            is_sampled: true,
            state: "".into(),
        })
    }

    fn span(&self, record: &CallRecord, trace: &Trace) -> SpanData {
        let now = self.clock.now();
        let wall = wall_clock();
        let at = |moment: Moment| -> SystemTime { wall.checked_sub(now.since(moment)).unwrap_or(wall) };
        let state: TraceState = trace.state.parse().unwrap_or_default();
        let id = trace.id.into();
        let own = self.ids.new_span_id();
        let mut events = SpanEvents::default();
        let head = record.times.sent.zip(record.times.upstream).map(|(sent, took)| sent + took);
        for (name, moment) in [("sent upstream", record.times.sent), ("answer begins", head)] {
            events.events.extend(moment.map(|moment| Event::new(name, at(moment), Vec::new(), 0)));
        }
        SpanData {
            span_context: SpanContext::new(id, own, TraceFlags::SAMPLED, false, state),
            parent_span_id: SpanId::from(trace.parent),
            parent_span_is_remote: trace.parent != 0,
            span_kind: SpanKind::Server,
            name: name(record),
            start_time: at(record.times.arrived),
            end_time: at(record.times.ended),
            attributes: attributes(record),
            dropped_attributes_count: 0,
            events,
            links: SpanLinks::default(),
            status: status(record),
            instrumentation_scope: self.scope.clone(),
        }
    }
}

/// Returns the name of a span: verb and resource, so that there are few different names.
fn name(record: &CallRecord) -> Cow<'static, str> {
    match &*record.asked.resource {
        "" => record.verb.into(),
        resource => format!("{} {resource}", record.verb).into(),
    }
}

/// Returns the values of a call's log line, as attributes of its span.
fn attributes(record: &CallRecord) -> Vec<KeyValue> {
    let mut all = vec![
        KeyValue::new("http.request.method", record.method.to_string()),
        KeyValue::new("tidegate.gate", record.gate.to_string()),
        KeyValue::new("tidegate.class", record.class.name.to_string()),
        KeyValue::new("tidegate.lane", record.class.lane),
        KeyValue::new("tidegate.verb", record.verb),
    ];
    let asked = &record.asked;
    for (name, value) in [
        ("tidegate.group", &asked.group),
        ("tidegate.resource", &asked.resource),
        ("tidegate.subresource", &asked.subresource),
        ("tidegate.namespace", &asked.namespace),
        ("user_agent.original", &asked.user_agent),
    ] {
        all.extend((!value.is_empty()).then(|| KeyValue::new(name, value.to_string())));
    }
    let (wait, reason) = record.waited.map_or((Duration::ZERO, None), |(reason, wait)| (wait, Some(reason)));
    all.push(KeyValue::new("tidegate.wait.seconds", wait.as_secs_f64()));
    all.extend(reason.map(|reason| KeyValue::new("tidegate.wait.reason", reason.word())));
    all.extend(record.refused.map(|reason| KeyValue::new("tidegate.refusal", reason.word())));
    for (name, time) in
        [("tidegate.upstream.seconds", record.times.upstream), ("tidegate.retry_after.seconds", record.retry_after)]
    {
        all.extend(time.map(|time| KeyValue::new(name, time.as_secs_f64())));
    }
    all.extend(record.status.map(|status| KeyValue::new("http.response.status_code", i64::from(status))));
    all
}

fn status(record: &CallRecord) -> Status {
    match (record.refused, record.status) {
        (Some(reason), _) => Status::error(format!("refused: {}", reason.word())),
        (None, Some(500..)) => Status::error(""),
        (None, None) => Status::error("the client left"),
        (None, Some(_)) => Status::Unset,
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::limit::Reason;
    use crate::telemetry::{CallClass, CallTarget, CallTimes};

    fn record(clock: &Clock) -> CallRecord {
        let now = clock.now();
        CallRecord {
            gate: "kubernetes".into(),
            host: None,
            class: CallClass { name: "default".into(), lane: "normal", shadow: false },
            flow: 7,
            verb: "list",
            method: Method::GET,
            trace: Some(Box::new(Trace { id: 5, parent: 6, is_sampled: true, state: "a=1".into() })),
            asked: CallTarget { group: "apps".into(), resource: "deployments".into(), ..CallTarget::default() },
            key: None,
            waited: Some((Reason::Bucket, Duration::from_millis(20))),
            status: Some(200),
            refused: None,
            retry_after: None,
            times: CallTimes {
                arrived: now,
                sent: Some(now + Duration::from_millis(20)),
                upstream: Some(Duration::from_millis(5)),
                ended: now + Duration::from_millis(30),
                ..CallTimes::default()
            },
        }
    }

    /// A tracer whose spans go to a port that is closed.
    fn tracer(clock: Clock, sample: f64) -> Tracer {
        let endpoint = http::Uri::from_static("http://127.0.0.1:9");
        let collector = Collector::new(&endpoint, None, tokio::runtime::Handle::current(), clock);
        Tracer::new(collector, &Resource::builder_empty().build(), sample, clock).expect("it is a URL")
    }

    #[tokio::test(start_paused = true)]
    async fn a_span_says_what_held_the_call_and_how_long_everything_took() {
        let clock = Clock::start();
        let record = record(&clock);
        tokio::time::advance(Duration::from_millis(100)).await;
        let span = tracer(clock, 1.0).span(&record, record.trace.as_ref().expect("it has one"));
        assert_eq!(span.span_context.trace_id(), 5.into());
        assert_eq!((span.parent_span_id, span.parent_span_is_remote), (6.into(), true));
        assert_eq!(span.span_context.trace_state().get("a"), Some("1"));
        assert_eq!(&*span.name, "list deployments");
        let told = |key: &str| {
            let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
            found.map(|attribute| attribute.value.to_string())
        };
        assert_eq!(told("tidegate.wait.seconds").as_deref(), Some("0.02"));
        assert_eq!(told("tidegate.wait.reason").as_deref(), Some("bucket"));
        assert_eq!(told("http.response.status_code").as_deref(), Some("200"));
        assert_eq!(told("tidegate.refusal"), None);
        let took = span.end_time.duration_since(span.start_time).expect("in order");
        assert_eq!(took, Duration::from_millis(30));
        assert_eq!(span.status, Status::Unset);
        assert_eq!(span.events.len(), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_refusal_and_a_failure_are_errors_and_a_clients_mistake_is_not() {
        let clock = Clock::start();
        let with = |refused, code| status(&CallRecord { refused, status: code, ..record(&clock) });
        assert_eq!(with(Some(Reason::Bucket), Some(429)), Status::error("refused: bucket"));
        assert_eq!(with(None, Some(502)), Status::error(""));
        assert_eq!(with(None, None), Status::error("the client left"));
        for code in [200, 304, 404, 409, 429] {
            assert_eq!(with(None, Some(code)), Status::Unset, "{code}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_trace_is_begun_for_a_share_of_the_calls_that_have_none() {
        let clock = Clock::start();
        for (sample, expected) in [(0.0, 0..=0), (0.5, 350..=650), (1.0, 1000..=1000)] {
            let tracer = tracer(clock, sample);
            let begun = (0..1000).filter(|_| tracer.begun().is_some()).count();
            assert!(expected.contains(&begun), "{sample}: {begun}");
        }
        // What the client says of its trace holds, whatever the share.
        let mut unsampled = record(&clock);
        if let Some(trace) = &mut unsampled.trace {
            trace.is_sampled = false;
        }
        let before = unsampled.trace.clone();
        tracer(clock, 1.0).take(&mut unsampled);
        assert_eq!(unsampled.trace, before);
    }
}
