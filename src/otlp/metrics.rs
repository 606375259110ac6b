//! The metrics of `/metrics` in OpenTelemetry's form, with the same names, labels and values.
//!
//! They are made of the text that a scrape gets, which has everything that is to be told: the
//! recorder keeps no other list, and a second one would cost every call a second count.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1;
use opentelemetry_sdk::Resource;
use prost::Message as _;

use crate::telemetry::table::{self, Kind, TABLE};

/// The labels of a series, as the text has them.
type Labels = Vec<(String, String)>;

/// A sample: what follows the metric's name (`_bucket`, ...), its labels, its value.
type Sample<'a> = (&'a str, Labels, f64);

/// Returns the message for what a scrape shows, with the time since which counters count and that
/// of the scrape.
pub(super) fn encoded(text: &str, resource: &Resource, times: (SystemTime, SystemTime)) -> Vec<u8> {
    let attributes = resource.iter().map(|(key, value)| attribute(key.as_str(), &value.as_str())).collect();
    let scope = InstrumentationScope {
        name: "tidegate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let metrics = metrics(text, (nanos(times.0), nanos(times.1)));
    let of_scope = ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() };
    let resource = v1::Resource { attributes, ..v1::Resource::default() };
    let of_resource =
        ResourceMetrics { resource: Some(resource), scope_metrics: vec![of_scope], ..ResourceMetrics::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }.encode_to_vec()
}

/// Reads a scrape.
fn metrics(text: &str, times: (u64, u64)) -> Vec<Metric> {
    let mut samples: BTreeMap<&'static str, (&'static table::Metric, Vec<Sample<'_>>)> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels, value)) = sample(line) else { continue };
        let found = TABLE.iter().find_map(|metric| {
            let rest = name.strip_prefix(metric.name)?;
            let is_part = matches!(metric.kind, Kind::Histogram(_)) && PARTS.contains(&rest);
            (rest.is_empty() || is_part).then_some((*metric, rest))
        });
        if let Some((metric, part)) = found {
            samples.entry(metric.name).or_insert((metric, Vec::new())).1.push((part, labels, value));
        }
    }
    samples.into_values().map(|(metric, samples)| of(metric, samples, times)).collect()
}

/// Makes a metric of its samples.
fn of(metric: &table::Metric, samples: Vec<Sample<'_>>, times: (u64, u64)) -> Metric {
    let cumulative = AggregationTemporality::Cumulative.into();
    let numbers = |samples: Vec<Sample<'_>>| samples.into_iter().map(|sample| number(sample, times)).collect();
    let data = match metric.kind {
        Kind::Counter => {
            Data::Sum(Sum { data_points: numbers(samples), aggregation_temporality: cumulative, is_monotonic: true })
        }
        Kind::Gauge => Data::Gauge(Gauge { data_points: numbers(samples) }),
        Kind::Histogram(_) => {
            Data::Histogram(Histogram { data_points: histograms(samples, times), aggregation_temporality: cumulative })
        }
    };
    let unit = match metric.unit {
        "seconds" => "s".to_owned(),
        "bytes" => "By".to_owned(),
        unit if unit.contains(' ') => "1".to_owned(),
        unit => format!("{{{unit}}}"),
    };
    let (name, description) = (metric.name.to_owned(), metric.help.to_owned());
    Metric { name, description, unit, data: Some(data), ..Metric::default() }
}

fn number((_, labels, value): Sample<'_>, (from, to): (u64, u64)) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(&labels),
        start_time_unix_nano: from,
        time_unix_nano: to,
        value: Some(Number::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

/// Puts the parts of histograms together, by their labels without the bound of a bucket.
fn histograms(samples: Vec<Sample<'_>>, (from, to): (u64, u64)) -> Vec<HistogramDataPoint> {
    let mut points: BTreeMap<Labels, HistogramDataPoint> = BTreeMap::new();
    for (part, mut labels, value) in samples {
        let bound = labels.iter().position(|(name, _)| name == "le").map(|index| labels.remove(index).1);
        let point = points.entry(labels).or_default();
        match part {
            "_sum" => point.sum = Some(value),
            "_count" => point.count = count(value),
            _ => {
                // Each bucket of the text has those before it, too.
                let before: u64 = point.bucket_counts.iter().sum();
                point.bucket_counts.push(count(value).saturating_sub(before));
                let finite = bound.and_then(|bound| bound.parse().ok()).filter(|bound: &f64| bound.is_finite());
                point.explicit_bounds.extend(finite);
            }
        }
    }
    let finished = |(labels, point)| HistogramDataPoint {
        attributes: attributes(&labels),
        start_time_unix_nano: from,
        time_unix_nano: to,
        ..point
    };
    points.into_iter().map(finished).collect()
}

/// Reads a line of a scrape: `name{label="value",...} number`.
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at_checked(end)?;
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while let Some((label, after)) = rest.split_once("=\"") {
            let (value, after) = quoted(after)?;
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = after;
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
        }
        rest = rest.strip_prefix('}').unwrap_or(rest);
    }
    Some((name, labels, rest.trim().parse().ok()?))
}

