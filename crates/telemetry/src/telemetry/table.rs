//! The table of all metrics: name, kind, help, labels, buckets.
//!
//! A metric that is not in [`TABLE`] cannot be recorded, because only a [`Metric`] makes handles.
//! All label values come from closed sets (verbs, reasons, code classes), from the configuration
//! (gates, classes), through [`LabelCap`](super::meters::LabelCap), or from a bounded list (the
//! upstream's quotas, whose accounts are the digits of a salted hash).

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, SharedString, Unit};

use self::Since::{Later, Start};

/// The definition of one metric.
#[derive(Debug)]
pub struct Metric {
    /// The name in a scrape.
    pub name: &'static str,
    /// The kind of the metric.
    pub kind: MetricKind,
    /// The help text in a scrape.
    pub help: &'static str,
    /// The names of the labels, in the order of their values.
    pub labels: &'static [&'static str],
    /// When scrapes begin to contain the metric.
    pub since: Since,
}

/// When scrapes begin to contain a metric. Prometheus cannot see the first event of a counter that
/// the event creates (`rate` and `increase` miss it). So every metric whose label values are known
/// in advance is listed at zero from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// The metric is listed from the start of its gate.
    Start,
    /// The metric is listed from its first value.
    Later,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// A number that only rises.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// A histogram of seconds, with these buckets.
    Histogram(&'static [f64]),
}

/// Declares each metric as a static, and the table of all of them, so that no metric is missing in
/// the table.
macro_rules! metrics_table {
    ($($name:ident = $kind:expr, $text:literal, [$($label:literal),*], $since:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub static $name: Metric =
                Metric { name: $text, kind: $kind, help: $help, labels: &[$($label),*], since: $since };
        )*
        /// All metrics.
        pub static TABLE: &[&Metric] = &[$(&$name),*];
    };
}

