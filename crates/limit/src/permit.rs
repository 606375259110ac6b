//! Proofs that the limiter admitted a call. Only the limiter makes these values, so that code
//! sending a call without admission does not compile.

use std::time::Duration;

use super::{CallFacts, ClassId, Grant, Keys, Reason, SlotShare};
use crate::key::{Group, Key};
use crate::moment::Moment;
use crate::outcome::Answer;
use crate::quota::ResourceId;

/// The proof of a call's admission. It is used up by sending the call, or given back.
#[derive(Debug)]
#[must_use = "a permit holds tokens and a slot: admit a request with it, or retract it"]
pub struct Permit {
    pub(super) receipt: Receipt,
    pub(super) slot: Slot,
}

/// A receipt for a sent call. It must be settled with exactly one outcome, at the response head.
/// Boxed, because it would be copied many times on the way to the upstream.
#[derive(Debug)]
#[must_use = "a receipt is owed an outcome"]
pub struct Receipt(Box<AdmittedCall>);

#[derive(Debug)]
struct AdmittedCall {
    call: CallFacts,
    grant: Grant,
}

/// The slots a call in flight occupies, to be given back at the end of its response body.
#[derive(Debug)]
#[must_use = "a slot is given back with Limiter::release"]
pub struct Slot {
    group: Group,
    /// The slots in use: one of the gate's and one of the class's.
    pub(super) shares: [SlotShare; 2],
    /// The number of the call's class. Unlike `class`, it stays the same when the configuration is
    /// reloaded.
    pub(super) serial: u32,
    /// The index of the class when the call was admitted.
    pub(super) class: ClassId,
}

/// A request with its admission. Only such a request can be sent to the upstream.
#[derive(Debug)]
pub struct Admitted<T>(T);

// === impl Permit ===

impl Permit {
    pub(super) fn new(call: CallFacts, grant: Grant) -> Self {
        let shares = grant.needs.as_ref().map_or([SlotShare::None; 2], |needs| needs.shares);
        let slot = Slot { group: call.demand.group, shares, serial: call.serial, class: call.demand.class };
        Self { receipt: Receipt(Box::new(AdmittedCall { call, grant })), slot }
    }

    /// Uses the permit up for `request`. Returns the request, ready to be sent, with the receipt to
    /// settle and the slot to release later.
    pub fn admit<T>(self, request: T) -> (Admitted<T>, Receipt, Slot) {
        (Admitted(request), self.receipt, self.slot)
    }

    /// Returns the class of the call.
    pub fn class(&self) -> ClassId {
        self.receipt.call().demand.class
    }

    /// Returns true if no limit applied to the call. Such a call does not even wait for room on a
    /// connection.
    pub fn is_exempt(&self) -> bool {
        self.receipt.grant().needs.is_none()
    }

    /// Returns how long the call waited and the main reason for it; `None` if it did not wait.
    pub fn waited(&self) -> Option<(Reason, Duration)> {
        self.receipt.waited()
    }
}

// === impl Receipt ===

impl Receipt {
    /// Returns the key of the call.
    pub fn key(&self) -> Option<Key> {
        self.call().key
    }

    /// Returns how long the call waited and the main reason for it; `None` if it did not wait.
    pub fn waited(&self) -> Option<(Reason, Duration)> {
        self.grant().waited
    }

    /// Returns true if the call was expected to be charged to this resource.
    pub fn was_predicted(&self, word: ResourceId) -> bool {
        self.call().demand.quota.word == word
    }

    /// Settles a receipt without the limiter's lock, if the outcome changes nothing: usually the
    /// success of a healthy key.
    ///
    /// # Errors
    /// Returns the receipt if `Limiter::finish` must be called with it.
    pub fn settle(self, keys: &Keys, answer: Answer) -> Result<(), Self> {
        // Other calls of its key wait for this one: it is the trial of a failing key, or the one
        // write.
        let key_grant = &self.grant().key_grant;
        let is_awaited = key_grant.trial != 0 || key_grant.alone;
        if is_awaited || keys.learns_from(self.call().key.as_ref(), answer) { Err(self) } else { Ok(()) }
    }

    /// Returns the moment the call took its tokens and everything else it needed.
    pub fn granted(&self) -> Moment {
        self.call().arrived + self.grant().waited.map_or(Duration::ZERO, |(_, waited)| waited)
    }

    pub(super) fn call(&self) -> &CallFacts {
        &self.0.call
    }

    pub(super) fn grant(&self) -> &Grant {
        &self.0.grant
    }
}

// === impl Admitted ===

impl<T> Admitted<T> {
    /// Returns the request.
    pub fn into_inner(self) -> T {
        self.0
    }
}

// === impl Slot ===

impl Slot {
    /// Returns true if the call occupies no slot.
    pub fn is_empty(&self) -> bool {
        matches!(self.shares, [SlotShare::None, SlotShare::None])
    }

    /// Returns the connection group of the call.
    pub fn group(&self) -> Group {
        self.group
    }
}
