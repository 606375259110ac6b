//! Arriving calls, and what the limiter returns for them: verdicts, tickets and claims.

use std::fmt;
use std::time::Duration;

use super::{ClassId, Permit, Refusal, WaiterIndex};
use crate::key::{Group, Key};
use crate::quota::{QuotaHint, ResourceId};

/// The flow of a call: the flows of a class take turns, so that none starves another.
#[derive(Clone, Copy, derive_more::Debug)]
#[debug("{name}")]
pub struct Flow<'a> {
    /// The flow's number; calls with equal numbers share a turn.
    pub id: u64,
    /// The flow's readable name. It is rendered only if one of its calls has to wait.
    pub name: &'a dyn fmt::Display,
}

/// An arriving call.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The class of the call.
    pub class: ClassId,
    /// The flow of the call.
    pub flow: Flow<'a>,
    /// The key for remembering failures of the call; `None` if they are not remembered.
    pub key: Option<Key>,
    /// Set if the key comes from the call's body. Such a call does not count as a call of its
    /// object, because bodies are read only while a key of the collection fails.
    pub key_in_body: bool,
    /// The client's credential as a salted hash, for limits per credential.
    pub credential: u64,
    /// The upstream quota the call will probably be charged to, for pauses.
    pub quota: QuotaHint,
    /// Set if the call changes something. Such calls of a key can be made to go one at a time.
    pub write: bool,
    /// Set if the call changes nothing.
    pub reads: bool,
    /// The group of upstream connections the call will use.
    pub group: Group,
    /// Set for watches and the like: such a call counts in no limit on calls in flight, and takes a
    /// token only where its class meters long-running calls or it lists first.
    pub long_running: bool,
    /// Set for a watch beginning with a list, which costs what a list costs.
    pub lists_first: bool,
    /// Set if the call is never refused on arrival, because its client would fall back to something
    /// worse instead of retrying (exec, attach, port-forward).
    pub patient: bool,
    /// The time until the client's own deadline.
    pub timeout: Option<Duration>,
    /// The tokens the call costs, before the bounds of its class
    /// ([`Cost`](crate::policy::Cost)).
    pub cost: u16,
}

impl<'a> Arrival<'a> {
    /// Makes a short call without key or deadline; it costs one token.
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
    /// The call may be sent.
    Admit(Permit),
    /// The call has to wait. An event tells when to claim its result.
    Wait(Ticket),
    /// The call is refused.
    Refuse(Refusal),
}

/// The result of [`Limiter::claim`](crate::Limiter::claim).
#[derive(Debug)]
pub enum Claim {
    /// The call may be sent now.
    Permit(Permit),
    /// The call still waits.
    Waiting,
    /// The call is refused after its wait.
    Refused(Refusal),
    /// No connection could be made for the call, or the ticket was claimed before.
    Unconnected,
}

/// A handle of a waiting call, to claim the result of its wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(super) index: WaiterIndex,
    pub(super) generation: u32,
}
