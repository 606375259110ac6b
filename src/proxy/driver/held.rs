//! What a call owes the limiter, given back whatever becomes of the call.
//!
//! The limiter does nothing on Drop, because Drop has no `now`; these guards do, with the driver's clock.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{Driver, HeldTicket};
use crate::{
    api::{Answer, Key, Outcome},
    limit::{Admitted, Permit, Reason, Receipt, Slot},
    moment::Moment,
};

/// A permit, until the call is sent with it. Dropped: the call was not sent, and everything goes back.
#[derive(Debug)]
pub(crate) struct HeldPermit {
    driver: Driver,
    /// Taken by whatever consumes the guard.
    permit: Option<Permit>,
    claimed: Moment,
    shadow_entry: Option<ShadowEntry>,
}

/// A receipt, owed one outcome. Dropped: nothing was learned.
#[derive(Debug)]
pub(crate) struct OwedReceipt {
    driver: Driver,
    receipt: Option<Receipt>,
    shadow_entry: Option<oneshot::Sender<Told>>,
    /// What it is told is no concern of the limiter's.
    is_mute: bool,
}

/// A slot, given back when dropped.
#[derive(Debug)]
pub(crate) struct HeldSlot {
    driver: Driver,
    slot: Option<Slot>,
    /// Dropped with the slot: that is the message.
    _shadow_entry: Option<oneshot::Sender<()>>,
}

/// The other self of a call that was let by: it waits in the limiter, and is told what the call came to. Without one, nobody is.
#[derive(Debug, Default)]
pub(crate) struct ShadowEntry {
    pub(crate) told: Option<oneshot::Sender<Told>>,
    /// Dropped when the call's body has ended.
    pub(crate) ended: Option<oneshot::Sender<()>>,
}

/// What a call came to.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) answer: Answer,
    pub(crate) key: Option<Key>,
    pub(crate) name: String,
}

// === impl HeldPermit ===

impl HeldPermit {
    pub(super) fn new(driver: Driver, permit: Permit, claimed: Moment) -> Self {
        Self { driver, permit: Some(permit), claimed, shadow_entry: None }
    }

    /// A permit that was let by, whose outcome and end its other self is told.
    pub(crate) fn with_shadow(mut self, shadow_entry: ShadowEntry) -> Self {
        self.shadow_entry = Some(shadow_entry);
        self
    }

    /// Whether it was given without a limit being asked.
    pub(crate) fn is_exempt(&self) -> bool {
        self.permit.as_ref().is_some_and(Permit::is_exempt)
    }

    /// When it was claimed: the moment that a bucket's bound counts (P1).
    pub(crate) fn claimed(&self) -> Moment {
        self.claimed
    }

    /// No connection was found after all: the call waits again, at the head of its queue.
    #[expect(clippy::expect_used, reason = "consumes the guard, which had the permit from the beginning")]
    pub(crate) fn requeue(mut self) -> HeldTicket {
        let permit = self.permit.take().expect(ONCE);
        self.driver.requeue(permit)
    }

    /// Sends the call on its way.
    #[expect(clippy::expect_used, reason = "consumes the guard, which had the permit from the beginning")]
    pub(crate) fn admit<T>(mut self, request: T) -> (Admitted<T>, OwedReceipt, HeldSlot) {
        let (admitted, receipt, slot) = self.permit.take().expect(ONCE).admit(request);
        let is_mute = self.shadow_entry.is_some();
        let ShadowEntry { told, ended } = self.shadow_entry.take().unwrap_or_default();
        let owed = OwedReceipt { driver: self.driver.clone(), receipt: Some(receipt), shadow_entry: told, is_mute };
        (admitted, owed, HeldSlot { driver: self.driver.clone(), slot: Some(slot), _shadow_entry: ended })
    }
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.driver.retract(permit);
        }
    }
}

// === impl OwedReceipt ===

impl OwedReceipt {
    /// How long the call waited, and for what above all.
    pub(crate) fn waited(&self) -> Option<(Reason, Duration)> {
        self.receipt.as_ref().and_then(Receipt::waited)
    }

    /// When its tokens were taken.
    pub(crate) fn granted(&self) -> Option<Moment> {
        self.receipt.as_ref().map(Receipt::granted)
    }

    /// What the call's failure will be remembered for, as far as it was known when it left.
    pub(crate) fn key(&self) -> Option<Key> {
        self.receipt.as_ref().and_then(Receipt::key)
    }

    /// The outcome. `key` is given where it was not known before; `name` names it should it begin to fail.
    pub(crate) fn settle(mut self, answer: Answer, key: Option<Key>, name: &dyn Fn() -> String) {
        if let Some(shadow_entry) = self.shadow_entry.take() {
            drop(shadow_entry.send(Told { answer, key, name: name() })); // it may have left
        }
        let Some(receipt) = self.receipt.take() else { return };
        match self.is_mute {
            true => self.driver.finish(receipt, NOTHING, None, &String::new),
            false => self.driver.finish(receipt, answer, key, name),
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
            self.driver.release(slot);
        }
    }
}

/// Nothing was learned.
const NOTHING: Answer = Answer::new(Outcome::Abandoned, None);
/// Both consumers take the guard by value.
const ONCE: &str = "a permit is in its guard until the guard is consumed";
