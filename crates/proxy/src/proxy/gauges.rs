//! Updates gauges just before they are read, and logs when calls begin to wait or no longer wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::events::Events;
use super::parts::GateParts;
use super::pauses::PauseLog;
use super::quotas::Quotas;
use super::section::Section;
use crate::api::Group;
use crate::clock::Clock;
use crate::limit::Snapshot;
use crate::limit::quota::QuotaId;
use crate::limit::snapshot::{BucketView, SharedView};
use crate::moment::Moment;
use crate::telemetry::table::Metric;
use crate::telemetry::{self, Sampler, ScrapeGauges, UpstreamMeters, meters::as_f64, table};
use crate::upstream::Occupancy;

/// Returns the function that updates the gauges of a configured gate, as sums over the gates made
/// from it.
pub(super) fn sampler(section: &Arc<Section>) -> Arc<Sampler> {
    let gate = Arc::clone(&section.name);
    let section = Arc::downgrade(section);
    let pool = UpstreamMeters::new(Arc::clone(&gate));
    Arc::new(move |passing| {
        let gates = section.upgrade().map(|section| section.gates()).unwrap_or_default();
        if let Some(age) = gates.first().and_then(|gate| gate.upstream.injector().age()) {
            table::CREDENTIALS_AGE.gauge(&[&gate]).set(age.as_secs_f64());
        }
        let is_bypassed = gates.iter().any(|gate| gate.driver.bypassed_until().is_some());
        table::BYPASS.gauge(&[&gate]).set(f64::from(u8::from(is_bypassed)));
        for group in Group::ALL {
            let of = |occupancy: fn(Occupancy) -> usize| {
                gates.iter().map(|gate| occupancy(gate.upstream.occupancy(group))).sum()
            };
            pool.connections(group, of(|occupancy| occupancy.connections));
            pool.streams(group, of(|occupancy| occupancy.used));
        }
        let overview = |gate: &Arc<GateParts>| gate.shown(gate.driver.look(|limiter, now| limiter.overview(now)));
        let now: Vec<_> = gates.iter().map(overview).collect();
        let sum = |of: &dyn Fn(&Snapshot) -> usize| as_f64(now.iter().map(of).sum());
        table::KEYS_FAILING.gauge(&[&gate]).set(sum(&|now| now.failing_keys));
        table::WAITING.gauge(&[&gate]).set(sum(&|now| now.waiting));
        table::WAITING_BYTES.gauge(&[&gate]).set(sum(&|now| now.waiting_bytes));
        let hot: usize = gates.iter().map(|of| of.tally.hot.len()).sum();
        table::HOT_OBJECTS.gauge(&[&gate]).set(as_f64(hot));
        let kept: usize = gates.iter().map(|gate| gate.answers.bytes()).sum();
        table::KEPT_BYTES.gauge(&[&gate]).set(as_f64(kept));
        table::SLOTS.gauge(&[&gate]).set(now.iter().map(|now| f64::from(now.slots.used)).sum::<f64>());
        for scope in ["class", "credential", "gate"] {
            let pauses = |now: &Snapshot| now.pauses.iter().filter(|pause| scope_of(pause.quota) == scope).count();
            table::PAUSES.gauge(&[&gate, scope]).set(sum(&pauses));
        }
        table::DROPPED_QUOTAS.counter(&[&gate]).absolute(now.iter().map(|now| now.dropped_quotas).sum());
        show_parts(&gate, &now, passing);
        gates.iter().for_each(|of| show_quotas(&gate, &of.tally.quotas, of.driver.clock().now(), passing));
    })
}

