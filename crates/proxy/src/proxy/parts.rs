//! The parts of a gate, shared by its calls.

use std::sync::{Arc, Mutex};

use super::{driver, gate_config, respond, revalidate, tally};
use crate::api::Signal;
use crate::classify::Salt;
use crate::clients::Clients;
use crate::upstream::Upstream;

/// The parts of a gate, shared by its calls.
pub(crate) struct GateParts {
    pub(crate) config: Arc<gate_config::CurrentConfig>,
    pub(crate) tally: Arc<tally::Tally>,
    pub(crate) responder: Arc<respond::Responder>,
    pub(crate) driver: driver::Driver,
    pub(crate) upstream: Upstream,
    /// The kept answers.
    pub(crate) answers: revalidate::Answers,
    /// The signal for the last pause.
    pub(crate) last_signal: Mutex<Option<Signal>>,
    /// Identifies callers, where the gate asks. Only a restart changes it.
    pub(crate) clients: Option<Arc<Clients>>,
    pub(crate) hasher: Salt,
    /// True if every call is decided and then let through. Only a restart changes it.
    pub(crate) shadow: bool,
}
