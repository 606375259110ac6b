//! What is told of the limiter: in metrics what the door said, in the log a line when a key begins to fail and when it does not any more.

use super::{Driver, Entry};
use crate::{
    api::Answer,
    limit::{Ended, refusal::Why},
    telemetry::meters::Decision,
};

// === impl Driver ===

impl Driver {
    pub(super) fn tell_began(&self, key: &str, answer: Answer) {
        tracing::info!(gate = &*self.shared.gate, key, status = answer.status, "a key backs off");
    }

    pub(super) fn tell_ended(&self, ended: &Ended) {
        let (gate, key) = (&*self.shared.gate, &*ended.name);
        match ended.why {
            Why::Crowded => tracing::warn!(gate, key, "a key is forgotten: more fail than backoff.max_keys"),
            Why::Gone => tracing::info!(gate, key, "a key is forgotten: its object is gone"),
            Why::Old => tracing::info!(gate, key, "a key is forgotten: it has not failed for backoff.forget_after"),
            Why::Recovered => tracing::info!(gate, key, "a key has recovered"),
        }
    }
}

// === impl Entry ===

impl Entry {
    /// What the door said, in a word.
    pub(crate) const fn decision(&self) -> Decision {
        match self {
            Self::Go(_) => Decision::Go,
            Self::Wait(_) => Decision::Wait,
            Self::Refused(_) => Decision::Refuse,
        }
    }
}
