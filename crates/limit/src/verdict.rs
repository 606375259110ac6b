//! Arrivals, and what the limiter returns for them: verdicts, tickets and claims.

use std::fmt;
use std::time::Duration;

use super::{ClassId, Permit, Refusal, WaiterIndex};
use crate::key::{Group, Key};
use crate::quota::{QuotaHint, ResourceId};

/// A flow: the calls of a class take turns by flow.
#[derive(Clone, Copy, derive_more::Debug)]
#[debug("{name}")]
pub struct Flow<'a> {
    /// Its identity.
    pub id: u64,
    /// Its readable name. It is rendered only if a call of it has to wait.
    pub name: &'a dyn fmt::Display,
}

/// An arriving call.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its class.
    pub class: ClassId,
    /// Its flow.
    pub flow: Flow<'a>,
    /// The key for its failures; `None` if they are not remembered.
    pub key: Option<Key>,
    /// Set if the key comes from its body. Such a call does not count for its object's pace,
    /// because bodies are read only while a key of the collection fails.
    pub key_in_body: bool,
    /// The client's credential as a salted hash, for limits per credential.
    pub credential: u64,
    /// Its quota, for pauses.
    pub quota: QuotaHint,
    /// Set if the call changes something. Such calls of a key can be made to go one at a time.
    pub write: bool,
    /// Set if the call changes nothing.
    pub reads: bool,
    /// The group of connections it will use.
    pub group: Group,
    /// Set for watches and the like: it holds no slot, and spends a token only where its class
    /// meters long-running calls or it lists first.
    pub long_running: bool,
    /// Set for a long-running call with a list at its start, for the cost of a list.
    pub lists_first: bool,
    /// Set if it is never refused on arrival, because its client would fall back to something worse
    /// instead of retrying (exec, attach, port-forward).
    pub patient: bool,
    /// The client's own deadline, counted from now.
    pub timeout: Option<Duration>,
    /// The tokens that it costs, within the bounds of its class ([`Cost`](crate::policy::Cost)).
    pub cost: u16,
}

impl<'a> Arrival<'a> {
    /// Makes a short call without key or deadline, for one token.
    #[must_use]
    pub const fn new(class: ClassId, flow: Flow<'a>) -> Self {
        Self {
            class,
            flow,
            key: None,
            key_in_body: false,
            credential: 0,
            quota: QuotaHint { holder: 0, word: ResourceId::ALL, action: 0 },
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

/// The result of [`Limiter::arrive`](crate::Limiter::arrive).
#[derive(Debug)]
pub enum Verdict {
    /// The call may leave.
    Admit(Permit),
    /// The call has to wait. An event tells when to claim its permit or refusal.
    Wait(Ticket),
    /// The call is refused.
    Refuse(Refusal),
}

/// The result of [`Limiter::claim`](crate::Limiter::claim).
#[derive(Debug)]
pub enum Claim {
    /// The call's turn has come.
    Permit(Permit),
    /// The call still waits.
    Waiting,
    /// The wait is over without a turn.
    Refused(Refusal),
    /// No connection of its group could be made, or the ticket was claimed before.
    Unconnected,
}

/// A ticket for a waiting call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(super) index: WaiterIndex,
    pub(super) generation: u32,
}
