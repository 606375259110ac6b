//! What an operator sees of a gate at work, and may do to it.

use std::time::Duration;

use http::{HeaderMap, Method, Uri};

use super::{
    driver::Stale,
    gate::Gate,
    gauges::{self, GROUPS, buckets_by_name},
    tally::shortened,
};
use crate::{
    api::Group,
    classify::{Classified, FairBy, Kind},
    clock::Clock,
    limit::{
        Arrival, Flow, KeyState, Preview, Reason, Snapshot,
        snapshot::{BucketView, Paused, SlotView},
    },
    status,
    telemetry::{
        meters::{group_word, lane_word},
        table,
    },
};

// === impl Gate ===

impl Gate {
    /// What it is doing. Without `names`, nothing in it can be the name of an object.
    #[must_use]
    pub async fn status(&self, names: bool) -> status::Gate {
        let now = self.own().driver.snapshot().await;
        let terms = self.section.terms.get();
        let flows_are_kinds = self.section.kind == Kind::Kubernetes && terms.rules.fair_by() == FairBy::Resource;
        let class = |class| terms.meters.class_name(class).to_owned();
        let queued: usize = now.queues.iter().map(|queue| queue.waiting).sum();
        let mut gate = status::Gate {
            name: self.name().to_string(),
            kind: self.section.kind.to_string(),
            listen: self.listen.clone(),
            upstream: self.target.clone(),
            bypass: self
                .own()
                .driver
                .bypassed_until()
                .map(|until| status::Bypass { until_ms: self.section.clock.wall(until) }),
            waiting: now.waiting,
            waiting_bytes: now.waiting_bytes,
            held: now.waiting.saturating_sub(queued),
            slots: slots(now.slots),
            buckets: buckets(&now),
            keys_failing: now.failing_keys,
            trials: now.trials,
            connections: GROUPS.map(|group| self.connections(group)).into(),
            ..status::Gate::default()
        };
        gate.queues = now
            .queues
            .iter()
            .filter(|queue| queue.waiting > 0)
            .map(|queue| status::Queue {
                class: class(queue.class),
                flow: if names || flows_are_kinds { shortened(queue.flow.clone()) } else { String::new() },
                retry: queue.retry,
                waiting: queue.waiting,
                oldest_seconds: queue.oldest.as_secs_f64(),
                reason: queue.reason.word().to_owned(),
            })
            .collect();
        gate.pauses = now
            .pauses
            .iter()
            .map(|pause| status::Pause {
                who: match pause.who {
                    Paused::Class(paused) => format!("class {}", class(paused)),
                    Paused::Credential(hash) => format!("credential {:06x}", hash & 0xff_ffff),
                    Paused::OtherCredentials => "other credentials".to_owned(),
                    Paused::Gate => "gate".to_owned(),
                },
                until_ms: self.section.clock.wall(pause.until),
            })
            .collect();
        gate.classes = now
            .classes
            .iter()
            .map(|class| status::Class {
                name: class.name.to_string(),
                lane: lane_word(class.lane).to_owned(),
                waiting: class.waiting,
                slots: slots(class.slots),
            })
            .collect();
        if names {
            gate.keys = self.failing_keys();
        }
        self.own().tally.tell(&mut gate, names);
        gate
    }

    /// Forgets the failing keys that `is_meant` says, by name: their next calls go at once. Says how many there were.
    pub async fn forget(&self, is_meant: &(dyn Fn(&str) -> bool + Sync)) -> usize {
        let keys = self.own().driver.forget(is_meant).await;
        table::FORGOTTEN.counter(&[self.name()]).increment(u64::try_from(keys).unwrap_or(u64::MAX));
        tracing::warn!(gate = &**self.name(), keys, "failing keys were forgotten by hand");
        keys
    }

    /// Ends the pauses that the upstream asked for, whose calls then go. Says how many there were.
    pub fn lift_pauses(&self) -> usize {
        let pauses = self.own().driver.lift_pauses();
        table::LIFTED.counter(&[self.name()]).increment(u64::try_from(pauses).unwrap_or(u64::MAX));
        tracing::warn!(gate = &**self.name(), pauses, "pauses were lifted by hand: the upstream had asked for them");
        pauses
    }

    /// How many pauses are in force.
    #[must_use]
    pub fn pauses(&self) -> usize {
        self.own().driver.look(|limiter, now| limiter.pauses(now).len())
    }

    /// Whether everything is let through.
    #[must_use]
    pub fn is_bypassed(&self) -> bool {
        self.own().driver.bypassed_until().is_some()
    }

    /// Lets everything through for so long, then ends by itself; `None` ends it now. What the limits remember goes on meanwhile.
    pub fn bypass(&self, how_long: Option<Duration>) {
        let was_on = self.own().driver.bypassed_until().is_some();
        self.own().driver.bypass(how_long.map(|how_long| self.section.clock.now() + how_long));
        match how_long {
            Some(how_long) => {
                tracing::warn!(gate = &**self.name(), ?how_long, "bypass: everything is let through");
            }
            None if was_on => gauges::bypass_is_over(self.name()),
            None => {}
        }
    }

