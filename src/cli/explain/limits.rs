//! The limits that apply to a call, each with the place in the configuration that sets it.

use http::HeaderMap;

use crate::{
    api::duration,
    classify::Classified,
    config::{Loaded, settings::Gate},
    limit::policy::{BucketPolicy, ClassPolicy, InFlight, Lane, Per, Strategy},
    status::text::number,
    telemetry::meters::lane_word,
};

/// The name, the value, and the place that sets it.
type Row = (&'static str, String, String);

/// Returns the rows for class, flow, key and every limit.
pub(super) fn rows(loaded: &Loaded, gate: &Gate, call: &Classified, headers: &HeaderMap) -> Vec<Row> {
    let Some(class) = gate.policy.classes.get(usize::from(call.class.0)) else { return Vec::new() };
    let from = From { loaded, gate: &gate.name, class: &class.name };
    let mut rows: Vec<Row> = Vec::new();
    let place = from.loaded.origins.of_class(&gate.name, &class.name, None);
    rows.push((
        "class",
        format!("{}, lane {}", class.name, lane_word(class.lane)),
        place.unwrap_or_else(|| BUILT_IN.to_owned()),
    ));
    let fair = format!("fair_by = \"{}\": {}", gate.rules.fair_by(), from.gate(&["queue", "fair_by"]));
    rows.push(("flow", call.flow_name(headers).to_string(), fair));
    rows.push(("connections", call.group.word().replace('_', "-"), String::new()));
    if class.lane == Lane::Exempt {
        rows.push((
            "limits",
            "none: it never waits, spends nothing, and its failures are not remembered".to_owned(),
            String::new(),
        ));
        return rows;
    }
    rows.push(("key", key(call), from.gate(&["key"])));
    buckets(&mut rows, gate, class, call, &from);
    slots(&mut rows, gate, class, call, &from);
    backoff(&mut rows, gate, class, &from);
    let wait = format!("at most {}", duration::write(gate.policy.queue.max_wait));
    rows.push(("waits", wait, from.gate(&["queue", "max_wait"])));
    if let Some(timeout) = call.call.timeout() {
        let half = format!("at most {}: half of its own deadline", duration::write(timeout / 2));
        rows.push(("", half, "?timeout=".to_owned()));
    }
    rows
}

/// Looks up the place that sets a key.
struct From<'a> {
    loaded: &'a Loaded,
    gate: &'a str,
    class: &'a str,
}

impl From<'_> {
    fn gate(&self, keys: &[&str]) -> String {
        let path: Vec<&str> = ["gates", self.gate].into_iter().chain(keys.iter().copied()).collect();
        let of = |path: &[&str]| self.loaded.origins.of(path);
        // A limit that the configuration does not set comes from the preset, or from the defaults.
        of(&path).unwrap_or_else(|| match of(&["gates", self.gate, "preset"]) {
            Some(preset) => format!("preset, {preset}"),
            None => "preset \"sidecar\"".to_owned(),
        })
    }

    fn class(&self, class: &str, key: &str) -> String {
        self.loaded.origins.of_class(self.gate, class, Some(key)).unwrap_or_else(|| BUILT_IN.to_owned())
    }
}

fn key(call: &Classified) -> String {
    match call.key.known() {
        Some(_) => call.key_name(None),
        None if call.key.needs_body() => format!("{} (and what its body says)", call.key_name(None)),
        None => "none: nothing is remembered of its failures".to_owned(),
    }
}

fn buckets(rows: &mut Vec<Row>, gate: &Gate, class: &ClassPolicy, call: &Classified, from: &From<'_>) {
    if call.call.is_long_running() && !call.call.lists_first() && !class.meter_long_running {
        rows.push((
            "buckets",
            "none: it is long-running, and its class does not meter that".to_owned(),
            from.class(from.class, "meter_long_running"),
        ));
        return;
    }
    match &gate.policy.bucket {
        Some(_) if class.own_bucket_only => {
            rows.push((
                "bucket",
                "not the gate's: own_bucket_only".to_owned(),
                from.class(from.class, "own_bucket_only"),
            ));
        }
        Some(bucket) => rows.push(("bucket", size(bucket), from.gate(&["bucket"]))),
        None => rows.push(("bucket", "none".to_owned(), from.gate(&["bucket"]))),
    }
    let mut next = Some(class);
    for _ in 0..gate.policy.classes.len() {
        let Some(class) = next else { break };
        if let Some(bucket) = &class.bucket {
            rows.push((
                "class bucket",
                format!("{} of class {}", size(bucket), class.name),
                from.class(&class.name, "bucket"),
            ));
        }
        next = class.within.and_then(|outer| gate.policy.classes.get(usize::from(outer.0)));
    }
    let retry = gate
        .policy
        .retry_bucket
        .as_ref()
        .map_or_else(|| "none".to_owned(), |bucket| format!("{}, while its key fails", size(bucket)));
    rows.push(("retry bucket", retry, from.gate(&["retry_bucket"])));
}

fn slots(rows: &mut Vec<Row>, gate: &Gate, class: &ClassPolicy, call: &Classified, from: &From<'_>) {
    if call.call.is_long_running() {
        return;
    }
    let size = |slots: InFlight| format!("{} in flight{}", slots.max, per(slots.per));
    if let Some(slots) = gate.policy.in_flight {
        rows.push(("slots", size(slots), from.gate(&["in_flight"])));
    }
    if let Some(slots) = class.in_flight {
        rows.push(("class slots", size(slots), from.class(&class.name, "in_flight")));
    }
}

fn backoff(rows: &mut Vec<Row>, gate: &Gate, class: &ClassPolicy, from: &From<'_>) {
    let says = match class.backoff.strategy {
        Strategy::Off => "off".to_owned(),
        Strategy::Exponential { base, max, .. } => {
            format!(
                "{} doubling to {}, held for {}",
                duration::write(base),
                duration::write(max),
                duration::write(class.backoff.hold)
            )
        }
        Strategy::FastSlow { fast, slow, fast_attempts } => {
            format!("{} for {fast_attempts} failures, then {}", duration::write(fast), duration::write(slow))
        }
    };
    let of_class = from.loaded.origins.of_class(&gate.name, &class.name, Some("backoff"));
    rows.push(("backoff", says, of_class.unwrap_or_else(|| from.gate(&["backoff"]))));
}

fn size(bucket: &BucketPolicy) -> String {
    format!("{}/s, burst {}{}", number(bucket.rate), bucket.burst, per(bucket.per))
}

fn per(per: Per) -> &'static str {
    match per {
        Per::Gate => "",
        Per::Flow => " for each flow",
        Per::Credential => " for each credential",
    }
}

const BUILT_IN: &str = "built in";
