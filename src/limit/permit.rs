//! Proof of admission. Only the limiter makes these, so a call that was not admitted does not compile.

use std::time::Duration;

use super::{
    needs::Place,
    verdict::{ClassId, Reason},
    waiter::{Call, Grant},
};
use crate::{
    api::{Group, Key},
    moment::Moment,
};

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
pub struct Receipt(Box<Bill>);

/// Behind a box: it goes through many hands on the way to the upstream, and would be copied by each.
#[derive(Debug)]
struct Bill {
    call: Call,
    grant: Grant,
}

/// A place among the calls in flight, given back at the end of the body.
#[derive(Debug)]
#[must_use = "a slot is given back with Limiter::release"]
pub struct Slot {
    pub(super) group: Group,
    /// Among the gate's slots, among the class's.
    pub(super) places: [Place; 2],
    /// The class, by the number that stays the same over a reload.
    pub(super) serial: u32,
}

/// A request that was admitted: the upstream takes nothing else.
#[derive(Debug)]
pub struct Admitted<T>(T);

// === impl Permit ===

impl Permit {
    pub(super) fn new(call: Call, grant: Grant) -> Self {
        let places = grant.needs.as_ref().map_or([Place::None; 2], |needs| needs.places);
        let slot = Slot { group: call.group, places, serial: call.serial };
        Self { receipt: Receipt(Box::new(Bill { call, grant })), slot }
    }

    /// Binds the permit to the request it lets through.
    pub fn admit<T>(self, request: T) -> (Admitted<T>, Receipt, Slot) {
        (Admitted(request), self.receipt, self.slot)
    }

    /// The class it was given for.
    #[must_use]
    pub fn class(&self) -> ClassId {
        ClassId(u16::try_from(self.receipt.call().class).unwrap_or(u16::MAX))
    }

    /// Whether it was given without a limit being asked: such a call waits for nothing, not even for room on a connection.
    #[must_use]
    pub fn is_exempt(&self) -> bool {
        self.receipt.grant().needs.is_none()
    }

    /// How long the call waited and, if at all, for what above all.
    #[must_use]
    pub fn waited(&self) -> Option<(Reason, Duration)> {
        self.receipt.waited()
    }
}

// === impl Receipt ===

impl Receipt {
    /// What its failure will be remembered for.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        self.call().key
    }

    /// How long it waited and, if at all, for what above all.
    #[must_use]
    pub fn waited(&self) -> Option<(Reason, Duration)> {
        self.grant().waited
    }

    /// When its tokens were taken, and with them whatever else it needed.
    #[must_use]
    pub fn granted(&self) -> Moment {
        self.call().arrived + self.grant().waited.map_or(Duration::ZERO, |(_, waited)| waited)
    }

    pub(super) fn call(&self) -> &Call {
        &self.0.call
    }

    pub(super) fn grant(&self) -> &Grant {
        &self.0.grant
    }

    /// The call and what it was given, of one who gives it back.
    pub(super) fn into_parts(self) -> (Call, Grant) {
        let Bill { call, grant } = *self.0;
        (call, grant)
    }

    /// Whether others of its key wait for the call: it is the trial of a failing key, or the one write.
    pub(super) fn holds_key(&self) -> bool {
        self.grant().pass.trial != 0 || self.grant().pass.alone
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
