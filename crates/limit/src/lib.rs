//! The limiter core of tidegate: decides which calls may leave now, which wait, and which are refused and why.
//!
//! It is a synchronous value with no I/O and no clock: the caller passes the time in. The proxy's
//! driver passes the real time, `simulate` and the property tests a virtual one. It knows classes,
//! flows, keys and buckets by number and never what a request is. It *returns* what happened, and
//! the edges turn that into metrics and logs.
//!
//! # Words
//!
//! - A *call* is one request. Its *class* carries its limits, its *flow* is the unit of fairness
//!   within a class, and its *key* is that for which failures are remembered: one facet of an
//!   object.
//! - A *failing key* is one whose last call failed. The *key stage* holds its calls (the *held
//!   calls*) until the backoff is over and then lets one pass, the *trial*. A *key grant* is what a
//!   call got there. *Dirty keys* are those whose held calls must be reviewed; *expired holds* are
//!   calls in retry queues whose `hold` ended while a retry token was there.
//! - A call's *requirements* are what it takes when it leaves: tokens of buckets, a *slot share* of
//!   the gate and of its class, and room on a connection. Slots, buckets, rooms and pauses are the
//!   *resources*. A *refund* gives tokens back for a call that was not sent.
//! - A *queue* holds the waiting calls with one *queue key*, first come, first served. Queues with
//!   equal requirements form a *queue group*; the queue groups of a class that share everything
//!   except their own buckets and slots form a *shape group*. The *scheduler* decides whose turn it
//!   is. *Unblocked* queue groups are checked again: they got something back, or the token that
//!   they wait for now comes at another time.
//! - The *minimum wait* is the time a call must wait even if everything goes well. A call that
//!   cannot wait that long is refused on arrival.
//! - A *shared bucket* is one that other gates use too. This gate is a *member* of it and holds
//!   tokens of its own, for which it *asks* a store.
//! - *Feedback* is what an answer does to its key, to the pauses and to the rates. A *preview*
//!   tells an operator what would happen to a call.
//!
//! # Duties of the driver
//!
//! - Time only moves forward. An earlier `now` counts as the latest one so far.
//! - Drain [`Limiter::next_event`] after each operation, under the same lock.
//! - Call [`Limiter::advance`] at the moment that [`Limiter::next_wakeup`] names. It may change
//!   with every operation.
//! - Call [`Limiter::claim`] for the ticket of each event; call [`Limiter::leave`] for a caller
//!   that hung up.
//! - Every [`Permit`] is either admitted with its request ([`Permit::admit`]) or given back
//!   ([`Limiter::retract`], [`Limiter::requeue`]).
//! - Every [`Receipt`] gets exactly one outcome, through [`Receipt::settle`] or, if that returns
//!   it, [`Limiter::finish`].
//! - Every [`Slot`] is released with [`Limiter::release`] at the end of the body.
//! - [`Limiter::add_room`] reports each change of the room on connections, which starts at zero.
//! - [`Limiter::take_ended`] is drained for the logs.
//! - Where buckets are shared: at each moment that `next_wakeup` names, hand on what
//!   [`Limiter::take_asks`] returns, and bring what comes of each to [`Limiter::answered`].

// The product is built for size, which inlines almost nothing: code on the path of every call asks
// for it with `#[inline]`. Nothing on the path of a call may panic: each exception states its
// reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

#[macro_use]
pub mod words;

pub mod key;
pub mod keys;
pub mod limiter;
pub mod moment;
pub mod operator;
pub mod outcome;
pub mod permit;
pub mod policy;
pub mod refusal;
pub mod sketch;
pub mod snapshot;
pub mod verdict;

mod arrive;
mod at_key;
mod call;
mod dispatch;
mod dropped_requests;
mod feedback;
mod index;
mod key_stage;
mod parts;
mod queues;
mod refusals;
mod reload;
mod resources;
mod review;
mod rules;
mod sweep;

// Each room hands out its words here, and the others take them from here.
pub(crate) use self::at_key::AtKey;
pub(crate) use self::call::{CallFacts, Grant, KeyGrant, Mode, QueueKey, Reservation};
pub(crate) use self::dropped_requests::DroppedRequests;
pub(crate) use self::index::{Arena, GroupIndex, OfGroup, OfQueue, OfWaiter, QueueIndex, WaiterIndex};
pub(crate) use self::key_stage::{KeyAnswer, KeyStage, reserve, token_at};
pub use self::keys::Keys;
pub(crate) use self::keys::{FailingKey, FailureEffect, KeyFailure, KeyId, KeyView, Position, Spread, Table};
pub use self::limiter::Limiter;
pub use self::operator::{Preview, Walk};
pub(crate) use self::parts::Parts;
pub use self::permit::{Admitted, Permit, Receipt, Slot};
pub(crate) use self::policy::{
    Backoff, BucketPolicy, ClassPolicy, Combine, InFlight, Lane, Origins, Outage, Per, PerClass, SharedId,
    SharedPolicy, Strategy,
};
pub use self::policy::{ClassId, Policy};
pub(crate) use self::queues::{
    ClassTurns, DueWork, LOOKED_AT_ONCE, LateCall, MinWait, MoveStep, Queue, QueuePlace, Queues, STEPS, Step, Sweep,
    SweepNews, Waiter, WaiterState, Withdrawal, Work,
};
pub(crate) use self::refusal::{Cause, Why};
pub use self::refusal::{Ended, KeyState, Reason, Refusal};
pub(crate) use self::refusals::Outlook;
pub use self::resources::{Alone, Answer, Ask, Asked, Away, Ledger, Part, Questions, SharedLimits};
pub(crate) use self::resources::{
    Block, Bucket, BucketId, Charges, Demand, Lasts, News, Origin, Owner, Paused, Pauses, Requirements, Resources,
    SharedPause, SlotShare, Slots, Turn, Want,
};
pub(crate) use self::rules::Rules;
pub use self::snapshot::{LongestQueues, Snapshot};
pub use self::verdict::{Arrival, Claim, Flow, Ticket, Verdict};