metrics_table! {
    CALLS = MetricKind::Counter, "tidegate_calls_total", ["gate", "class", "lane", "verb", "code"], Later,
        "Calls answered, by the class of the status that the client got";
    DECISIONS = MetricKind::Counter, "tidegate_decisions_total", ["gate", "class", "decision"], Start,
        "Decisions about calls on arrival: go, wait (then counted as a wait or a refusal) or refuse; in shadow, those that it would have made";
    REFUSALS = MetricKind::Counter, "tidegate_refusals_total", ["gate", "class", "reason", "group", "resource"], Later,
        "Calls refused by the gate itself, on arrival or after waiting";
    REJECTIONS = MetricKind::Counter, "tidegate_upstream_rejections_total", ["gate", "class", "by"], Start,
        "Calls rejected by the upstream, not by the gate: by API priority and fairness, another rate limit, a disruption budget, or for their credentials";
    FAILURES = MetricKind::Counter, "tidegate_failures_total", ["gate", "class", "kind"], Start,
        "Calls that the gate could not complete: no connection, lost after sending, or no answer in time";
    HANGUPS = MetricKind::Counter, "tidegate_hangups_total", ["gate", "class"], Start,
        "Callers that left while their call waited";
    REVALIDATED = MetricKind::Counter, "tidegate_revalidated_total", ["gate", "class"], Start,
        "Calls answered from a stored response, after the upstream answered 304";
    KEPT_BYTES = MetricKind::Gauge, "tidegate_kept_bytes", ["gate"], Start,
        "Bytes of responses stored for revalidation";
    SIGNALS = MetricKind::Counter, "tidegate_signals_total", ["gate", "class", "signal"], Later,
        "Upstream responses that caused a wait, by signal";
    GUARDED = MetricKind::Counter, "tidegate_guarded_total", ["gate", "rule"], Later,
        "Requests rejected by the guard";
    DENIED_CLIENTS = MetricKind::Counter, "tidegate_denied_clients_total", ["gate", "why"], Later,
        "Calls of rejected clients, on a gate that authenticates its clients";
    CLIENT_REVIEWS = MetricKind::Counter, "tidegate_client_reviews_total", ["gate", "result"], Later,
        "Reviews of clients' tokens by the API server: right, wrong, or failed (no answer)";
    WAIT_SECONDS = MetricKind::Histogram(WAITS), "tidegate_wait_seconds", ["gate", "class", "reason"], Later,
        "Time that calls waited before they left; calls without a wait are not counted";
    SHADOW = MetricKind::Gauge, "tidegate_shadow", ["gate", "class"], Start,
        "1 for a class in shadow, and at a shadow for each: its calls are decided about, and none is held";
    SHADOW_WAIT_SECONDS = MetricKind::Histogram(WAITS), "tidegate_shadow_wait_seconds", ["gate", "class", "reason"], Later,
        "Time that calls in shadow would have waited, where nothing is held and they went at once";
    SHADOW_REFUSALS = MetricKind::Counter, "tidegate_shadow_refusals_total", ["gate", "class", "reason"], Later,
        "Calls in shadow that would have been refused, where nothing is held and they went at once";
    CANDIDATE_WAIT_SECONDS = MetricKind::Histogram(WAITS), "tidegate_candidate_wait_seconds", ["gate", "class", "reason"], Later,
        "Time that calls would have waited under the gate's candidate, beside tidegate_wait_seconds under the limits in force";
    CANDIDATE_REFUSALS = MetricKind::Counter, "tidegate_candidate_refusals_total", ["gate", "class", "reason"], Later,
        "Calls that the gate's candidate would have refused, beside tidegate_refusals_total under the limits in force";
    UPSTREAM_SECONDS = MetricKind::Histogram(ANSWERS), "tidegate_upstream_seconds", ["gate", "class"], Later,
        "Time from leaving to the response head; long-running calls are not in it";
    CLIENT_GO_WAIT = MetricKind::Histogram(CLIENT_GO), "rest_client_rate_limiter_duration_seconds", ["verb", "host"], Later,
        "client-go's own metric, for its dashboards: how long the rate limiter held calls, by method and host; 0 for those that went at once";
    IN_FLIGHT = MetricKind::Gauge, "tidegate_in_flight", ["gate", "class"], Later,
        "Calls inside the gate, from arrival to the end of the response body";
    WAITING = MetricKind::Gauge, "tidegate_waiting", ["gate"], Start,
        "Calls waiting now, in queues or for their keys; 0 at a shadow, which holds none";
    QUEUE_LENGTH = MetricKind::Gauge, "tidegate_queue_length", ["gate", "class"], Start,
        "Calls in the queues of a class now; 0 at a shadow";
    WAITING_BYTES = MetricKind::Gauge, "tidegate_waiting_bytes", ["gate"], Start,
        "Bytes of bodies, and of heads past 8 KiB, held while their calls wait; 0 at a shadow";
    KEYS_FAILING = MetricKind::Gauge, "tidegate_keys_failing", ["gate"], Start,
        "Keys that back off; at a shadow, that would";
    HOT_OBJECTS = MetricKind::Gauge, "tidegate_hot_objects", ["gate"], Start,
        "Objects that are called too often (per_key) or in vain";
    BUCKET_TOKENS = MetricKind::Gauge, "tidegate_bucket_tokens", ["gate", "bucket"], Later,
        "Tokens in a bucket now; of one that is split, of the part with least; below zero where some are promised";
    BUCKET_RATE = MetricKind::Gauge, "tidegate_bucket_rate", ["gate", "bucket"], Later,
        "Tokens per second that a bucket gains now: less than configured while the upstream throttles";
    SHARED_TOKENS = MetricKind::Counter, "tidegate_shared_tokens_total", ["gate", "bucket", "what"], Later,
        "Tokens of a shared bucket at this gate, by use; fallback: calls sent while its store was away";
    SHARED_HELD = MetricKind::Gauge, "tidegate_shared_held", ["gate", "bucket"], Later,
        "Tokens of a shared bucket that this gate holds now";
    SHARED_LEVEL = MetricKind::Gauge, "tidegate_shared_level", ["gate", "bucket"], Later,
        "Tokens in a shared bucket after the last answer of its store; of one that is split, of the part with fewest; below zero where some are promised";
    SHARED_MEMBERS = MetricKind::Gauge, "tidegate_shared_members", ["gate", "bucket"], Later,
        "Gates that use a shared bucket, by the last answer of its store; of one that is split, of the part that most use; 0 before the first";
    SHARED_AWAY = MetricKind::Gauge, "tidegate_shared_away", ["gate", "bucket"], Later,
        "1 while the gate goes on without the store of a shared bucket";
    SHARED_DIFFERS = MetricKind::Gauge, "tidegate_shared_differs", ["gate", "bucket"], Later,
        "1 while another gate has stricter limits for a shared bucket, which then hold for all";
    STORE_UP = MetricKind::Gauge, "tidegate_store_up", ["store"], Later,
        "1 while a store of shared buckets answers";
    STORE_ASKS = MetricKind::Counter, "tidegate_store_asks_total", ["store", "result"], Later,
        "Requests to a store of shared buckets, by result";
    STORE_SECONDS = MetricKind::Histogram(STORES), "tidegate_store_seconds", ["store"], Later,
        "Time of a request to a store of shared buckets";
    PAUSES = MetricKind::Gauge, "tidegate_pauses", ["gate", "scope"], Start,
        "Pauses in force that the upstream asked for (at most a hundred are counted)";
    QUOTA_LIMIT = MetricKind::Gauge, "tidegate_quota_limit", ["gate", "resource", "account"], Later,
        "Size of an upstream quota, by the last response";
    QUOTA_REMAINING = MetricKind::Gauge, "tidegate_quota_remaining", ["gate", "resource", "account"], Later,
        "Calls left of an upstream quota, by the last response";
    QUOTA_RESET = MetricKind::Gauge, "tidegate_quota_reset_seconds", ["gate", "resource", "account"], Later,
        "Time until an upstream quota resets, by the last response";
    QUOTA_RUNS_OUT = MetricKind::Gauge, "tidegate_quota_runs_out_seconds", ["gate", "resource", "account"], Later,
        "Time until an upstream quota is used up at the present rate, if that is before its reset";
    SLOTS = MetricKind::Gauge, "tidegate_slots_in_use", ["gate"], Start,
        "Places taken among the calls in flight";
    CONNECTIONS = MetricKind::Gauge, "tidegate_upstream_connections", ["gate", "group"], Start,
        "Connections to the upstream";
    STREAMS = MetricKind::Gauge, "tidegate_upstream_streams", ["gate", "group"], Start,
        "Calls out on connections to the upstream";
    REPLAYS = MetricKind::Counter, "tidegate_upstream_replays_total", ["gate", "group"], Start,
        "Calls sent again because the upstream had not processed them (GOAWAY, REFUSED_STREAM, idle connection closed)";
    DIAL_FAILURES = MetricKind::Counter, "tidegate_upstream_dial_failures_total", ["gate", "group"], Start,
        "Connections to the upstream that could not be made";
    CLIENT_CONNECTIONS = MetricKind::Gauge, "tidegate_client_connections", ["gate"], Start,
        "Connections of clients";
    EGRESS_CONNECTIONS = MetricKind::Counter, "tidegate_egress_connections_total", ["how"], Later,
        "Connections of clients of the egress listener: intercepted, tunnelled unread, plain HTTP, or refused";
    EGRESS_HANDSHAKES = MetricKind::Counter, "tidegate_egress_handshake_failures_total", ["gate", "why"], Later,
        "TLS handshakes that failed where TLS is opened: untrusted (the client does not trust the CA), sni, protocol, timeout";
    EGRESS_REFUSALS = MetricKind::Counter, "tidegate_egress_refusals_total", ["why"], Later,
        "Tunnels and requests that the egress listener refused";
    EGRESS_ORIGINS = MetricKind::Gauge, "tidegate_egress_origins", [], Later,
        "Hosts that have limits or connections of their own now";
    EGRESS_CALLS = MetricKind::Counter, "tidegate_egress_calls_total", ["gate", "host", "decision"], Later,
        "Calls through the egress listener by host: go (sent) or refuse; after 300 hosts the host is other";
    HUB_CLUSTERS = MetricKind::Gauge, "tidegate_hub_clusters", ["gate"], Later,
        "Clusters that have limits or connections of their own now";
    HUB_CALLS = MetricKind::Counter, "tidegate_hub_calls_total", ["gate", "cluster", "decision"], Later,
        "Calls by cluster: go (sent) or refuse; after 300 clusters the cluster is other";
    EGRESS_TUNNELS = MetricKind::Gauge, "tidegate_egress_tunnels", [], Later,
        "Tunnels that are open now";
    EGRESS_BYTES = MetricKind::Counter, "tidegate_egress_tunnel_bytes_total", ["direction"], Later,
        "Bytes that tunnels have carried: up (to the host) or down";
    RELOADS = MetricKind::Counter, "tidegate_config_reloads_total", ["result"], Start,
        "Reloads: applied, unchanged, invalid (nothing changed), or restart_needed (nothing changed)";
    RELOADED = MetricKind::Gauge, "tidegate_config_last_reload_success_timestamp_seconds", [], Start,
        "When the configuration in force was taken over";
    CONFIG_HASH = MetricKind::Gauge, "tidegate_config_hash", [], Start,
        "Hash of the configuration in force: equal numbers, equal configurations";
    BYPASS = MetricKind::Gauge, "tidegate_bypass", ["gate"], Start,
        "1 while the bypass is on";
    BYPASSED = MetricKind::Counter, "tidegate_bypassed_total", ["gate"], Start,
        "Calls let through by the bypass";
    FORGOTTEN = MetricKind::Counter, "tidegate_forgotten_keys_total", ["gate"], Start,
        "Failing keys forgotten by an operator";
    LIFTED = MetricKind::Counter, "tidegate_lifted_pauses_total", ["gate"], Start,
        "Pauses of the upstream lifted by an operator";
    DROPPED_QUOTAS = MetricKind::Counter, "tidegate_dropped_pauses_total", ["gate"], Start,
        "Pauses forgotten because more than 1,024 quotas had one";
    CALL_LOG_DROPPED = MetricKind::Counter, "tidegate_call_log_dropped_total", [], Start,
        "Lines of the call log that were dropped because the disk was too slow";
    OTLP_SENDINGS = MetricKind::Counter, "tidegate_otlp_sendings_total", ["signal", "result"], Later,
        "Batches of spans (traces) sent to the OpenTelemetry collector, by result (ok, failed)";
    CREDENTIALS_AGE = MetricKind::Gauge, "tidegate_credentials_age_seconds", ["gate"], Later,
        "Time since the gate's own credentials were last read from their file";
    BUILD_INFO = MetricKind::Gauge, "tidegate_build_info", ["version"], Start,
        "What is running";
}

