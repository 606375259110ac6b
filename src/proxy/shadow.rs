//! Shadow: the limiter decides about every call, and every call goes at once.
//!
//! A call that may go takes the limiter's own permit. One that would wait is let by, and its other self waits in its place: when its turn
//! comes, the wait is counted, and it is told what the call came to, as soon as that is known. One that would be refused is let by, and
//! nothing is learned from it, because the gate would not have sent it.
//!
//! What a shadow cannot know: when a refused caller would have come again, how the upstream would have answered had it been spared, and how
//! long an answer would have taken at its proper time (an other self whose call has ended already gives its slot back at once).

use std::{future::poll_fn, pin::Pin, task::Poll};

use http::{header::CONTENT_LENGTH, request::Parts};
use tokio::sync::oneshot;

use super::{
    admission,
    driver::{Driver, Entry, HeldPermit, HeldTicket, ShadowEntry, Stale, Told, Turn},
    observe::AsIf,
};
use crate::{
    api::{Group, Outcome},
    limit::Arrival,
};

/// The permit of a call on a gate that only plays: always one, at once.
///
/// # Errors
/// The call was read under terms that are not in force any more.
pub(super) fn permit(
    driver: &Driver,
    generation: u64,
    arrival: &Arrival<'_>,
    parts: &Parts,
    as_if: AsIf,
) -> Result<HeldPermit, Stale> {
    let entered = driver.arrive(generation, arrival)?;
    as_if.decided(entered.decision());
    let mut place = match entered {
        Entry::Go(permit) => return Ok(permit),
        Entry::Refused(refusal) => {
            as_if.refused(refusal.reason);
            return Ok(driver.admit_unmetered(arrival).with_shadow(ShadowEntry::default()));
        }
        Entry::Wait(place) => place,
    };
    let permit = driver.admit_unmetered(arrival);
    // As much as would have been read while it waited.
    if let Err(refusal) = place.hold_bytes(admission::large_head(parts) + declared(parts)) {
        as_if.refused(refusal.reason);
        return Ok(permit.with_shadow(ShadowEntry::default()));
    }
    let (told, hears) = oneshot::channel();
    let (ended, end) = oneshot::channel();
    // Bounded: there are no more of them than may wait, and than there are calls.
    tokio::spawn(shadow_task(driver.clone(), place, arrival.group, as_if, hears, end));
    Ok(permit.with_shadow(ShadowEntry { told: Some(told), ended: Some(ended) }))
}

/// Waits as the call would have waited, and ends as it ended.
async fn shadow_task(
    driver: Driver,
    mut place: HeldTicket,
    group: Group,
    as_if: AsIf,
    mut hears: oneshot::Receiver<Told>,
    end: oneshot::Receiver<()>,
) {
    let mut told = None;
    let turn = poll_fn(|cx| {
        if told.is_none()
            && let Poll::Ready(heard) = Pin::new(&mut hears).poll(cx)
        {
            // A caller who left would have left its place as well.
            match heard {
                Ok(heard) if heard.answer.outcome != Outcome::Abandoned => told = Some(heard),
                Ok(_) | Err(_) => return Poll::Ready(None),
            }
        }
        place.poll_turn(cx).map(Some)
    })
    .await;
    let permit = match turn {
        Some(Turn::Go(permit)) => permit,
        Some(Turn::Refused(refusal)) => return as_if.refused(refusal.reason),
        Some(Turn::Unconnected) | None => return,
    };
    driver.give_room(&permit, group);
    let ((), owed, slot) = {
        let (admitted, owed, slot) = permit.admit(());
        (admitted.into_inner(), owed, slot)
    };
    if let Some((reason, wait)) = owed.waited() {
        as_if.waited(reason, wait);
    }
    let told = match told {
        Some(told) => Ok(told),
        None => hears.await,
    };
    if let Ok(Told { answer, key, name }) = told {
        let key = key.filter(|_| owed.key().is_none());
        owed.settle(answer, key, &|| name.clone());
    }
    drop(end.await); // an error too: its other end is gone, and so is the call
    drop(slot);
}

/// The length of a body that the gate would hold.
fn declared(parts: &Parts) -> usize {
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    length.and_then(|length| length.parse::<usize>().ok()).unwrap_or_default().min(admission::ENOUGH)
}
