//! Observes every call: counts it, takes its times, and writes its line in the log of calls.

mod context;
mod in_flight;

pub(crate) use self::context::{CallContext, Departure};
pub(crate) use self::in_flight::{CallHold, InFlight};
