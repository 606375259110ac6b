//! The operator's view of a running gate, and the operator's commands.

use std::collections::BTreeSet;
use std::time::Duration;

use http::{HeaderMap, Method, Uri};

use super::gate::Gate;
use super::gauges::{self, buckets_by_name, shared_by_name};
use super::tally::shortened;
use crate::api::{Group, Key};
use crate::classify::{ApiKind, ClassifiedCall, FairBy};
use crate::limit::policy::Outage;
use crate::limit::snapshot::{BucketView, ClassView, PauseView, QueueView, SharedView, SlotView};
use crate::limit::{ClassId, KeyState, Preview, Reason, Snapshot};
use crate::moment::Moment;
use crate::status::text::{count, duration};
use crate::status::{self};
use crate::telemetry::meters::GateMeters;
use crate::telemetry::table;
use crate::upstream::Occupancy;

// === impl Gate ===

impl Gate {
    /// Returns the gate's state for the status page. Without `names`, object names are left out.
    #[must_use]
    pub async fn status(&self, names: bool) -> status::GateStatus {
        let own = self.own();
        let config = self.section.config.get();
        own.driver.tidy().await;
        let now = own.shown(own.driver.snapshot().await);
        let shows_flows = names
            || (self.section.kind == ApiKind::Kubernetes && config.options.gate.rules.fair_by == FairBy::Resource);
        let queued: usize = now.queues.iter().map(|queue| queue.waiting).sum();
        let queues = now.queues.iter().filter(|queue| queue.waiting > 0);
        let pauses = now.pauses.iter().map(|pause| self.pause(pause));
        // Those to be tried next, in that order.
        let keys = own.driver.look(|limiter, now| limiter.next_tried(SHOWN, now));
        let mut gate = status::GateStatus {
            name: self.name().to_string(),
            kind: self.section.kind.to_string(),
            listen: self.section.listen.clone(),
            upstream: self.target.clone(),
            bypass: self.bypass_status(),
            waiting: now.waiting,
            waiting_bytes: now.waiting_bytes,
            kept_bytes: own.answers.bytes(),
            held: now.waiting.saturating_sub(queued),
            slots: slots(now.slots),
            buckets: buckets(&now),
            keys_failing: now.failing_keys,
            trials: now.trials,
            connections: Group::ALL.map(|group| self.connections(group)).into(),
            queues: queues.map(|waiting| queue(waiting, &config.meters, shows_flows)).collect(),
            pauses: pauses.collect(),
            classes: self.classes(&now),
            keys: keys.iter().map(|(name, key, state)| self.failing_key(names.then_some(name), key, state)).collect(),
            ..status::GateStatus::default()
        };
        own.tally.tell(&mut gate, names);
        gate.shadow = config.has_shadow.then(|| own.tally.shadow.tell());
        gate
    }

    fn bypass_status(&self) -> Option<status::Bypass> {
        let until = self.own().driver.bypassed_until()?;
        Some(status::Bypass { until_ms: self.section.clock.wall(until) })
    }

    fn classes(&self, now: &Snapshot) -> Vec<status::Class> {
        let config = self.section.config.get();
        let class = |(id, class): (u16, &ClassView)| status::Class {
            name: class.name.to_string(),
            lane: class.lane.word().to_owned(),
            shadow: config.is_in_shadow(ClassId(id)),
            calls: config.meters.calls(ClassId(id)),
            waiting: class.waiting,
            slots: slots(class.slots),
        };
        (0..).zip(&now.classes).map(class).collect()
    }

    fn pause(&self, pause: &PauseView) -> status::Pause {
        let config = self.section.config.get();
        let clock = self.section.clock;
        let quotas = &self.own().tally.quotas;
        let kept = || {
            let reserve = config.options.gate.answers.throttling.reserve;
            quotas.kept(pause.quota, reserve, pause.until, clock.now())
        };
        let kept = if pause.heard { None } else { kept() };
        status::Pause {
            who: quotas.describe(pause.quota, &config.options.gate.policy),
            until_ms: clock.wall(pause.until),
            from: if pause.heard { "shared" } else { "" }.to_owned(),
            left: kept.map(|kept| kept.left),
            limit: kept.map(|kept| kept.limit),
        }
    }

