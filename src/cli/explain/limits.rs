//! The limits of a call, with the places in the configuration that set them.

use http::HeaderMap;

use super::Rows;
use crate::api::duration;
use crate::classify::ClassifiedCall;
use crate::config::Configuration;
use crate::limit::policy::{BucketPolicy, ClassPolicy, Cost, InFlight, Lane, Per, Strategy};
use crate::spec::Gate;
use crate::status::SharedBucket;
use crate::status::text::number;

/// A call to be explained at one gate.
pub(super) struct ExplainedCall<'a> {
    pub(super) loaded: &'a Configuration,
    pub(super) gate: &'a Gate,
    pub(super) call: &'a ClassifiedCall,
    pub(super) headers: &'a HeaderMap,
    /// The state of the gate's shared buckets, from the running process.
    pub(super) now: &'a [SharedBucket],
}

/// Adds the lines about the call's class, flow, key and limits.
pub(super) fn add(rows: &mut Rows, explained: &ExplainedCall<'_>) {
    let ExplainedCall { loaded, gate, call, headers, .. } = *explained;
    let Some(class) = gate.policy.classes.get(usize::from(call.class.0)) else { return };
    let from = From { loaded, gate: &gate.name };
    let shadow = if class.shadow { ", in shadow" } else { "" };
    rows.add("class", format!("{}, lane {}{shadow}", class.name, class.lane), from.class(&class.name, None));
    let fair = format!("fair_by = \"{}\": {}", gate.rules.fair_by, from.gate(&["queue", "fair_by"]));
    rows.add("flow", call.flow_name(headers).to_string(), fair);
    rows.add("connections", call.group.word().replace('_', "-"), "");
    if class.lane == Lane::Exempt {
        rows.add("limits", "none: it never waits, spends nothing, and its failures are not remembered", "");
        return;
    }
    rows.add("key", key(call), from.gate(&["key"]));
    if class.cost != Cost::default() {
        let cost = class.cost.of(call.cost);
        let plural = if cost == 1 { "" } else { "s" };
        rows.add("cost", format!("{cost} token{plural}"), from.class(&class.name, Some("cost")));
    }
    add_buckets(rows, explained, class, &from);
    if !call.call.is_long_running {
        let size = |slots: InFlight| format!("{} in flight{}", slots.max, per(slots.per));
        if let Some(slots) = gate.policy.in_flight {
            rows.add("slots", size(slots), from.gate(&["in_flight"]));
        }
        if let Some(slots) = class.in_flight {
            rows.add("class slots", size(slots), from.class(&class.name, Some("in_flight")));
        }
    }
    let is_counted = call.key.known().is_some_and(|key| !key.is_collection_read());
    let per_key = class.per_key.filter(|per_key| per_key.enforce && is_counted);
    if let Some(pace) = per_key.and_then(|per_key| per_key.pace(call.reads())) {
        let of = if call.reads() { "reads" } else { "writes" };
        let says = format!("{of} of one object: {}/s, burst {}", number(pace.rate()), pace.burst());
        let of_class = loaded.origins.of_class(&gate.name, &class.name, Some("per_key"));
        rows.add("per key", says, of_class.unwrap_or_else(|| from.gate(&["per_key"])));
    }
    let of_class = loaded.origins.of_class(&gate.name, &class.name, Some("backoff"));
    rows.add("backoff", backoff(class), of_class.unwrap_or_else(|| from.gate(&["backoff"])));
    let wait = format!("at most {}", duration::write(gate.policy.queue.max_wait));
    rows.add("waits", wait, from.gate(&["queue", "max_wait"]));
    if let Some(timeout) = call.call.timeout {
        let half = format!("at most {}: half of its own deadline", duration::write(timeout / 2));
        rows.add("", half, "?timeout=");
    }
}

/// Finds the places in the configuration that set a gate's keys.
struct From<'a> {
    loaded: &'a Configuration,
    gate: &'a str,
}

impl From<'_> {
    fn gate(&self, keys: &[&str]) -> String {
        let of = |keys: &[&str]| self.loaded.origins.of(&[&["gates", self.gate], keys].concat());
        // A limit that the configuration does not set comes from the preset, or from the defaults.
        of(keys).unwrap_or_else(|| match of(&["preset"]) {
            Some(preset) => format!("preset, {preset}"),
            None => "preset \"sidecar\"".to_owned(),
        })
    }

    fn class(&self, class: &str, key: Option<&str>) -> String {
        self.loaded.origins.of_class(self.gate, class, key).unwrap_or_else(|| "built in".to_owned())
    }
}

fn key(call: &ClassifiedCall) -> String {
    match call.key.known() {
        Some(_) => call.key_name(None),
        None if call.key.needs_body() => format!("{} (and what its body says)", call.key_name(None)),
        None => "none: nothing is remembered of its failures".to_owned(),
    }
}

