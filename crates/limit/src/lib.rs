//! A rate limiter with backoff and fair queues, for clients of an API.
//!
//! [`Limiter`] decides which calls may be sent now, which wait, and which are refused. It is a value:
//! it does no I/O, reads no clock and knows no HTTP. Its *driver* passes the time in and does the
//! waiting. It is the core of tidegate, a rate-limiting proxy, and works as well inside a client:
//! `examples/kube.rs` is a `tower::Layer` for kube-rs.
//!
//! # Example
//!
//! Two calls are sent at once, and the third waits for a token:
//!
//! ```
//! use std::num::NonZeroU32;
//! use std::time::Duration;
//!
//! use tidegate_limit::key::Group;
//! use tidegate_limit::moment::Moment;
//! use tidegate_limit::outcome::{Answer, Outcome};
//! use tidegate_limit::policy::{BucketPolicy, ClassPolicy, QueuePolicy};
//! use tidegate_limit::{Arrival, Claim, ClassId, Flow, Limiter, Policy, Verdict};
//!
//! let policy = Policy {
//!     bucket: NonZeroU32::new(2).map(|burst| BucketPolicy::new(10.0, burst)),
//!     queue: QueuePolicy { max_wait: Duration::from_secs(5), max_waiting: 100, ..QueuePolicy::default() },
//!     classes: vec![ClassPolicy { name: "default".into(), ..ClassPolicy::default() }],
//!     ..Policy::default()
//! };
//! let start = Moment::ZERO;
//! let mut limiter = Limiter::new(policy, 1, start);
//! limiter.add_room(Group::Short, 100, start);
//!
//! let arrival = Arrival::new(ClassId(0), Flow { id: 0, name: &"worker" });
//! for _ in 0..2 {
//!     let Verdict::Admit(permit) = limiter.arrive(&arrival, start) else { panic!("the burst is 2") };
//!     let (request, receipt, slot) = permit.admit("GET /pods");
//!     let request = request.into_inner(); // Send it. When its response comes:
//!     let answer = Answer::new(Outcome::Success, Some(200));
//!     limiter.finish(receipt, answer, None, &|| request.to_owned(), start);
//!     limiter.release(slot, start);
//! }
//!
//! let Verdict::Wait(ticket) = limiter.arrive(&arrival, start) else { panic!("the bucket is empty") };
//! let wakeup = limiter.next_wakeup().expect("a token comes");
//! assert_eq!(wakeup, start + Duration::from_millis(100));
//! limiter.advance(wakeup);
//! assert!(matches!(limiter.claim(ticket, wakeup), Claim::Permit(_)));
//! ```
//!
//! # Words
//!
//! - A *call* is one request. Its *class* has its limits. Its *flow* is the unit of fairness within
//!   a class. Its [`Key`](key::Key) names what it acts on: failures are remembered by key.
//! - A *failing key* is one whose last call failed. The *key stage* holds its calls until the
//!   backoff is over, and then lets one pass: the *trial*. A success forgets the key.
//! - A call takes its *requirements* before it is sent: tokens of buckets, a *slot* (a place among
//!   the calls in flight) of the gate and one of its class, and room on a connection. A *pause* keeps
//!   calls waiting until a moment that the upstream named.
//! - A *queue* holds waiting calls, first come, first served. Queues with equal requirements form a
//!   *queue group*; the queue groups of a class that differ only in buckets and slots per flow or
//!   credential form a *shape group*. The *scheduler* decides whose turn it is.
//! - The *minimum wait* of a call is the time until its turn if everything goes well. A call that
//!   cannot wait so long is refused on arrival.
//! - A *shared bucket* is used by several gates. Each of them is a *member*, which requests tokens
//!   from a store and holds some.
//! - *Feedback* is the effect of an answer on its key, on pauses and on rates. A *preview* shows an
//!   operator what would happen to a call.
//!
//! # Duties of the driver
//!
//! - Time only moves forward. An earlier `now` counts as the latest one so far.
//! - Drain [`Limiter::next_event`] after each operation, under the same lock.
//! - Call [`Limiter::advance`] at the moment that [`Limiter::next_wakeup`] returns. It may be
//!   another after every operation.
//! - Call [`Limiter::claim`] for the ticket of each event, and [`Limiter::leave`] if the caller of a
//!   waiting call hangs up.
//! - Admit each [`Permit`] with its request ([`Permit::admit`]), or give it back
//!   ([`Limiter::retract`], [`Limiter::requeue`]).
//! - Settle each [`Receipt`] with one outcome: through [`Receipt::settle`] or, if that returns it,
//!   [`Limiter::finish`].
//! - Release each [`Slot`] at the end of the response's body ([`Limiter::release`]).
//! - Report each change of the room on connections, which starts at zero ([`Limiter::add_room`]).
//! - Drain [`Limiter::take_ended`] for the logs.
//! - Where buckets are shared, send the requests that [`Limiter::take_asks`] returns at the moments
//!   of `next_wakeup`, and pass the answers to [`Limiter::answered`].

// Code on the path of every call asks to be inlined, because not all builds inline much. Nothing on
// that path may panic: each exception states its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

#[macro_use]
pub mod words;

pub mod key;
pub mod keys;
pub mod limiter;
pub mod moment;
pub mod outcome;
pub mod permit;
pub mod policy;
pub mod quota;
pub mod refusal;
pub mod sketch;
pub mod verdict;

mod at_key;
mod call;
mod dropped_requests;
mod index;
mod key_stage;
mod queues;
mod refusals;
mod resources;
mod rules;

// The names of the modules, for each other and for the driver.
pub(crate) use self::at_key::AtKey;
pub(crate) use self::call::{CallFacts, Grant, KeyGrant, Mode, QueueKey, Reservation};
pub(crate) use self::dropped_requests::DroppedRequests;
pub(crate) use self::index::{Arena, GroupIndex, OfGroup, OfQueue, OfWaiter, QueueIndex, WaiterIndex};
pub(crate) use self::key_stage::{KeyAnswer, KeyStage, reserve, token_at};
pub use self::keys::Keys;
pub(crate) use self::keys::{FailingKey, KeyFailure, KeyId, KeyView, Position, Spread, Table};
pub use self::limiter::snapshot::{LongestQueues, Snapshot};
pub use self::limiter::{Limiter, Preview, Walk, snapshot};
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
pub use self::refusal::{KeyEnd, KeyState, Reason, Refusal};
pub(crate) use self::refusals::Outlook;
pub use self::resources::{
    Ask, AskId, BucketPart, Fallback, Ledger, MOST_PAUSES, PauseNotice, Questions, SharedLimits, StoreAnswer,
    StoreFailure, TokenTally, Wish,
};
pub(crate) use self::resources::{
    Block, Bucket, BucketId, Charges, Demand, Lasts, News, Origin, Owner, Pauses, Requirements, Resources, SlotShare,
    Slots, Turn, Want,
};
pub(crate) use self::rules::Rules;
pub use self::verdict::{Arrival, Claim, Flow, Ticket, Verdict};