/// Buckets for waits: from a millisecond (the timer's grain) to half an hour (`max_wait` may be
/// that long).
const WAITS: &[f64] =
    &[0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
/// Buckets for answers of stores: from one on the same machine to a timeout.
const STORES: &[f64] = &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
/// Buckets for response times: from a cached read on the same node to kube-apiserver's own limit of
/// a minute.
const ANSWERS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Buckets as client-go has them, so that existing dashboards fit.
const CLIENT_GO: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// The metadata the recorder gets for every metric.
static METADATA: Metadata<'static> = Metadata::new("tidegate", Level::INFO, None);

// === impl Metric ===

impl Metric {
    /// Returns the counter with these label values.
    pub fn counter(&self, values: &[&str]) -> Counter {
        super::metrics(); // a handle made before the recorder is there would count into the void
        metrics::with_recorder(|recorder| recorder.register_counter(&self.key(values), &METADATA))
    }

    /// Returns the gauge with these label values.
    pub fn gauge(&self, values: &[&str]) -> Gauge {
        super::metrics(); // a handle made before the recorder is there would count into the void
        metrics::with_recorder(|recorder| recorder.register_gauge(&self.key(values), &METADATA))
    }

    /// Returns the histogram with these label values.
    pub fn histogram(&self, values: &[&str]) -> Histogram {
        super::metrics(); // a handle made before the recorder is there would count into the void
        metrics::with_recorder(|recorder| recorder.register_histogram(&self.key(values), &METADATA))
    }

    /// Passes the help text to the recorder.
    pub(super) fn describe(&self) {
        let name = KeyName::from_const_str(self.name);
        let help = SharedString::const_str(self.help);
        metrics::with_recorder(|recorder| match self.kind {
            MetricKind::Counter => recorder.describe_counter(name, None, help),
            MetricKind::Gauge => recorder.describe_gauge(name, None, help),
            MetricKind::Histogram(_) => recorder.describe_histogram(name, Some(Unit::Seconds), help),
        });
    }

    fn key(&self, values: &[&str]) -> Key {
        debug_assert_eq!(values.len(), self.labels.len(), "{}", self.name);
        let labels: Vec<Label> =
            self.labels.iter().zip(values).map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
        Key::from_parts(self.name, labels)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_end_as_prometheus_wants() {
        let names: BTreeSet<_> = TABLE.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), TABLE.len());
        for metric in TABLE {
            assert_eq!(metric.kind == MetricKind::Counter, metric.name.ends_with("_total"), "{}", metric.name);
            let is_moment = ["_timestamp_seconds", "_age_seconds", "_reset_seconds", "_runs_out_seconds"]
                .iter()
                .any(|end| metric.name.ends_with(end));
            let is_time = metric.name.ends_with("_seconds") && !is_moment;
            assert_eq!(matches!(metric.kind, MetricKind::Histogram(_)), is_time, "{}", metric.name);
        }
    }

    #[test]
    fn no_label_could_hold_a_name_or_a_path() {
        let closed = BTreeSet::from([
            "gate",
            "class",
            "lane",
            "verb",
            "code",
            "reason",
            "group",
            "resource",
            "kind",
            "rule",
            "host",
            "cluster",
            "bucket",
            "scope",
            "signal",
            "version",
            "result",
            "by",
            "decision",
            "store",
            "what",
            "account",
            "how",
            "why",
            "direction",
        ]);
        for label in TABLE.iter().flat_map(|metric| metric.labels) {
            assert!(closed.contains(label), "{label}");
        }
    }

    #[test]
    fn buckets_rise() {
        for metric in TABLE {
            if let MetricKind::Histogram(buckets) = metric.kind {
                assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]), "{}", metric.name);
            }
        }
    }
}
