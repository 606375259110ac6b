//! The inputs of the limiter and its answers: arrivals, verdicts, tickets and claims.

use std::fmt;
use std::time::Duration;

use super::{ClassId, Permit, Refusal, WaiterIndex};
use crate::key::{Group, Key};

/// The unit between which a class is fair.
#[derive(Clone, Copy, derive_more::Debug)]
#[debug("{name}")]
pub struct Flow<'a> {
    /// Its identity.
    pub id: u64,
    /// Its readable name, stored only if a call of it has to wait.
    pub name: &'a dyn fmt::Display,
}

/// A call on arrival, as far as the limiter needs to know it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its class.
    pub class: ClassId,
    /// Its flow.
    pub flow: Flow<'a>,
    /// The key for which failures are remembered; `None` if there is none (a `create` whose name is
    /// not known, strategy off).
    pub key: Option<Key>,
    /// True if only its body tells the key. It is read only while a key of the collection fails, so
    /// that such calls are not counted: else one object would have a pace now and then.
    pub key_in_body: bool,
    /// The client's credential as a salted hash; read only where a bucket, a slot or a pause is
    /// split by credential.
    pub credential: u64,
    /// True if the call changes something: if the gate says so, such calls of a key go one at a
    /// time.
    pub write: bool,
    /// True if the call changes nothing.
    pub reads: bool,
    /// The group of connections it will use.
    pub group: Group,
    /// It holds no slot, and spends a token only where its class meters opening or it lists first.
    pub long_running: bool,
    /// A long-running call that begins with all there is: opening it costs the tokens of a list.
    pub lists_first: bool,
    /// It is never refused on arrival (exec, attach, port-forward: their clients fall back instead
    /// of retrying).
    pub patient: bool,
    /// The client's own deadline, counted from now.
    pub timeout: Option<Duration>,
    /// The tokens that it costs, within the bounds of its class ([`Cost`](super::policy::Cost)).
    pub cost: u16,
}

impl<'a> Arrival<'a> {
    /// Returns a short call without a key that costs one token and waits as long as its class lets
    /// it.
    #[must_use]
    pub const fn new(class: ClassId, flow: Flow<'a>) -> Self {
        Self {
            class,
            flow,
            key: None,
            key_in_body: false,
            credential: 0,
            write: false,
            reads: false,
            group: Group::Short,
            long_running: false,
            lists_first: false,
            patient: false,
            timeout: None,
            cost: 1,
        }
    }
}

/// The answer of `Limiter::arrive`.
#[derive(Debug)]
pub enum Verdict {
    /// The call may leave.
    Admit(Permit),
    /// The call has to wait; `claim` answers when its turn has come.
    Wait(Ticket),
    /// The call is refused.
    Refuse(Refusal),
}

/// The answer of `Limiter::claim`.
#[derive(Debug)]
pub enum Claim {
    /// The call's turn has come.
    Permit(Permit),
    /// The call still waits.
    Waiting,
    /// The wait is over without a turn.
    Refused(Refusal),
    /// No connection of its group could be made (or the ticket was claimed before).
    Unconnected,
}

/// A call waiting in the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(super) index: WaiterIndex,
    pub(super) generation: u32,
}
