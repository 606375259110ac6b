//! Guards around a call's ticket, permit, receipt and slot: a guard that is dropped gives its value
//! back to the limiter, whatever happened to the call.
//!
//! The limiter's own types cannot do this on Drop, because the limiter needs the current time; the
//! guards take it from the driver's clock.

use std::task::{Context, Poll};

use super::Driver;
use crate::api::{Answer, Key, Outcome};
use crate::limit::{Admitted, Claim, Limiter, Permit, Receipt, Refusal, Slot, Ticket};
use crate::moment::Moment;

/// The ticket of a waiting call. Dropping it takes the call out of its queue.
pub(crate) struct HeldTicket {
    driver: Driver,
    ticket: Option<Ticket>,
}

/// A permit to send one call. Dropping it unused gives its tokens and its slot back.
pub(crate) struct HeldPermit {
    driver: Driver,
    /// The permit; `None` once it was used.
    permit: Option<Permit>,
    /// The moment the permit was claimed, to check a bucket's bound (P1).
    pub(crate) claimed: Moment,
    learns: Learning,
}

/// The duty to report a call's outcome to the limiter once. Dropping it reports that nothing was
/// learned.
pub(crate) struct OwedReceipt {
    driver: Driver,
    receipt: Option<Receipt>,
    learns: Learning,
}

/// A slot (the right to be in flight), given back when dropped.
pub(crate) struct HeldSlot {
    driver: Driver,
    slot: Option<Slot>,
}

/// How much of a call's outcome is reported to the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learning {
    All,
    /// Only a pause asked for by the upstream, because all calls must respect it.
    Pauses,
    Nothing,
}

// === impl HeldTicket ===

impl HeldTicket {
    pub(super) fn new(driver: &Driver, ticket: Ticket) -> Self {
        Self { driver: driver.clone(), ticket: Some(ticket) }
    }

    /// Returns the permit when the wait is over, or an error: the refusal, or `None` if no
    /// connection could be made. While the call waits, the task is woken when the limiter may have
    /// decided.
    pub(crate) fn poll_turn(&mut self, cx: &Context<'_>) -> Poll<Result<HeldPermit, Option<Refusal>>> {
        let Some(ticket) = self.ticket else {
            return Poll::Pending; // the wait is over already
        };
        let (claim, now) = self.driver.operate(|state, now| {
            let claim = state.own.limiter.claim(ticket, now);
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
            Claim::Permit(permit) => Ok(HeldPermit::new(&self.driver, permit, now, Learning::All)),
            Claim::Refused(refusal) => Err(Some(refusal)),
            Claim::Unconnected => Err(None),
        };
        self.ticket = None;
        Poll::Ready(turn)
    }

    /// Counts `bytes` more of the waiting call's body.
    ///
    /// # Errors
    /// The bound on the bytes of waiting calls is reached; the call is no longer in its queue.
    pub(crate) fn hold_bytes(&mut self, bytes: usize) -> Result<(), Refusal> {
        let Some(ticket) = self.ticket else { return Ok(()) };
        self.driver.operate(|state, now| state.own.limiter.hold_bytes(ticket, bytes, now))
    }
}

impl Drop for HeldTicket {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.driver.operate(|state, now| {
                state.wakers.remove(&ticket);
                state.own.limiter.leave(ticket, now);
            });
        }
    }
}

// === impl HeldPermit ===

impl HeldPermit {
    pub(super) fn new(driver: &Driver, permit: Permit, claimed: Moment, learns: Learning) -> Self {
        Self { driver: driver.clone(), permit: Some(permit), claimed, learns }
    }

    /// Returns true if no limit applied to the call.
    pub(crate) fn is_exempt(&self) -> bool {
        self.permit.as_ref().is_some_and(Permit::is_exempt)
    }

    /// Puts the call back at the head of its queue, because no connection was found after all.
    #[expect(clippy::expect_used, reason = "consumes the guard, which had the permit from the beginning")]
    pub(crate) fn requeue(mut self) -> HeldTicket {
        let permit = self.permit.take().expect(ONCE);
        let ticket = self.driver.operate(|state, now| state.own.limiter.requeue(permit, now));
        HeldTicket::new(&self.driver, ticket)
    }

    /// Uses the permit to send `request`. Returns the request marked as admitted, the duty to
    /// report its outcome, and its slot.
    #[expect(clippy::expect_used, reason = "consumes the guard, which had the permit from the beginning")]
    pub(crate) fn admit<T>(mut self, request: T) -> (Admitted<T>, OwedReceipt, HeldSlot) {
        let (admitted, receipt, slot) = self.permit.take().expect(ONCE).admit(request);
        let driver = self.driver.clone();
        let owed = OwedReceipt { driver: driver.clone(), receipt: Some(receipt), learns: self.learns };
        (admitted, owed, HeldSlot { driver, slot: Some(slot) })
    }
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.driver.operate(|state, now| state.own.limiter.retract(permit, now));
        }
    }
}

// === impl OwedReceipt ===

impl OwedReceipt {
    /// Returns the receipt, unless the outcome was reported already.
    pub(crate) fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Applies a function to the limiter and the receipt, unless the outcome was reported already.
    pub(crate) fn tell(&self, apply: &dyn Fn(&mut Limiter, &Receipt, Moment)) {
        if let Some(receipt) = &self.receipt {
            self.driver.operate(|state, now| apply(&mut state.own.limiter, receipt, now));
        }
    }

    /// Reports the outcome. `key` is given if the call's key became known only after it was sent.
    /// `name` returns the readable name of the key, for the log, if the key begins to fail.
    pub(crate) fn finish(mut self, answer: Answer, key: Option<Key>, name: &dyn Fn() -> String) {
        let key = match self.learns {
            Learning::All => key,
            Learning::Pauses if answer.pause.is_some() => None,
            Learning::Pauses | Learning::Nothing => return,
        };
        self.receipt.take().into_iter().for_each(|receipt| self.driver.finish(receipt, answer, key, name));
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
            self.driver.operate(|state, now| state.own.limiter.release(slot, now));
        }
    }
}

/// The outcome if nothing was learned about the upstream.
const NOTHING: Answer = Answer::new(Outcome::Abandoned, None);
/// The message of a panic that cannot happen: both methods that take the permit out consume the
/// guard.
const ONCE: &str = "a permit is in its guard until the guard is consumed";
