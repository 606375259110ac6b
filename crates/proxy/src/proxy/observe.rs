//! Observes every call: counts it, measures its times, and writes its line in the call log.

mod context;
mod in_flight;

pub(crate) use self::context::{CallContext, WriteAnswer};
pub(crate) use self::in_flight::{CallHold, InFlight};
