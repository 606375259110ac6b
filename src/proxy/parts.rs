//! The parts of a gate that its calls share.

use std::{hash::RandomState, sync::Arc};

use super::{
    coalesce::Coalescer, driver::Driver, gate_config::CurrentConfig, pauses::LastSignal, respond::Responder,
    tally::Tally,
};
use crate::upstream::Upstream;

/// The parts of a gate that its calls share.
#[derive(Debug)]
pub(crate) struct GateParts {
    pub(crate) config: Arc<CurrentConfig>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) responder: Arc<Responder>,
    pub(crate) driver: Driver,
    pub(crate) upstream: Upstream,
    /// Makes identical calls that wait one, if the configuration says so.
    pub(crate) coalescer: Coalescer,
    /// The signal that asked for the last pause.
    pub(crate) last_signal: Arc<LastSignal>,
    pub(crate) hasher: RandomState,
    /// True if every call is decided, and every call is let through. Only a restart changes it.
    pub(crate) shadow: bool,
}
