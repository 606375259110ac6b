//! Shadow: the limiter decides about every call, and every call goes at once.
//!
//! A call that may go takes the limiter's own permit. A call that would wait is admitted without
//! being metered, and a task waits in its place. When the task's turn comes, the wait is counted,
//! and the limiter learns the outcome of the call as soon as it is known. A call that would be
//! refused is admitted too; nothing is learned from it, because the gate would not have sent it.
//!
//! A shadow cannot know when a refused caller would have retried, and what the upstream would have
//! answered, and how fast, under less load. (If the call has ended before its task's turn, the task
//! gives its slot back at once.)

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use tokio::sync::oneshot;

use super::intake::{ENOUGH, declared, large_head};
use crate::api::{Group, Outcome};
use crate::limit::{Arrival, ClassId, Reason, Receipt};
use crate::proxy::driver::{Driver, HeldPermit, HeldTicket, Settlement, ShadowEntry, Verdict};
use crate::proxy::gate_config::GateConfig;
use crate::proxy::parts::GateParts;
use crate::proxy::tally::Tally;
use crate::telemetry::table;

/// Counts the would-be fate of a call.
struct Counter {
    config: Arc<GateConfig>,
    tally: Arc<Tally>,
    class: ClassId,
}

/// Returns the permit of a call on a shadow gate: always one, at once.
pub(super) fn permit(
    gate: &GateParts,
    verdict: Verdict,
    arrival: &Arrival<'_>,
    request: &Parts,
    config: &Arc<GateConfig>,
) -> HeldPermit {
    let driver = &gate.driver;
    let counter = Counter { config: Arc::clone(config), tally: Arc::clone(&gate.tally), class: arrival.class };
    let mut ticket = match verdict {
        Verdict::Go(permit) => return permit,
        Verdict::Refused(refusal) => {
            counter.would_have_refused(refusal.reason);
            return driver.admit_unmetered(arrival, ShadowEntry::default());
        }
        Verdict::Wait(ticket) => ticket,
    };
    // The bytes that would have been read meanwhile.
    if let Err(refusal) = ticket.hold_bytes(large_head(request) + declared(request).min(ENOUGH)) {
        counter.would_have_refused(refusal.reason);
        return driver.admit_unmetered(arrival, ShadowEntry::default());
    }
    let (told, hears) = oneshot::channel();
    let (ended, end) = oneshot::channel();
    // Bounded: there are no more of them than may wait, and than there are calls.
    tokio::spawn(shadow_task(driver.clone(), ticket, arrival.group, counter, hears, end));
    driver.admit_unmetered(arrival, ShadowEntry { told: Some(told), ended: Some(ended) })
}

/// Waits in the place of a call, and ends as the call ended.
async fn shadow_task(
    driver: Driver,
    mut ticket: HeldTicket,
    group: Group,
    counter: Counter,
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
                Err(Some(refusal)) => return counter.would_have_refused(refusal.reason),
                Err(None) => return,
            },
        }
    };
    driver.give_room(&permit, group);
    let (_, owed, slot) = permit.admit(());
    if let Some((reason, wait)) = owed.receipt().and_then(Receipt::waited) {
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
    fn would_have_waited(&self, reason: Reason, wait: Duration) {
        let meters = &self.config.meters;
        meters.would_have_waited(self.class, reason, wait);
        let class = meters.class_name(self.class);
        self.tally.shadow.iter().for_each(|shadow| shadow.would_have_waited(class, reason, wait));
    }

    fn would_have_refused(&self, reason: Reason) {
        let meters = &self.config.meters;
        meters.count(&table::SHADOW_REFUSALS, self.class, &[reason.word()]);
        let class = meters.class_name(self.class);
        self.tally.shadow.iter().for_each(|shadow| shadow.would_have_refused(class, reason));
    }
}
