//! The proxy: a listener, the request path, and the driver of the limiter between them.
//!
//! A [`Gate`] is one of each with one upstream behind. `stack` has the path in one place, `admission` the waiting, `driver` the limiter at
//! work; `guard`, `observe` and `respond` are the layers around.

mod admission;
mod body;
mod coalesce;
#[cfg(test)]
mod conservation;
mod driver;
mod failure;
mod forward;
mod gate;
mod gauges;
mod guard;
mod listener;
mod observe;
mod pauses;
mod respond;
mod shadow;
mod stack;
mod tally;
mod terms;
mod tunnel;
mod view;

pub use self::{
    gate::{Gate, GateError, Listen, Options},
    respond::RetryAfter,
};
