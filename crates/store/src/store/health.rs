//! The health of a store, by its last answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::fault::Fault;
use crate::clock::Clock;
use crate::limit::{Ask, StoreAnswer};
use crate::moment::Moment;
use crate::spec::Endpoint;
use crate::telemetry::table;
use tidegate_upstream::lock;

/// Records whether a store answers, for the log, the metrics and the status page.
#[derive(Debug)]
pub(super) struct HealthRecorder {
    store: Arc<str>,
    clock: Clock,
    /// Set once the log has warned that too many gates share a bucket.
    is_crowded: AtomicBool,
    health: Mutex<StoreHealth>,
}

/// Whether a store answers, and since when.
#[derive(Clone, Debug, Default)]
pub struct StoreHealth {
    /// The moment at which the store began to answer or, if it is down, to fail; `None` before the
    /// first request.
    pub since: Option<Moment>,
    /// True if the store answers.
    pub is_up: bool,
    /// The duration of the store's last answer.
    pub took: Option<Duration>,
    /// The code of the store's last error.
    pub error: Option<String>,
    /// The server of the store in use; of a cluster, the nodes with buckets.
    pub servers: Vec<Endpoint>,
}

// === impl HealthRecorder ===

impl HealthRecorder {
    pub(super) fn new(store: Arc<str>, clock: Clock) -> Self {
        Self { store, clock, is_crowded: false.into(), health: Mutex::default() }
    }

    /// Records that a batch of requests was answered.
    pub(super) fn answered(&self, asks: &[Ask], answers: &[StoreAnswer], took: Duration) {
        let before = self.record(true, "ok", took, |health| health.took = Some(took));
        if let Some(since) = before.since.filter(|_| !before.is_up) {
            let after = self.clock.now() - since;
            let calls: u64 = asks.iter().map(|ask| ask.fallback.sent).sum();
            tracing::info!(
                store = &*self.store,
                after = format!("{:.1}s", after.as_secs_f64()),
                calls,
                "the store answers again: gates share their buckets again"
            );
        }
        let most = asks.iter().zip(answers).max_by_key(|(_, answer)| answer.members);
        if let Some((ask, StoreAnswer { members, .. })) = most.filter(|(_, answer)| answer.members > MANY)
            && !self.is_crowded.swap(true, Ordering::SeqCst)
        {
            let bucket = &*ask.shared.name;
            tracing::warn!(
                store = &*self.store,
                bucket,
                members,
                "more than {MANY} gates share this bucket: each request costs the store more time"
            );
        }
    }

    /// Records that a batch of requests failed.
    pub(super) fn failed(&self, fault: &Fault, asks: &[Ask], took: Duration) {
        let before = self.record(false, fault.word(), took, |health| health.error = Some(fault.code().to_owned()));
        if before.is_up || before.since.is_none() {
            let why = fault.to_string();
            tracing::warn!(
                store = &*self.store,
                why,
                alone = rates_alone(asks),
                "the store does not answer: until it does, each gate limits alone, as `outage` of its shared buckets says"
            );
        }
    }

    pub(super) fn health(&self) -> StoreHealth {
        lock(&self.health).clone()
    }

    /// Counts a batch of requests, and updates the health. Returns the health before the batch.
    fn record(&self, is_up: bool, result: &str, took: Duration, update: impl FnOnce(&mut StoreHealth)) -> StoreHealth {
        table::STORE_SECONDS.histogram(&[&self.store]).record(took);
        table::STORE_ASKS.counter(&[&self.store, result]).increment(1);
        let mut health = lock(&self.health);
        let before = health.clone();
        if health.is_up != is_up || health.since.is_none() {
            health.is_up = is_up;
            health.since = Some(self.clock.now());
        }
        update(&mut health);
        before
    }
}

/// Describes at what rate each shared bucket continues without the store; of a split bucket, the
/// slowest part's rate.
fn rates_alone(asks: &[Ask]) -> String {
    let mut rates = BTreeMap::<&str, f64>::new();
    for ask in asks {
        let rate = rates.entry(&ask.shared.name).or_insert(ask.fallback.rate);
        *rate = rate.min(ask.fallback.rate);
    }
    let describe = |(name, rate): (&&str, &f64)| match rate {
        0.0 => format!("{name} waits"),
        rate => format!("{name} at {}/s", (rate * 1e3).round() / 1e3),
    };
    let mut all: Vec<_> = rates.iter().take(NAMED).map(describe).collect();
    if let Some(more) = rates.len().checked_sub(NAMED).filter(|more| *more > 0) {
        all.push(format!("and {more} more"));
    }
    all.join(", ")
}

/// The most gates sharing a bucket without a warning in the log. With so many the script takes a
/// good part of a millisecond.
const MANY: u32 = 100;
/// The most shared buckets to name in a log line.
const NAMED: usize = 8;
