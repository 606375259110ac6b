//! What nobody counts as it happens: gauges set from the limiter just before they are read, and the one line when waiting begins or ends.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

use super::{driver::Driver, tally::Tally};
use crate::{
    api::Group,
    clock::Clock,
    limit::snapshot::{BucketView, Paused},
    telemetry::{self, Sampler, UpstreamMeters, meters::as_f64, table},
    upstream::Upstream,
};

/// Sets a gate's gauges.
pub(super) fn sampler(gate: &Arc<str>, driver: &Driver, upstream: &Upstream) -> Arc<Sampler> {
    let (driver, upstream, gate) = (driver.clone(), upstream.clone(), Arc::clone(gate));
    let pool = UpstreamMeters::new(Arc::clone(&gate));
    let failing = table::KEYS_FAILING.gauge(&[&gate]);
    let (waiting, bytes) = (table::WAITING.gauge(&[&gate]), table::WAITING_BYTES.gauge(&[&gate]));
    let slots = table::SLOTS.gauge(&[&gate]);
    let bypass = table::BYPASS.gauge(&[&gate]);
    let pauses = SCOPES.map(|scope| (scope, table::PAUSES.gauge(&[&gate, scope])));
    let shown = Shown::default();
    Arc::new(move || {
        if let Some(age) = upstream.injector().age() {
            table::CREDENTIALS_AGE.gauge(&[&gate]).set(age.as_secs_f64());
        }
        let now = driver.look(|limiter, now| limiter.overview(now));
        failing.set(as_f64(now.failing_keys));
        waiting.set(as_f64(now.waiting));
        bytes.set(as_f64(now.waiting_bytes));
        slots.set(f64::from(now.slots.used));
        bypass.set(f64::from(u8::from(driver.bypassed_until().is_some())));
        for (scope, gauge) in &pauses {
            let number = now.pauses.iter().filter(|pause| scope_of(pause.who) == *scope).count();
            gauge.set(as_f64(number));
        }
        shown.begin(&gate);
        shown.bucket(&gate, "gate".to_owned(), &now.buckets);
        shown.bucket(&gate, "retry".to_owned(), &now.retry_buckets);
        for class in now.classes {
            table::QUEUE_LENGTH.gauge(&[&gate, &class.name]).set(as_f64(class.waiting));
            shown.bucket(&gate, format!("class {}", class.name), &class.buckets);
            shown.class(class.name);
        }
        for group in [Group::Exempt, Group::Short, Group::LongRunning, Group::Upgrades] {
            let occupancy = upstream.occupancy(group);
            pool.connections(group, occupancy.connections);
            pool.streams(group, occupancy.used);
        }
    })
}

/// What there was at the last rendering. A reload may take classes and buckets away, but a series stays: it must not go on saying what was.
#[derive(Default)]
struct Shown {
    classes: Mutex<BTreeSet<Arc<str>>>,
    buckets: Mutex<BTreeSet<String>>,
}

impl Shown {
    /// Everything is gone until it is shown again.
    fn begin(&self, gate: &str) {
        for class in std::mem::take(&mut *lock(&self.classes)) {
            table::QUEUE_LENGTH.gauge(&[gate, &class]).set(0.0);
        }
        for bucket in std::mem::take(&mut *lock(&self.buckets)) {
            for metric in [&table::BUCKET_TOKENS, &table::BUCKET_RATE] {
                metric.gauge(&[gate, &bucket]).set(f64::NAN);
            }
        }
    }

    fn class(&self, name: Arc<str>) {
        lock(&self.classes).insert(name);
    }

    /// The level and the rate of a bucket; of one that is split, those of the parts with least.
    fn bucket(&self, gate: &str, name: String, views: &[BucketView]) {
        let Some(least) = views.iter().min_by(|one, other| one.level.total_cmp(&other.level)) else {
            return; // there is no such limit
        };
        table::BUCKET_TOKENS.gauge(&[gate, &name]).set(least.level);
        let slowest = views.iter().map(|view| view.rate).fold(least.rate, f64::min);
        table::BUCKET_RATE.gauge(&[gate, &name]).set(slowest);
        lock(&self.buckets).insert(name);
    }
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

fn scope_of(paused: Paused) -> &'static str {
    match paused {
        Paused::Class(_) => SCOPES[0],
        Paused::Credential(_) | Paused::OtherCredentials => SCOPES[1],
        Paused::Gate => SCOPES[2],
    }
}

/// What pauses, as label.
const SCOPES: [&str; 3] = ["class", "credential", "gate"];

/// Every second: folds the histograms' samples, and says when calls have begun to wait for good, and when that is over.
pub(super) async fn upkeep(gate: Arc<str>, driver: Driver, tally: Arc<Tally>, clock: Clock, over: CancellationToken) {
    let (mut saturated, mut seconds) = (false, 0);
    loop {
        tokio::select! {
            () = clock.sleep(telemetry::UPKEEP) => telemetry::metrics().upkeep(),
            () = over.cancelled() => return,
        }
        let waiting = driver.look(|limiter, _| limiter.waiting());
        tally.second(waiting);
        driver.tidy().await;
        seconds = if (waiting > 0) == saturated { 0 } else { seconds + 1 };
        if seconds < STEADY {
            continue;
        }
        (saturated, seconds) = (!saturated, 0);
        if saturated {
            tracing::info!(gate = &*gate, waiting, "calls have to wait");
        } else {
            tracing::info!(gate = &*gate, "calls need not wait any more");
        }
    }
}

/// Seconds in a row before a change is one: a burst that waits for a moment is what the gate is for.
const STEADY: u32 = 3;
