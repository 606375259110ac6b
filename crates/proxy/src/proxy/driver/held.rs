//! Guards around a call's ticket, permit, receipt and slot: a guard that is dropped gives its value
//! back to the limiter, whatever happened to the call.
//!
//! The limiter's own types cannot do this on Drop, because the limiter needs the current time; the
//! guards take it from the driver's clock.

use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::Driver;
use crate::api::{Answer, Key, Outcome};
use crate::limit::outcome::Charged;
use crate::limit::quota::ResourceId;
use crate::limit::{Admitted, Claim, Permit, Receipt, Refusal, Slot, Ticket};
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
    entry: ShadowEntry,
    /// The same call's permit from the limiter for classes in shadow mode.
    beside: Option<Box<Self>>,
}

/// The duty to report a call's outcome to the limiter once. Dropping it reports that nothing was
/// learned.
pub(crate) struct OwedReceipt {
    driver: Driver,
    receipt: Option<Receipt>,
    learns: Learning,
    told: Option<oneshot::Sender<Settlement>>,
    beside: Option<Box<Self>>,
}

/// A slot (the right to be in flight), given back when dropped.
pub(crate) struct HeldSlot {
    driver: Driver,
    slot: Option<Slot>,
    /// Dropped with the slot, at the end of the call. This tells the call's task in shadow mode,
    /// which waits in the limiter, that the call has ended.
    _ended: Option<oneshot::Sender<()>>,
    _beside: Option<Box<Self>>,
}

/// How much of a call's outcome is reported to the limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Learning {
    #[default]
    All,
    /// Only a pause asked for by the upstream, because all calls must respect it.
    Pauses,
    Nothing,
}

/// How a call sent without limits is reported: to the limiter and, in shadow mode, to the task
/// waiting in the queue on its behalf.
#[derive(Default)]
pub(crate) struct ShadowEntry {
    pub(crate) learns: Learning,
    pub(crate) told: Option<oneshot::Sender<Settlement>>,
    /// Dropped at the end of the call's body, to report the call's end to the waiting task.
    pub(crate) ended: Option<oneshot::Sender<()>>,
}

/// The outcome of a call in shadow mode, for the task waiting in the queue on its behalf.
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

    /// Returns the permit when the wait is over, or an error: the refusal, or `None` if no
    /// connection could be made. While the call waits, the task is woken when the limiter may have
    /// decided.
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
            Claim::Permit(permit) => Ok(HeldPermit::new(&self.driver, permit, now, ShadowEntry::default())),
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
    pub(super) fn new(driver: &Driver, permit: Permit, claimed: Moment, entry: ShadowEntry) -> Self {
        Self { driver: driver.clone(), permit: Some(permit), claimed, entry, beside: None }
    }

    /// Adds the same call's permit from the limiter for classes in shadow mode.
    pub(crate) fn beside(mut self, other: Self) -> Self {
        self.beside = Some(Box::new(other));
        self
    }

    /// Returns true if no limit applied to the call.
    pub(crate) fn is_exempt(&self) -> bool {
        self.permit.as_ref().is_some_and(Permit::is_exempt)
    }

    /// Puts the call back at the head of its queue, because no connection was found after all.
    #[expect(clippy::expect_used, reason = "consumes the guard, which had the permit from the beginning")]
    pub(crate) fn requeue(mut self) -> HeldTicket {
        let permit = self.permit.take().expect(ONCE);
        let ticket = self.driver.operate(|state, now| state.limiter.requeue(permit, now));
        HeldTicket::new(&self.driver, ticket)
    }

    /// Uses the permit to send `request`. Returns the request marked as admitted, the duty to
    /// report its outcome, and its slot.
    #[expect(clippy::expect_used, reason = "consumes the guard, which had the permit from the beginning")]
    pub(crate) fn admit<T>(mut self, request: T) -> (Admitted<T>, OwedReceipt, HeldSlot) {
        let (admitted, receipt, slot) = self.permit.take().expect(ONCE).admit(request);
        let ShadowEntry { learns, told, ended } = std::mem::take(&mut self.entry);
        let driver = self.driver.clone();
        let mut owed = OwedReceipt { driver: driver.clone(), receipt: Some(receipt), learns, told, beside: None };
        let mut slot = HeldSlot { driver, slot: Some(slot), _ended: ended, _beside: None };
        if let Some(beside) = self.beside.take() {
            let (_, receipt, other) = beside.admit(());
            owed.beside = Some(Box::new(receipt));
            slot._beside = Some(Box::new(other));
        }
        (admitted, owed, slot)
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
    /// Returns the receipt, unless the outcome was reported already.
    pub(crate) fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Gives the call's token back to the gate's bucket, because the upstream did not count the
    /// call.
    pub(crate) fn refund(&self) {
        if let Some(receipt) = self.receipt.as_ref().filter(|_| self.learns == Learning::All) {
            self.driver.operate(|state, now| state.limiter.refund(receipt, now));
        }
        self.beside.iter().for_each(|beside| beside.refund());
    }

    /// Reports to the limiter that the upstream has `left` requests left in its quota, to be shared
    /// with the other gates of a shared bucket.
    pub(crate) fn note_left(&self, charged: Charged, left: u32) {
        if let Some(receipt) = self.receipt.as_ref().filter(|_| self.learns == Learning::All) {
            self.driver.operate(|state, now| state.limiter.note_left(receipt, charged, left, now));
        }
    }

    /// Records which of the upstream's quotas calls of this action count toward (`word`), unless
    /// the limiter expected that one.
    pub(crate) fn learn(&self, action: u64, word: ResourceId) {
        let receipt = self.receipt.as_ref().filter(|_| self.learns != Learning::Nothing);
        if let Some(receipt) = receipt.filter(|receipt| !receipt.was_predicted(word)) {
            self.driver.operate(|state, now| state.limiter.learn_resource(receipt, action, word, now));
        }
    }

    /// Reports the outcome. `key` is given if the call's key became known only after it was sent.
    /// `name` returns the readable name of the key, for the log, if the key begins to fail.
    pub(crate) fn finish(mut self, answer: Answer, key: Option<Key>, name: &dyn Fn() -> String) {
        self.beside.take().into_iter().for_each(|beside| beside.finish(answer, key, name));
        // It may have left.
        _ = self.told.take().is_some_and(|told| told.send(Settlement { answer, key, name: name() }).is_ok());
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
            self.driver.operate(|state, now| state.limiter.release(slot, now));
        }
    }
}

/// The outcome if nothing was learned about the upstream.
const NOTHING: Answer = Answer::new(Outcome::Abandoned, None);
/// The message of a panic that cannot happen: both methods that take the permit out consume the
/// guard.
const ONCE: &str = "a permit is in its guard until the guard is consumed";
