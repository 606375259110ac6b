//! Where a gate that only plays says what would have been.

use std::{sync::Arc, time::Duration};

use crate::{
    limit::{ClassId, Reason},
    proxy::terms::Terms,
    telemetry::meters::Decision,
};

/// Where a gate that only plays says what would have been.
#[derive(Debug)]
pub(crate) struct AsIf {
    terms: Arc<Terms>,
    class: ClassId,
}

// === impl AsIf ===

impl AsIf {
    /// For a call of this class.
    pub(super) fn new(terms: &Arc<Terms>, class: ClassId) -> Self {
        Self { terms: Arc::clone(terms), class }
    }

    /// The limiter was asked, and said this.
    pub(crate) fn decided(&self, decision: Decision) {
        self.terms.meters.decided(self.class, decision);
    }

    /// The call would have left after this wait.
    pub(crate) fn waited(&self, reason: Reason, wait: Duration) {
        self.terms.meters.would_have_waited(self.class, reason, wait);
    }

    /// The call would have been refused.
    pub(crate) fn refused(&self, reason: Reason) {
        self.terms.meters.would_have_refused(self.class, reason);
    }
}