/// Updates the gauges of classes and buckets, which a reload may remove.
fn show_parts(gate: &str, now: &[Snapshot], passing: &mut ScrapeGauges) {
    let mut buckets = BTreeMap::new();
    for (name, views) in now.iter().flat_map(buckets_by_name) {
        for view in views {
            let (level, rate) = buckets.entry(name.clone()).or_insert((f64::INFINITY, f64::INFINITY));
            (*level, *rate) = (view.level.min(*level), view.rate.min(*rate));
        }
    }
    for (name, (level, rate)) in buckets {
        passing.set(&table::BUCKET_TOKENS, &[gate, &name], level);
        passing.set(&table::BUCKET_RATE, &[gate, &name], rate);
    }
    show_shared(gate, now, passing);
    let mut queues = BTreeMap::<&str, usize>::new();
    for class in now.iter().flat_map(|now| &now.classes) {
        *queues.entry(&class.name).or_default() += class.waiting;
    }
    for (class, waiting) in queues {
        passing.set(&table::QUEUE_LENGTH, &[gate, class], as_f64(waiting));
    }
}

/// Updates the gauges of the upstream's own quotas. A quota's gauges vanish from the metrics with
/// its credential.
fn show_quotas(gate: &str, quotas: &Quotas, now: Moment, passing: &mut ScrapeGauges) {
    for (resource, account, seen) in quotas.list(now) {
        let labels = [gate, &resource, &account];
        let resets_in = seen.resets_at.map(|at| (at - now).as_secs_f64());
        for (metric, value) in [
            (&table::QUOTA_LIMIT, seen.limit.map(as_count)),
            (&table::QUOTA_REMAINING, Some(as_count(seen.remaining))),
            (&table::QUOTA_RESET, resets_in),
            (&table::QUOTA_RUNS_OUT, seen.runs_out.map(|at| (at - now).as_secs_f64())),
        ] {
            if let Some(value) = value {
                passing.set(metric, &labels, value);
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "quotas stay far below 2^52")]
fn as_count(count: u64) -> f64 {
    count as f64
}

/// Updates the metrics of shared buckets: sums over the gates, and numbers from the last answer to
/// one of them.
fn show_shared(gate: &str, now: &[Snapshot], passing: &mut ScrapeGauges) {
    let mut by_name = BTreeMap::<String, Vec<&SharedView>>::new();
    for (name, view) in now.iter().flat_map(shared_by_name) {
        by_name.entry(name).or_default().push(view);
    }
    for (name, views) in by_name {
        let Some(last) = views.iter().max_by_key(|view| view.tally.granted) else { continue };
        let any = |is: fn(&SharedView) -> bool| f64::from(u8::from(views.iter().any(|view| is(view))));
        let mut show = |metric: &'static Metric, value: f64| passing.set(metric, &[gate, &name], value);
        show(&table::SHARED_HELD, as_f64(views.iter().map(|view| view.held).sum()));
        show(&table::SHARED_LEVEL, last.level);
        show(&table::SHARED_MEMBERS, f64::from(last.members));
        show(&table::SHARED_AWAY, any(|view| view.away));
        show(&table::SHARED_DIFFERS, any(|view| view.differs));
        let count = |what: &str, count: fn(&SharedView) -> u64| {
            let sum = views.iter().map(|view| count(view)).sum();
            table::SHARED_TOKENS.counter(&[gate, &name, what]).absolute(sum);
        };
        count("granted", |view| view.tally.granted);
        count("spent", |view| view.tally.spent);
        count("expired", |view| view.tally.expired);
        count("fallback", |view| view.tally.fallback);
    }
}

/// Returns the shared buckets in use, with their names in the gate.
pub(super) fn shared_by_name(now: &Snapshot) -> Vec<(String, &SharedView)> {
    let named = buckets_by_name(now).into_iter().filter_map(|(name, views)| Some((name, views.first()?.shared?)));
    named.filter_map(|(name, id)| Some((name, now.shared.iter().find(|view| view.id == Some(id))?))).collect()
}

/// Returns the buckets of a gate, with their names in metrics and status.
pub(super) fn buckets_by_name(now: &Snapshot) -> Vec<(String, &[BucketView])> {
    let whole = [("gate".to_owned(), &*now.buckets), ("retry".to_owned(), &*now.retry_buckets)];
    let classes = now.classes.iter().map(|class| (format!("class {}", class.name), &*class.buckets));
    whole.into_iter().chain(classes).collect()
}

fn scope_of(paused: QuotaId) -> &'static str {
    match paused {
        QuotaId::ALL => "gate",
        QuotaId { holder: 0, .. } => "class",
        QuotaId { .. } => "credential",
    }
}

/// Does the periodic work of a gate, every second: updates histograms, and logs keys, pauses, and
/// the beginning and end of times when calls wait.
pub(super) async fn upkeep(gate: Arc<str>, own: Arc<GateParts>, clock: Clock, over: CancellationToken) {
    let mut saturated = false;
    let mut seconds = 0;
    let mut events = Events::default();
    let mut pauses = PauseLog::default();
    loop {
        tokio::select! {
            () = clock.tick(telemetry::UPKEEP) => telemetry::metrics().upkeep(),
            () = over.cancelled() => return own.driver.log_keys(true),
        }
        let waiting = if own.shadow { 0 } else { own.driver.look(|limiter, _| limiter.waiting()) };
        own.tally.second(waiting);
        for report in own.tally.hot.second(&gate, clock.now()) {
            if own.config.get().options.gate.identity.events {
                events.write(&gate, &own, clock, report);
            }
        }
        pauses.look(&own);
        own.tally.errors.sweep(own.driver.keys(), clock.now());
        own.driver.tidy().await;
        own.driver.log_keys(false);
        seconds = if (waiting > 0) == saturated { 0 } else { seconds + 1 };
        if seconds < STEADY {
            continue;
        }
        (saturated, seconds) = (!saturated, 0);
        if saturated {
            tracing::info!(gate = &*gate, waiting, "calls have to wait for the limits");
        } else {
            tracing::info!(gate = &*gate, "calls no longer wait for the limits");
        }
    }
}

/// Logs that a bypass of the limits has ended.
pub(super) fn bypass_is_over(gate: &str) {
    tracing::warn!(gate, "bypass is over: every limit holds again");
}

/// How many seconds calls must wait, or not wait, before it is logged: short bursts of waiting are
/// normal.
const STEADY: u32 = 3;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::api::signals::Quota;
    use crate::proxy::{Gate, conservation};
    use crate::spec::Listen;
    use crate::telemetry::CallLog;

    /// Every line about the quotas of a gate.
    fn quotas(gate: &str) -> Vec<String> {
        let text = telemetry::metrics().render();
        let is_ours = |line: &&str| line.starts_with("tidegate_quota_") && line.contains(gate);
        text.lines().filter(is_ours).map(str::to_owned).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn quotas_of_credentials_that_change_leave_no_series_behind() {
        let (log, _) = tokio::sync::mpsc::channel(1);
        let mut options = conservation::options(1, ([127, 0, 0, 1], 1).into(), CallLog::to(log));
        let listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
        (options.gate.name, options.gate.listen) = ("rotating".into(), listen);
        let clock = Clock::start();
        let gate = Gate::start(options, clock, CancellationToken::new()).await.expect("a port");
        let quota = |remaining| Quota { resource: "a \"b\" \\".into(), limit: Some(10), remaining, resets_in: None };
        for whose in 1..=1000 {
            let at = clock.now() + Duration::from_millis(whose);
            gate.own().tally.quotas.note(vec![quota(whose)], whose, 0, at);
            if whose % 50 == 0 {
                assert!(quotas("rotating").len() <= 2 * 100, "{whose}");
            }
        }
        let last = "{gate=\"rotating\",resource=\"a \\\"b\\\" \\\\\",account=\"0003e8\"} ";
        assert!(quotas("rotating").contains(&format!("tidegate_quota_limit{last}10")), "{:?}", quotas("rotating"));
        assert!(quotas("rotating").contains(&format!("tidegate_quota_remaining{last}1000")));
        let types = telemetry::metrics().render().matches("# TYPE tidegate_quota_limit gauge").count();
        assert_eq!(types, 1, "one for all gates");
        // At once: a day of upkeep, second by second, would take minutes.
        tokio::time::advance(Duration::from_secs(24 * 3600 + 2)).await;
        assert_eq!(quotas("rotating"), [""; 0]);
    }
}