    /// What it makes of a call, and what would happen to it now. Nothing is spent.
    #[must_use]
    pub fn explain(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> status::Explained {
        loop {
            let terms = self.section.terms.get();
            let call = terms.rules.classify(method, uri, headers, &self.own().hasher);
            let Ok(foresight) = self.foresee(terms.number, &call, headers) else { continue };
            let key = call.key.known().filter(|_| !call.exempt);
            let now = self.section.clock.now();
            let failing = key.and_then(|key| self.own().driver.keys().find(&key, now));
            let mut explained = status::Explained {
                gate: self.name().to_string(),
                class: terms.meters.class_name(call.class).to_owned(),
                lane: terms.meters.lane(call.class).to_owned(),
                verb: call.call.verb().word().to_owned(),
                flow: shortened(call.flow_name(headers).to_string()),
                key: key.map(|_| shortened(call.key_name(None))),
                group: group_word(call.group).to_owned(),
                long_running: call.call.is_long_running(),
                failing: failing.map(|(name, state)| failing_key(&self.section.clock, &name, &state)),
                ..status::Explained::default()
            };
            let (word, reason, until) = match foresight {
                // A connection being made is no limit.
                Preview::Waits { reason: Reason::Slot, until } if until <= now && !terms.limits_slots => {
                    ("goes", None, now)
                }
                Preview::Goes => ("goes", None, now),
                Preview::Waits { reason, until } => ("waits", Some(reason), until),
                Preview::Refused(refusal) => ("refused", Some(refusal.reason), refusal.retry_at),
            };
            explained.notes = self.notes(&call);
            let cut_off = !call.exempt && self.upstream().unreachable(call.group).is_some();
            let (word, reason, until) = if cut_off { ("unconnected", None, now) } else { (word, reason, until) };
            explained.now = word.to_owned();
            explained.reason = reason.map(|reason| reason.word().to_owned());
            explained.seconds = (until - now).as_secs_f64();
            return explained;
        }
    }

    fn foresee(&self, terms: u64, call: &Classified, headers: &HeaderMap) -> Result<Preview, Stale> {
        let flow = call.flow_name(headers);
        self.own().driver.foresee(
            terms,
            &Arrival {
                class: call.class,
                flow: Flow { id: call.flow, name: &flow },
                key: call.key.known(),
                credential: call.credential,
                write: !call.call.verb().is_read(),
                group: call.group,
                long_running: call.call.is_long_running(),
                lists_first: call.call.lists_first(),
                patient: call.patient,
                timeout: call.call.timeout(),
            },
        )
    }

    /// What the gate's limits do not say, and the call would meet all the same.
    fn notes(&self, call: &Classified) -> Vec<String> {
        let mut gate = status::Gate { connections: vec![self.connections(call.group)], ..status::Gate::default() };
        self.own().tally.tell(&mut gate, false);
        let mut notes = gate.remarks(self.section.clock.wall(self.section.clock.now()));
        if self.is_bypassed() {
            notes.push("Everything is let through: a bypass is on.".to_owned());
        }
        notes
    }

    fn connections(&self, group: Group) -> status::Connections {
        let occupancy = self.upstream().occupancy(group);
        status::Connections {
            group: group_word(group).to_owned(),
            connections: occupancy.connections,
            used: occupancy.used,
            free: occupancy.free,
            down: self.upstream().unreachable(group).map(|why| shortened(why.to_string())),
        }
    }

    /// The next to be tried first.
    fn failing_keys(&self) -> Vec<status::Key> {
        let keys = self.own().driver.look(|limiter, now| limiter.next_tried(SHOWN, now));
        keys.iter().map(|(name, _, state)| failing_key(&self.section.clock, name, state)).collect()
    }
}

fn failing_key(clock: &Clock, name: &str, state: &KeyState) -> status::Key {
    status::Key {
        key: shortened(name.to_owned()),
        failures: state.failures,
        status: state.last_status,
        failed_at_ms: clock.wall(state.last_failure),
        next_at_ms: clock.wall(state.ready_at),
    }
}

fn slots(view: SlotView) -> status::Slots {
    status::Slots { used: view.used, max: view.max }
}

fn buckets(now: &Snapshot) -> Vec<status::Bucket> {
    let bucket = |name: &str, place: usize, view: &BucketView| status::Bucket {
        name: name.to_owned(),
        part: place,
        rate: view.rate,
        full_rate: view.full_rate,
        burst: view.burst,
        level: view.level,
    };
    let mut all = Vec::new();
    for (name, views) in buckets_by_name(now) {
        let parts = views.iter().enumerate();
        all.extend(parts.map(|(place, view)| bucket(&name, if views.len() > 1 { place + 1 } else { 0 }, view)));
    }
    all
}

/// A page is for reading.
const SHOWN: usize = 100;