    /// Returns a sentence with the number of paused credentials; `None` if none is paused. It
    /// cannot say more, because the credential of the explained call is unknown.
    fn paused_credentials(&self) -> Option<String> {
        let pauses = self.own().driver.look(|limiter, now| limiter.pauses(now));
        let of = |pause: &PauseView| Some(pause.quota.holder).filter(|holder| *holder != 0);
        let last = pauses.iter().filter(|pause| of(pause).is_some()).max_by_key(|pause| pause.until)?;
        let paused: BTreeSet<u64> = pauses.iter().filter_map(of).collect();
        // Only credentials with a quota that was told are known.
        let known = self.own().tally.quotas.credentials();
        let are = if paused.len() == 1 { "is" } else { "are" };
        let who = if paused == known {
            "Every credential in use is".to_owned()
        } else if paused.is_subset(&known) {
            format!("{} of {} credentials in use {are}", paused.len(), known.len())
        } else {
            format!("{} {are}", count(paused.len(), "credential", "credentials"))
        };
        let ends = duration((last.until - self.section.clock.now()).as_secs_f64());
        Some(format!("{who} paused: {}; that ends in {ends}.", self.pause(last).because()))
    }

    /// Forgets the failing keys with names accepted by `is_meant`, so that their next calls are not
    /// delayed. Returns how many there were.
    pub async fn forget(&self, is_meant: &(dyn Fn(&str) -> bool + Sync)) -> usize {
        let keys = self.own().driver.forget(is_meant).await;
        table::FORGOTTEN.counter(&[self.name()]).increment(u64::try_from(keys).unwrap_or(u64::MAX));
        tracing::warn!(gate = &**self.name(), keys, "failing keys forgotten by an operator: their delays are over");
        keys
    }

    /// Ends the pauses asked for by the upstream, and returns how many there were. With
    /// `everywhere`, also ends them at the gates that share a bucket.
    pub fn lift_pauses(&self, everywhere: bool) -> usize {
        let pauses = self.own().driver.lift_pauses(everywhere);
        table::LIFTED.counter(&[self.name()]).increment(u64::try_from(pauses).unwrap_or(u64::MAX));
        tracing::warn!(gate = &**self.name(), pauses, "an operator ended pauses that the upstream had asked for");
        pauses
    }

    /// Returns the number of pauses in force.
    pub fn pauses(&self) -> usize {
        self.own().driver.look(|limiter, now| limiter.pauses(now).len())
    }

    /// Returns true while an operator lets every call pass without limits.
    pub fn is_bypassed(&self) -> bool {
        self.own().driver.bypassed_until().is_some()
    }

    /// Lets every call pass without limits for this time; `None` ends a bypass. Calls are still
    /// counted, so that the limits are right afterwards.
    pub fn bypass(&self, how_long: Option<Duration>) {
        let was_on = self.is_bypassed();
        self.own().driver.bypass(how_long.map(|how_long| self.section.clock.now() + how_long));
        match how_long {
            Some(how_long) => {
                let how_long = duration(how_long.as_secs_f64());
                tracing::warn!(gate = &**self.name(), how_long, "bypass is on: every call is let through");
            }
            None if was_on => gauges::bypass_is_over(self.name()),
            None => {}
        }
    }