/// Reads the rest of a text in quotes, and returns what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| attribute(name, value)).collect()
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the text has a count, which is whole and not negative"
)]
fn count(value: f64) -> u64 {
    value as u64
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The series of a histogram.
const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A scrape with all three kinds, and with everything that can stand in a label.
    const TEXT: &str = "# HELP tidegate_calls_total Calls\n# TYPE tidegate_calls_total counter\n\
        tidegate_calls_total{gate=\"a\",class=\"x \\\"}, y=\\\\\",code=\"2xx\"} 7\n\n\
        tidegate_build_info{version=\"1\"} 1\n\
        tidegate_config_hash 12.5\n\
        tidegate_wait_seconds_bucket{gate=\"a\",le=\"0.1\"} 2\n\
        tidegate_wait_seconds_bucket{gate=\"a\",le=\"1\"} 5\n\
        tidegate_wait_seconds_bucket{gate=\"a\",le=\"+Inf\"} 6\n\
        tidegate_wait_seconds_sum{gate=\"a\"} 3.5\n\
        tidegate_wait_seconds_count{gate=\"a\"} 6\n\
        elsewhere_total 3\n";

    fn read(text: &str) -> BTreeMap<String, Metric> {
        metrics(text, (1, 2)).into_iter().map(|metric| (metric.name.clone(), metric)).collect()
    }

    #[test]
    fn each_kind_is_told_with_its_labels_and_values() {
        let metrics = read(TEXT);
        let names: Vec<&str> = metrics.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["tidegate_build_info", "tidegate_calls_total", "tidegate_config_hash", "tidegate_wait_seconds"]
        );
        let Some(Data::Sum(calls)) = &metrics["tidegate_calls_total"].data else { panic!("{metrics:#?}") };
        assert!(calls.is_monotonic);
        let [point] = &calls.data_points[..] else { panic!("{calls:#?}") };
        assert_eq!(point.attributes[1], attribute("class", "x \"}, y=\\"));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1, 2));
        assert_eq!(point.value, Some(Number::AsDouble(7.0)));
        let Some(Data::Gauge(hash)) = &metrics["tidegate_config_hash"].data else { panic!("{metrics:#?}") };
        assert_eq!(hash.data_points[0].value, Some(Number::AsDouble(12.5)));
        let Some(Data::Histogram(waits)) = &metrics["tidegate_wait_seconds"].data else { panic!("{metrics:#?}") };
        let [point] = &waits.data_points[..] else { panic!("{waits:#?}") };
        assert_eq!((&point.explicit_bounds[..], &point.bucket_counts[..]), (&[0.1, 1.0][..], &[2, 3, 1][..]));
        assert_eq!((point.sum, point.count), (Some(3.5), 6));
        assert_eq!(point.attributes, [attribute("gate", "a")]);
    }

    /// Every series of a real scrape is told once, whatever other tests of this process record.
    #[test]
    fn a_scrape_of_this_process_is_told_whole() {
        table::WAIT_SECONDS.histogram(&["otlp_test", "a \"b\" \\ \n c", "bucket"]).record(0.3);
        table::CALLS.counter(&["otlp_test", "default", "normal", "get", "2xx"]).increment(1);
        let text = crate::telemetry::metrics().render();
        let bare = |line: &str| line.rsplit_once(' ').map_or("", |(series, _)| series).to_owned();
        let lines: BTreeSet<String> = text.lines().filter(|line| line.starts_with("tidegate_")).map(bare).collect();
        let others = |line: &&String| line.contains("_bucket{") || line.contains("_sum{");
        let histograms = lines.iter().filter(|line| line.contains("_bucket{")).count();
        assert!(histograms > 1, "{text}");
        let expected = lines.len() - lines.iter().filter(others).count();
        let told: usize = metrics(&text, (1, 2))
            .iter()
            .filter(|metric| metric.name.starts_with("tidegate_"))
            .map(|metric| match &metric.data {
                Some(Data::Sum(sum)) => sum.data_points.len(),
                Some(Data::Gauge(gauge)) => gauge.data_points.len(),
                Some(Data::Histogram(histogram)) => histogram.data_points.len(),
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(told, expected);
        let message =
            encoded(&text, &Resource::builder_empty().build(), (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH));
        let read = ExportMetricsServiceRequest::decode(&message[..]).expect("it is what it says");
        assert_eq!(read.resource_metrics.len(), 1);
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        for line in ["", "x", "tidegate_waiting", "tidegate_waiting{", "tidegate_waiting{a=\"b", "tidegate_waiting{} x"]
        {
            assert!(metrics(line, (1, 2)).is_empty(), "{line:?}");
        }
    }
}
