//! Presets have the numbers that Crossplane and client-go derive or build in.

use std::time::Duration;

use serde::Deserialize;
use tidegate::config;
use tidegate::limit::Policy;
use tidegate::limit::policy::{BucketPolicy, Strategy};

#[derive(Deserialize)]
struct File {
    crossplane: Vec<Derived>,
    /// The delays of 12 failures, then of one more after Forget, in ns.
    crossplane_controller: Vec<u64>,
    client_go: Limits,
    controller_bucket: Limits,
}

/// The limits that Crossplane derives from one number.
#[derive(Deserialize)]
struct Derived {
    max_reconcile_rate: u32,
    /// For the client to the API server.
    client: Limits,
    /// For reconciles, and so for calls to the cloud.
    global: Limits,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Limits {
    rate: f64,
    burst: u32,
}

impl Limits {
    fn of(bucket: Option<BucketPolicy>) -> Option<Self> {
        bucket.map(|bucket| Self { rate: bucket.rate, burst: bucket.burst.get() })
    }
}

#[test]
fn crossplanes_limits_follow_from_one_number_as_in_crossplane() {
    let rows = super::vectors::<File>("limits").crossplane;
    assert!(rows.len() > 5);
    for row in rows {
        let preset = format!("preset = \"crossplane\"\nmax_reconcile_rate = {}", row.max_reconcile_rate);
        let [kubernetes, http] = ["kubernetes", "http"].map(|kind| gate(kind, &preset));
        assert_eq!(Limits::of(kubernetes.bucket), Some(row.client), "max_reconcile_rate {}", row.max_reconcile_rate);
        assert_eq!(Limits::of(http.bucket), Some(row.global), "max_reconcile_rate {}", row.max_reconcile_rate);
    }
}

#[test]
fn crossplanes_objects_wait_as_in_crossplane() {
    let [first, failures @ .., forgotten] = &super::vectors::<File>("limits").crossplane_controller[..] else {
        panic!("there are delays")
    };
    let strategy = strategy(&gate("kubernetes", "preset = \"crossplane\""));
    for (before, theirs) in [first].into_iter().chain(failures).enumerate() {
        let ours = strategy.delay(u32::try_from(before + 1).expect("a few"));
        assert_eq!(ours, Duration::from_nanos(*theirs), "after {} failures", before + 1);
    }
    assert_eq!(forgotten, first, "Forget starts again");
}

#[test]
fn client_gos_preset_is_its_default() {
    let policy = gate("kubernetes", "preset = \"client_go\"");
    assert_eq!(Limits::of(policy.bucket), Some(super::vectors::<File>("limits").client_go));
    assert_eq!(policy.retry_bucket, None);
    assert_eq!(strategy(&policy), Strategy::Off);
}

#[test]
fn controller_runtimes_preset_has_the_default_controller_limiter() {
    let policy = gate("kubernetes", "preset = \"controller_runtime\"");
    assert_eq!(Limits::of(policy.retry_bucket), Some(super::vectors::<File>("limits").controller_bucket));
    // The delays of "5ms to 1000s, as client-go's default" in backoff.json.
    let (base, max) = (Duration::from_millis(5), Duration::from_secs(1000));
    assert_eq!(strategy(&policy), Strategy::Exponential { base, max, jitter: 0.0 });
}

/// The limits of a gate with this configuration.
fn gate(kind: &str, lines: &str) -> Policy {
    let text = format!("[gates.it]\nkind = \"{kind}\"\nupstream = \"https://upstream.example\"\n{lines}\n");
    let loaded = config::load_text("limits".to_owned(), text.clone(), &[]);
    let mut gates = loaded.unwrap_or_else(|problems| panic!("{text}\n{problems:?}")).settings.gates;
    gates.remove("it").expect("the gate").policy
}

/// The backoff strategy of the usual class.
fn strategy(policy: &Policy) -> Strategy {
    let class = policy.classes.iter().find(|class| &*class.name == "default").expect("the usual class");
    class.backoff.strategy
}
