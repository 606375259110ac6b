//! The limiter: what may go, what waits, what is refused, and why.
//!
//! A synchronous value with no I/O and no clock. The proxy's driver gives it the real time, `simulate` and the property tests a virtual
//! one. It knows classes, flows, keys and buckets by number and never what a request is; it *returns* what happened, and the edges turn
//! that into metrics and logs.

// The product is built to be small, which inlines next to nothing: what every call passes through asks for it by `#[inline]`.
// In the path of a call nothing may panic: what could is written down with its reason.
#![cfg_attr(not(test), warn(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unreachable))]

pub mod keys;
pub mod limiter;
pub mod permit;
pub mod policy;
pub mod relief;
pub mod snapshot;
pub mod verdict;

mod adaptive;
mod ahead;
mod backoff;
mod brim;
mod bucket;
mod buckets;
mod door;
mod doors;
mod drops;
mod due;
mod heed;
mod lanes;
mod needs;
mod order;
mod outcome;
mod pauses;
mod queue;
mod reload;
mod run;
mod slots;
mod stage;
mod supply;
mod sweep;
mod table;
mod timers;
mod turns;
mod waiter;

pub use self::{
    keys::Keys,
    limiter::{Claim, Limiter, Verdict},
    permit::{Admitted, Permit, Receipt, Slot, Ticket},
    policy::Policy,
    relief::{Foresight, Walk},
    snapshot::{LongestQueues, Snapshot},
    verdict::{Arrival, ClassId, Ended, Flow, KeyState, Reason, Refusal},
};
