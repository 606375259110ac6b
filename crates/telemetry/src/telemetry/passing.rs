//! Gauges of things that come and go, such as hourly credentials. The recorder would list a gauge
//! until the process ends; these gauges are listed only as long as their thing exists.

use std::collections::BTreeMap;

use metrics_exporter_prometheus::formatting;

use super::table::Metric;

/// The gauges of one reading of the metrics, by metric and labels.
#[derive(Debug, Default)]
pub struct ScrapeGauges(BTreeMap<&'static str, Family>);

/// The gauges of one metric, by their labels as text.
#[derive(Debug)]
struct Family {
    help: &'static str,
    values: BTreeMap<String, f64>,
}

// === impl ScrapeGauges ===

impl ScrapeGauges {
    /// Sets the gauge with these label values, for this reading of the metrics.
    pub fn set(&mut self, metric: &'static Metric, values: &[&str], value: f64) {
        debug_assert_eq!(values.len(), metric.labels.len(), "{}", metric.name);
        let label = |(name, value)| format!("{name}=\"{}\"", formatting::sanitize_label_value(value));
        let labels: Vec<_> = metric.labels.iter().zip(values.iter().copied()).map(label).collect();
        let family = self.0.entry(metric.name).or_insert_with(|| Family { help: metric.help, values: BTreeMap::new() });
        family.values.insert(labels.join(","), value);
    }

    /// Appends all gauges in Prometheus' text format.
    pub(super) fn write(&self, text: &mut String) {
        for (name, Family { help, values }) in &self.0 {
            formatting::write_help_line(text, name, None, None, help);
            formatting::write_type_line(text, name, None, None, "gauge");
            values.iter().for_each(|(labels, value)| text.push_str(&format!("{name}{{{labels}}} {value}\n")));
        }
    }
}
