//! Shadow mode: calls are sent at once, and a limiter records what it would have done with them.
//!
//! A call that the limiter lets through takes its permit. A call that would have to wait is sent
//! without limits, and a task waits in its place. When the task's turn comes, the wait is counted,
//! and the limiter gets the outcome of the call as soon as it is known. A call that would be
//! refused is sent too; the limiter does not learn from its outcome, because without shadow mode
//! there would be none.
//!
//! It cannot be known when a refused caller would have retried, or how the upstream would have
//! answered under less load. (If the call has ended before its task's turn, the task gives its slot
//! back at once.)

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use tokio::sync::oneshot;

use super::intake::{ENOUGH, declared, large_head};
use crate::api::{Group, Outcome};
use crate::limit::{Arrival, ClassId, Reason, Receipt};
use crate::proxy::driver::{Driver, HeldPermit, HeldTicket, Learning, Settlement, ShadowEntry, Verdict};
use crate::proxy::gate_config::GateConfig;
use crate::proxy::observe::CallContext;
use crate::proxy::parts::GateParts;
use crate::proxy::tally::Tally;
use crate::telemetry::table;

/// A counter of the would-be waits and refusals of calls in shadow mode.
struct Counter {
    config: Arc<GateConfig>,
    tally: Arc<Tally>,
    class: ClassId,
}

/// Counts a call of an enforced class in the limiter for classes in shadow mode, if the gate has
/// one: both kinds of calls load the same upstream.
pub(super) fn follow(gate: &GateParts, permit: HeldPermit, request: &Parts, context: &CallContext) -> HeldPermit {
    let CallContext { config, call, key, .. } = context;
    if gate.shadow_limiter.get().is_none() || !config.has_shadow || permit.is_exempt() {
        return permit;
    }
    let flow_name = call.flow_name(&request.headers);
    let arrival = call.arrival(*key, &flow_name);
    // After a reload that has just begun it is not worth another try.
    let Ok(verdict) = gate.decider(true).arrive(config.generation, &arrival) else { return permit };
    permit.beside(self::permit(gate, verdict, &arrival, request, config))
}

/// Returns a permit to send a call in shadow mode at once, and counts what the limiter would have
/// done with it (`verdict`).
pub(super) fn permit(
    gate: &GateParts,
    verdict: Verdict,
    arrival: &Arrival<'_>,
    request: &Parts,
    config: &Arc<GateConfig>,
) -> HeldPermit {
    let driver = gate.decider(true);
    let counter = Counter::of(gate, config, arrival.class);
    let unmetered =
        |told, ended| driver.admit_unmetered(arrival, ShadowEntry { learns: Learning::Nothing, told, ended });
    let mut ticket = match verdict {
        Verdict::Go(permit) => {
            driver.give_room(&permit, arrival.group);
            return permit;
        }
        Verdict::Refused(refusal) => {
            counter.iter().for_each(|counter| counter.would_have_refused(refusal.reason));
            return unmetered(None, None);
        }
        Verdict::Wait(ticket) => ticket,
    };
    // The bytes that would have been read meanwhile.
    if let Err(refusal) = ticket.hold_bytes(large_head(request) + declared(request).min(ENOUGH)) {
        counter.iter().for_each(|counter| counter.would_have_refused(refusal.reason));
        return unmetered(None, None);
    }
    let (told, hears) = oneshot::channel();
    let (ended, end) = oneshot::channel();
    // Bounded: there are no more of them than may wait, and than there are calls.
    tokio::spawn(shadow_task(driver.clone(), ticket, arrival.group, counter, hears, end));
    unmetered(Some(told), Some(ended))
}

/// Waits in the queue on behalf of a call sent already, and reports the call's outcome to the
/// limiter.
async fn shadow_task(
    driver: Driver,
    mut ticket: HeldTicket,
    group: Group,
    counter: Option<Counter>,
    mut hears: oneshot::Receiver<Settlement>,
    end: oneshot::Receiver<()>,
) {
    let mut told = None;
    let permit = loop {
        tokio::select! {
            biased;
            heard = &mut hears, if told.is_none() => match heard {
                Ok(heard) if heard.answer.outcome != Outcome::Abandoned => told = Some(heard),
                // A caller who left would have left the queue as well.
                Ok(_) | Err(_) => return,
            },
            turn = poll_fn(|cx| ticket.poll_turn(cx)) => match turn {
                Ok(permit) => break permit,
                Err(Some(refusal)) => return counter.iter().for_each(|counter| counter.would_have_refused(refusal.reason)),
                Err(None) => return,
            },
        }
    };
    driver.give_room(&permit, group);
    let (_, owed, slot) = permit.admit(());
    if let (Some((reason, wait)), Some(counter)) = (owed.receipt().and_then(Receipt::waited), counter) {
        counter.would_have_waited(reason, wait);
    }
    let told = match told {
        Some(told) => Ok(told),
        None => hears.await,
    };
    if let Ok(Settlement { answer, key, name }) = told {
        let key = key.filter(|_| owed.receipt().and_then(Receipt::key).is_none());
        owed.finish(answer, key, &|| name.clone());
    }
    drop(end.await); // an error too: its other end is gone, and so is the call
    drop(slot);
}

// === impl Counter ===

impl Counter {
    /// Returns the counter of a class; `None` if the class is not in shadow mode.
    fn of(gate: &GateParts, config: &Arc<GateConfig>, class: ClassId) -> Option<Self> {
        let count = || Self { config: Arc::clone(config), tally: Arc::clone(&gate.tally), class };
        config.is_in_shadow(class).then(count)
    }

    fn would_have_waited(&self, reason: Reason, wait: Duration) {
        let meters = &self.config.meters;
        meters.would_have_waited(self.class, reason, wait);
        let class = meters.class_name(self.class);
        self.tally.shadow.would_have_waited(class, reason, wait);
        self.tally.twin.count_in_force(|shadow| shadow.would_have_waited(class, reason, wait));
    }

    fn would_have_refused(&self, reason: Reason) {
        let meters = &self.config.meters;
        meters.count(&table::SHADOW_REFUSALS, self.class, &[reason.word()]);
        let class = meters.class_name(self.class);
        self.tally.shadow.would_have_refused(class, reason);
        self.tally.twin.count_in_force(|shadow| shadow.would_have_refused(class, reason));
    }
}
