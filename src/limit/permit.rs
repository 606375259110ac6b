//! Proof of admission. Only the limiter makes these, so a call that was not admitted does not compile.

use super::verdict::{ClassId, Reason};
use crate::api::{Group, Key};
use std::time::Duration;

/// A call waiting in the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Proof that a call was admitted, until it is sent or retracted.
#[derive(Debug)]
#[must_use = "a permit holds tokens and a slot: admit a request with it, or retract it"]
pub struct Permit {
    pub(super) receipt: Receipt,
    pub(super) slot: Slot,
}

/// Owed exactly one outcome, at the response head.
#[derive(Debug)]
#[must_use = "a receipt is owed an outcome"]
pub struct Receipt {
    /// The class it went as.
    pub class: ClassId,
    /// What its failure will be remembered for.
    pub key: Option<Key>,
    /// How long it waited and, if at all, for what above all.
    pub waited: Option<(Reason, Duration)>,
    /// Everything the core itself needs to settle or retract it.
    pub(super) inner: ReceiptState,
}

/// The core's own part of a receipt.
#[derive(Debug)]
pub(super) struct ReceiptState {}

/// A place among the calls in flight, given back at the end of the body.
#[derive(Debug)]
#[must_use = "a slot is given back with Limiter::release"]
pub struct Slot {
    pub(super) group: Group,
}

/// A request that was admitted: the upstream takes nothing else.
#[derive(Debug)]
pub struct Admitted<T>(T);

// === impl Permit ===

impl Permit {
    /// Binds the permit to the request it lets through.
    pub fn admit<T>(self, request: T) -> (Admitted<T>, Receipt, Slot) {
        (Admitted(request), self.receipt, self.slot)
    }

    /// The class it was given for.
    #[must_use]
    pub fn class(&self) -> ClassId {
        self.receipt.class
    }
}

// === impl Admitted ===

impl<T> Admitted<T> {
    /// What was admitted.
    pub fn into_inner(self) -> T {
        self.0
    }
}

// === impl Slot ===

impl Slot {
    /// The connections the call used.
    #[must_use]
    pub fn group(&self) -> Group {
        self.group
    }
}