fn add_buckets(rows: &mut Rows, explained: &ExplainedCall<'_>, class: &ClassPolicy, from: &From<'_>) {
    let ExplainedCall { gate, call, now, .. } = *explained;
    if call.call.is_long_running && !call.call.lists_first && !class.meter_long_running {
        let place = from.class(&class.name, Some("meter_long_running"));
        rows.add("buckets", "none: it is long-running, and its class does not meter that", place);
        return;
    }
    match &gate.policy.bucket {
        Some(_) if class.own_bucket_only => {
            let place = from.class(&class.name, Some("own_bucket_only"));
            rows.add("bucket", "not the gate's: own_bucket_only", place);
        }
        bucket => {
            let says = bucket.as_ref().map(|bucket| format!("{}{}", size(bucket), shared(gate, bucket, now)));
            rows.add("bucket", says.unwrap_or_else(|| "none".to_owned()), from.gate(&["bucket"]));
        }
    }
    let published = |class: Option<&str>| {
        let figures = gate.figures.as_ref()?;
        Some((figures.of(class)?, format!("share {} is taken", figures.share)))
    };
    let mut figures = Vec::new();
    if !class.own_bucket_only && gate.policy.bucket.is_some() {
        figures.extend(published(None));
    }
    for (class, bucket) in gate.policy.outward(class).filter_map(|class| Some((class, class.bucket.as_ref()?))) {
        let says = format!("{} of class {}{}", size(bucket), class.name, shared(gate, bucket, now));
        let of_preset = published(Some(&class.name));
        let place = place_of_bucket(from, class, of_preset.is_some());
        rows.add("class bucket", says, place);
        figures.extend(of_preset);
    }
    for (figure, share) in figures {
        rows.add("published", format!("{}; {share}", figure.says), "");
        rows.add("", figure.source.as_str(), "");
    }
    let retry = gate.policy.retry_bucket.as_ref().map(|bucket| {
        let opens = if bucket.opens { "; opens as retries succeed" } else { "" };
        format!("{}, while its key fails{opens}", size(bucket))
    });
    rows.add("retry bucket", retry.unwrap_or_else(|| "none".to_owned()), from.gate(&["retry_bucket"]));
}

/// Returns the place that sets the bucket of a class: a line of the configuration or the preset.
fn place_of_bucket(from: &From<'_>, class: &ClassPolicy, is_of_preset: bool) -> String {
    let set = from.loaded.origins.of_class(from.gate, &class.name, Some("bucket"));
    set.unwrap_or_else(
        || if is_of_preset { format!("preset, {}", from.gate(&["preset"])) } else { "built in".to_owned() },
    )
}

/// Describes the delays after failures of a key.
pub(in crate::cli) fn backoff(class: &ClassPolicy) -> String {
    let text = duration::write;
    match class.backoff.strategy {
        Strategy::Off => "off".to_owned(),
        Strategy::Exponential { base, max, .. } => {
            format!("{} doubling to {}, held for {}", text(base), text(max), text(class.backoff.hold))
        }
        Strategy::FastSlow { fast, slow, fast_attempts } => {
            format!("{} for {fast_attempts} failures, then {}", text(fast), text(slow))
        }
    }
}

/// Describes a bucket.
pub(in crate::cli) fn size(bucket: &BucketPolicy) -> String {
    format!("{}/s, burst {}{}", number(bucket.rate), bucket.burst, per(bucket.per))
}

/// Describes with which gates a bucket is shared, and its level if a gate runs.
fn shared(gate: &Gate, bucket: &BucketPolicy, now: &[SharedBucket]) -> String {
    let Some(shared) = gate.policy.shared_by(bucket) else {
        return String::new();
    };
    let each = if bucket.per == Per::Gate { "," } else { ", each" };
    let name = &shared.name;
    let store = &shared.store;
    let is_here = |live: &&SharedBucket| *live.name == **name && *live.store == **store && live.members > 0;
    match (&**store, now.iter().find(is_here)) {
        ("", Some(live)) => format!("{each} {}", live.says(" in this process")),
        (store, Some(live)) => format!("{each} {}", live.says(&format!(" (store {store})"))),
        ("", None) => format!("{each} shared as {name} with the gates of this process"),
        (store, None) => format!("{each} shared as {name} through the store {store}"),
    }
}

fn per(per: Per) -> &'static str {
    match per {
        Per::Gate => "",
        Per::Flow => " for each flow",
        Per::Account => " for each account",
        Per::Action => " for each account and action",
        Per::Client => " for each client",
        Per::Credential => " for each credential",
    }
}
