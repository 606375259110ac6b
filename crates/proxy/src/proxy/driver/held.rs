//! Guards around a call's ticket, permit, receipt and slot: they go back whatever becomes of the
//! call.
//!
//! The limiter does nothing on Drop, because Drop has no `now`; these guards do, with the driver's
//! clock.

use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::Driver;
use crate::api::{Answer, Key, Outcome, Scope};
use crate::limit::{Admitted, Claim, Permit, Receipt, Refusal, Slot, Ticket};
use crate::moment::Moment;

/// A ticket, until the wait is over. If it is dropped before, the call leaves the queue.
pub(crate) struct HeldTicket {
    driver: Driver,
    ticket: Option<Ticket>,
}

/// A permit, until the call is sent with it. If it is dropped before, everything goes back.
pub(crate) struct HeldPermit {
    driver: Driver,
    /// Taken by whatever consumes the guard.
    permit: Option<Permit>,
    /// The moment of the claim, for a bucket's bound (P1).
    pub(crate) claimed: Moment,
    shadow: Option<ShadowEntry>,
}

/// A receipt, owed one outcome. If it is dropped, nothing was learned.
pub(crate) struct OwedReceipt {
    driver: Driver,
    receipt: Option<Receipt>,
    /// Set for a call admitted without being metered: the limiter learns nothing from it.
    shadow: Option<Option<oneshot::Sender<Settlement>>>,
}

/// A slot, given back when dropped.
pub(crate) struct HeldSlot {
    driver: Driver,
    slot: Option<Slot>,
    /// Dropped with the slot: that is the message.
    _ended: Option<oneshot::Sender<()>>,
}

/// The task in the place of a call that was admitted without being metered. It learns the outcome.
/// If it is empty, nothing is learned.
#[derive(Default)]
pub(crate) struct ShadowEntry {
    pub(crate) told: Option<oneshot::Sender<Settlement>>,
    /// Dropped when the call's body has ended.
    pub(crate) ended: Option<oneshot::Sender<()>>,
}

/// The outcome of a call, for the task that counts it in the shadow of the limits.
pub(crate) struct Settlement {
    pub(crate) answer: Answer,
    pub(crate) key: Option<Key>,
    pub(crate) name: String,
}

// === impl HeldTicket ===

impl HeldTicket {
    pub(super) fn new(driver: &Driver, ticket: Ticket) -> Self {
        Self { driver: driver.clone(), ticket: Some(ticket) }
    }

    /// Returns the permit when the wait is over, or the refusal, or `None` if no connection could
    /// be made. The task is woken whenever that may have changed.
    pub(crate) fn poll_turn(&mut self, cx: &Context<'_>) -> Poll<Result<HeldPermit, Option<Refusal>>> {
        let Some(ticket) = self.ticket else {
            return Poll::Pending; // the wait is over already
        };
        let (claim, now) = self.driver.operate(|state, now| {
            let claim = state.limiter.claim(ticket, now);
            match claim {
                Claim::Waiting => {
                    state.wakers.entry(ticket).or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
                }
                Claim::Permit(_) | Claim::Refused(_) | Claim::Unconnected => drop(state.wakers.remove(&ticket)),
            }
            (claim, now)
        });
        let turn = match claim {
            Claim::Waiting => return Poll::Pending,
            Claim::Permit(permit) => Ok(HeldPermit::new(&self.driver, permit, now, None)),
            Claim::Refused(refusal) => Err(Some(refusal)),
            Claim::Unconnected => Err(None),
        };
        self.ticket = None;
        Poll::Ready(turn)
    }

    /// Holds `bytes` more of the call.
    ///
    /// # Errors
    /// There is no room for them; the call has left the queue.
    pub(crate) fn hold_bytes(&mut self, bytes: usize) -> Result<(), Refusal> {
        let Some(ticket) = self.ticket else { return Ok(()) };
        self.driver.operate(|state, now| state.limiter.hold_bytes(ticket, bytes, now))
    }
}

impl Drop for HeldTicket {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.driver.operate(|state, now| {
                state.wakers.remove(&ticket);
                state.limiter.leave(ticket, now);
            });
        }
    }
}

// === impl HeldPermit ===

impl HeldPermit {
    pub(super) fn new(driver: &Driver, permit: Permit, claimed: Moment, shadow: Option<ShadowEntry>) -> Self {
        Self { driver: driver.clone(), permit: Some(permit), claimed, shadow }
    }

    /// True if it was given without asking a limit.
    pub(crate) fn is_exempt(&self) -> bool {
        self.permit.as_ref().is_some_and(Permit::is_exempt)
    }

    /// Puts the call back at the head of its queue: no connection was found after all.
    #[expect(clippy::expect_used, reason = "consumes the guard, which had the permit from the beginning")]
    pub(crate) fn requeue(mut self) -> HeldTicket {
        let permit = self.permit.take().expect(ONCE);
        let ticket = self.driver.operate(|state, now| state.limiter.requeue(permit, now));
        HeldTicket::new(&self.driver, ticket)
    }

    /// Binds the permit to its request.
    #[expect(clippy::expect_used, reason = "consumes the guard, which had the permit from the beginning")]
    pub(crate) fn admit<T>(mut self, request: T) -> (Admitted<T>, OwedReceipt, HeldSlot) {
        let (admitted, receipt, slot) = self.permit.take().expect(ONCE).admit(request);
        let (told, ended) = self.shadow.take().map(|ShadowEntry { told, ended }| (told, ended)).unzip();
        let owed = OwedReceipt { driver: self.driver.clone(), receipt: Some(receipt), shadow: told };
        (admitted, owed, HeldSlot { driver: self.driver.clone(), slot: Some(slot), _ended: ended.flatten() })
    }
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.driver.operate(|state, now| state.limiter.retract(permit, now));
        }
    }
}

// === impl OwedReceipt ===

impl OwedReceipt {
    /// Returns the receipt, until the outcome is known.
    pub(crate) fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Gives back the call's token of the gate's bucket: the upstream did not count the call.
    pub(crate) fn refund(&self) {
        if let (Some(receipt), None) = (&self.receipt, &self.shadow) {
            self.driver.operate(|state, now| state.limiter.refund(receipt, now));
        }
    }

    /// Shares the rest of the upstream's quota with the gates of a shared bucket.
    pub(crate) fn note_left(&self, scope: Scope, left: u32) {
        if let (Some(receipt), None) = (&self.receipt, &self.shadow) {
            self.driver.operate(|state, now| state.limiter.note_left(receipt, scope, left, now));
        }
    }

    /// Hands over the outcome. `key` is given where it was not known before; `name` names it in
    /// case it begins to fail.
    pub(crate) fn finish(mut self, answer: Answer, key: Option<Key>, name: &dyn Fn() -> String) {
        match self.shadow.take() {
            Some(told) => drop(told.map(|told| told.send(Settlement { answer, key, name: name() }))), // it may have left
            None => self.receipt.take().into_iter().for_each(|receipt| self.driver.finish(receipt, answer, key, name)),
        }
    }
}

impl Drop for OwedReceipt {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            self.driver.finish(receipt, NOTHING, None, &String::new);
        }
    }
}

// === impl HeldSlot ===

impl Drop for HeldSlot {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.driver.operate(|state, now| state.limiter.release(slot, now));
        }
    }
}

/// Nothing was learned.
const NOTHING: Answer = Answer::new(Outcome::Abandoned, None);
/// Both consumers take the guard by value.
const ONCE: &str = "a permit is in its guard until the guard is consumed";
