//! The limiter, connections and counts that the calls of a gate share.

use std::sync::{Arc, Mutex};

use super::gate_config::GateConfig;
use super::{driver, respond, revalidate, tally};
use crate::Current;
use crate::api::Signal;
use crate::classify::Salt;
use crate::clients::Clients;
use crate::limit::{ClassId, Snapshot};
use crate::upstream::Upstream;

/// The limiter, connections and counts that the calls of a gate share.
pub(crate) struct GateParts {
    pub(crate) config: Arc<Current<GateConfig>>,
    pub(crate) tally: Arc<tally::Tally>,
    pub(crate) responder: Arc<respond::Responder>,
    pub(crate) driver: driver::Driver,
    pub(crate) upstream: Upstream,
    /// The stored answers: the upstream is asked whether they are still current.
    pub(crate) answers: revalidate::Answers,
    /// The rate-limit signal behind the last pause.
    pub(crate) last_signal: Mutex<Option<Signal>>,
    /// Authenticates callers, if the gate requires it. Only a restart changes it.
    pub(crate) clients: Option<Arc<Clients>>,
    pub(crate) hasher: Salt,
    /// True if the whole gate is in shadow mode: its limiter decides about every call, but each is
    /// sent at once. Only a restart changes it.
    pub(crate) shadow: bool,
}

// === impl GateParts ===

impl GateParts {
    /// Returns a snapshot of the limiter, changed for display: calls in shadow mode do not count as
    /// waiting, and a class in shadow mode has the levels of its own limiter.
    pub(crate) fn shown(&self, now: Snapshot) -> Snapshot {
        let config = self.config.get();
        if !config.has_shadow {
            return now;
        }
        let played = self.driver.look_as(true, |limiter, now| limiter.overview(now)).of_shadow();
        let now = if self.shadow { now.of_shadow() } else { now };
        let class = |((id, class), played)| if config.is_in_shadow(ClassId(id)) { played } else { class };
        let classes = (0..).zip(now.classes).zip(played.classes).map(class).collect();
        Snapshot { classes, ..now }
    }
}