    /// Explains how the gate classifies a call, and what would happen to it now. The call is not
    /// made, and takes no token.
    pub fn explain(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> status::Explanation {
        let own = self.own();
        let (config, call, preview, twin) = loop {
            let config = self.section.config.get();
            let call = config.options.gate.rules.classify(method, uri, headers, &own.hasher);
            let flow_name = call.flow_name(headers);
            let arrival = call.arrival(call.key.known(), &flow_name);
            if let Some(preview) = own.driver.preview(&config, &arrival, false) {
                let twin = own.driver.preview(&config, &arrival, true);
                break (config, call, preview, twin);
            }
        };
        let now = self.section.clock.now();
        let says = match preview {
            _ if !call.exempt && own.upstream.unreachable(call.group).is_some() => {
                status::Decided { now: "unconnected".to_owned(), ..status::Decided::default() }
            }
            // A connection being made is no limit.
            Preview::Waits { reason: Reason::Slot, until } if until <= now && !config.limits_slots => {
                decided(&Preview::Goes, now)
            }
            preview => decided(&preview, now),
        };
        let is_in_shadow = config.is_in_shadow(call.class);
        let key = call.key.known().filter(|_| !call.exempt);
        let failing = key.and_then(|key| {
            let (name, state) = own.driver.look_as(is_in_shadow, |limiter, now| limiter.keys().find(&key, now))?;
            Some(self.failing_key(Some(&name), &key, &state))
        });
        status::Explanation {
            gate: self.name().to_string(),
            class: config.meters.class_name(call.class).to_owned(),
            lane: config.meters.lane(call.class).to_owned(),
            verb: call.call.verb.word().to_owned(),
            flow: shortened(call.flow_name(headers).to_string()),
            key: key.map(|_| shortened(call.key_name(None))),
            group: call.group.to_string(),
            long_running: call.call.is_long_running,
            now: says.now,
            shadow: is_in_shadow,
            reason: Some(says.reason).filter(|reason| !reason.is_empty()),
            seconds: says.seconds,
            candidate: twin.map(|preview| decided(&preview, now)),
            failing,
            notes: self.notes(&call),
            shared: match config.options.gate.policy.shared.as_slice() {
                [] => Vec::new(),
                _ => own.driver.look(|limiter, now| limiter.shared(now)).iter().map(shared_view).collect(),
            },
        }
    }

    /// Returns sentences about what else affects the call, such as a bypass or paused credentials.
    fn notes(&self, call: &ClassifiedCall) -> Vec<String> {
        let now = self.own().driver.look(|limiter, now| limiter.overview(now));
        let connections = vec![self.connections(call.group)];
        let classes = self.classes(&now);
        let bypass = self.bypass_status();
        let mut gate = status::GateStatus { bypass, connections, classes, ..status::GateStatus::default() };
        self.own().tally.tell(&mut gate, false);
        let remarks = gate.remarks(self.section.clock.wall(self.section.clock.now()));
        remarks.into_iter().map(|fact| format!("{}.", fact.says)).chain(self.paused_credentials()).collect()
    }

    fn connections(&self, group: Group) -> status::Connections {
        let Occupancy { connections, used, free } = self.upstream().occupancy(group);
        let down = self.upstream().unreachable(group).map(|why| shortened(why.to_string()));
        status::Connections { group: group.to_string(), connections, used, free, down }
    }

    /// Describes a failing key. Its error message is left out if `name` is not given, because it
    /// may quote any name.
    fn failing_key(&self, name: Option<&String>, key: &Key, state: &KeyState) -> status::FailingKey {
        let words = self.own().tally.errors.find(key, state.last_status).unwrap_or_default();
        status::FailingKey {
            key: shortened(name.cloned().unwrap_or_default()),
            failures: state.failures,
            status: state.last_status,
            error: words.code,
            message: name.map(|_| words.message).unwrap_or_default(),
            failed_at_ms: self.section.clock.wall(state.last_failure),
            next_at_ms: self.section.clock.wall(state.ready_at),
        }
    }
}

/// Returns a limiter's decision for the status.
fn decided(preview: &Preview, now: Moment) -> status::Decided {
    let decided =
        |now: &str, reason: &str, seconds| status::Decided { now: now.to_owned(), reason: reason.to_owned(), seconds };
    match preview {
        Preview::Goes => decided("goes", "", 0.0),
        Preview::Waits { reason, until } => decided("waits", reason.word(), (*until - now).as_secs_f64()),
        Preview::Refused(refusal) => decided("refused", refusal.reason.word(), (refusal.retry_at - now).as_secs_f64()),
    }
}

fn queue(queue: &QueueView, meters: &GateMeters, shows_flow: bool) -> status::Queue {
    status::Queue {
        class: meters.class_name(queue.class).to_owned(),
        flow: if shows_flow { shortened(queue.flow.clone()) } else { String::new() },
        retry: queue.retry,
        waiting: queue.waiting,
        oldest_seconds: queue.oldest.as_secs_f64(),
        reason: queue.reason.word().to_owned(),
    }
}

fn slots(view: SlotView) -> status::Slots {
    status::Slots { used: view.used, max: view.max }
}

fn buckets(now: &Snapshot) -> Vec<status::Bucket> {
    let mut all = Vec::new();
    let shared = shared_by_name(now);
    for (name, views) in buckets_by_name(now) {
        let first = usize::from(views.len() > 1); // parts of a bucket that is split count from 1
        for (place, BucketView { rate, full_rate, burst, level, .. }) in views.iter().enumerate() {
            let name = name.clone();
            let part = first * (place + 1);
            let shared = shared.iter().find(|(of, _)| *of == name).map(|(_, view)| shared_view(view));
            all.push(status::Bucket {
                name,
                part,
                rate: *rate,
                full_rate: *full_rate,
                burst: *burst,
                level: *level,
                shared,
            });
        }
    }
    all
}

fn shared_view(view: &SharedView) -> status::SharedBucket {
    let state = match (view.away, view.policy.outage) {
        (false, _) => "shared",
        (true, Outage::Stop) => "stopped",
        (true, Outage::Share | Outage::Full) => "fallback",
    };
    status::SharedBucket {
        name: view.policy.name.to_string(),
        store: view.policy.store.to_string(),
        state: state.to_owned(),
        parts: view.parts,
        members: view.members,
        level: view.level,
        held: view.held,
        rate: view.rate,
        next_ms: view.next.map(|next| u64::try_from(next.as_millis()).unwrap_or(u64::MAX)),
        differs: view.differs,
    }
}

/// The most failing keys in the status: a page is for reading.
const SHOWN: usize = 100;
