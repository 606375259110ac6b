//! The limiter's operations (being built).

use std::sync::Arc;

use super::{
    keys::Keys,
    permit::{Permit, Receipt, Slot, Ticket},
    policy::Policy,
    verdict::{Arrival, Refusal},
};
use crate::{
    api::{Answer, Group, Key},
    moment::Moment,
};

/// What `arrive` says.
#[derive(Debug)]
pub enum Verdict {
    /// It may go.
    Admit(Permit),
    /// It has a place in a queue; `claim` tells when it is its turn.
    Wait(Ticket),
    /// It may not.
    Refuse(Refusal),
}

/// What `claim` says.
#[derive(Debug)]
pub enum Claim {
    /// It is its turn.
    Permit(Permit),
    /// Not yet.
    Waiting,
    /// Its wait is over without a turn.
    Refused(Refusal),
    /// No connection of its group could be had.
    Unconnected,
}

/// The limits of one gate at work.
#[derive(Debug)]
pub struct Limiter {}

impl Limiter {
    /// A limiter at rest. `seed` feeds the jitter.
    #[must_use]
    pub fn new(_policy: Policy, _seed: u64, _now: Moment) -> Self {
        todo!()
    }
    /// The key table, which answers without the limiter's lock.
    #[must_use]
    pub fn keys(&self) -> &Arc<Keys> {
        todo!()
    }
    /// A call is at the door.
    pub fn arrive(&mut self, _call: &Arrival<'_>, _now: Moment) -> Verdict {
        todo!()
    }
    /// Lets go whoever's turn has come. Spurious calls do nothing.
    pub fn advance(&mut self, _now: Moment) {
        todo!()
    }
    /// A waiting call whose answer may have changed: wake it to `claim`. Drain after every operation.
    pub fn next_event(&mut self) -> Option<Ticket> {
        todo!()
    }
    /// When to `advance` if nothing else happens.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Moment> {
        todo!()
    }
    /// Takes the verdict of a waiting call.
    pub fn claim(&mut self, _ticket: Ticket, _now: Moment) -> Claim {
        todo!()
    }
    /// The caller hung up while waiting. Idempotent.
    pub fn leave(&mut self, _ticket: Ticket, _now: Moment) {
        todo!()
    }
    /// `bytes` more of a waiting call's body are held; refuses past the limit (the call has then left).
    ///
    /// # Errors
    /// The refusal, with reason `BytesFull`.
    pub fn hold_bytes(&mut self, _ticket: Ticket, _bytes: usize, _now: Moment) -> Result<(), Refusal> {
        todo!()
    }
    /// The call will not be sent: everything goes back.
    pub fn retract(&mut self, _permit: Permit, _now: Moment) {
        todo!()
    }
    /// The call found no connection: everything but the room goes back, and it waits again at the head of its queue.
    pub fn requeue(&mut self, _permit: Permit, _now: Moment) -> Ticket {
        todo!()
    }
    /// The outcome of a call. `key` replaces the receipt's (a name that was only known from the body); `name` is called when it starts to fail.
    pub fn finish(
        &mut self,
        _receipt: Receipt,
        _answer: Answer,
        _key: Option<Key>,
        _name: &dyn Fn() -> String,
        _now: Moment,
    ) {
        todo!()
    }
    /// The end of a body.
    pub fn release(&mut self, _slot: Slot, _now: Moment) {
        todo!()
    }
    /// Room on the connections of `group` came or went. Starts at zero; exempt calls need none.
    pub fn add_room(&mut self, _group: Group, _change: i64, _now: Moment) {
        todo!()
    }
    /// Calls of `group` that wait for nothing but room.
    #[must_use]
    pub fn wants_room(&self, _group: Group) -> usize {
        todo!()
    }
    /// A dial failed: everyone who waits for `group` gets `Claim::Unconnected`.
    pub fn fail_group(&mut self, _group: Group, _now: Moment) {
        todo!()
    }
    /// New limits. Buckets keep their level, waiters their place.
    pub fn reconfigure(&mut self, _policy: Policy, _now: Moment) {
        todo!()
    }
}
