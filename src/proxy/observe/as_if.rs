//! Where a gate that only plays says what would have been.

use std::{sync::Arc, time::Duration};

use crate::{
    limit::{ClassId, Reason},
    proxy::gate_config::GateConfig,
    telemetry::meters::Decision,
};

/// Where a gate that only plays says what would have been.
#[derive(Debug)]
pub(crate) struct AsIf {
    config: Arc<GateConfig>,
    class: ClassId,
}

// === impl AsIf ===

impl AsIf {
    /// For a call of this class.
    pub(super) fn new(config: &Arc<GateConfig>, class: ClassId) -> Self {
        Self { config: Arc::clone(config), class }
    }

    /// The limiter was asked, and said this.
    pub(crate) fn decided(&self, decision: Decision) {
        self.config.meters.decided(self.class, decision);
    }

    /// The call would have left after this wait.
    pub(crate) fn waited(&self, reason: Reason, wait: Duration) {
        self.config.meters.would_have_waited(self.class, reason, wait);
    }

    /// The call would have been refused.
    pub(crate) fn refused(&self, reason: Reason) {
        self.config.meters.would_have_refused(self.class, reason);
    }
}
