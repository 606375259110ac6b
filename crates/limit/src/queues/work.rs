//! The tasks left by an operation for the dispatch loop, or for the next operation.

use std::collections::VecDeque;

use super::Sweep;
use crate::moment::Moment;
use crate::{KeyId, Ticket};

/// The tasks left to do after an operation.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The keys with waiting calls to review; the last key is reviewed next.
    pub(crate) dirty_keys: Vec<KeyId>,
    /// The retries waiting in a queue for longer than `hold`, while a retry token is available.
    /// They are refused as soon as there is none.
    pub(crate) expired_holds: Vec<Ticket>,
    /// The waiting calls with a result to claim.
    pub(crate) events: VecDeque<Ticket>,
    pub(crate) sweeps: VecDeque<Sweep>,
    /// Set if some work due at this moment was postponed.
    pub(crate) behind: bool,
    /// The number of steps the dispatch under way may still make.
    pub(crate) steps: usize,
    /// Set while a preview is made: nothing is remembered of its call.
    pub(crate) supposes: bool,
    /// The last moment without a waiting call ready to be sent.
    pub(crate) idle_since: Moment,
}

// === impl Work ===

impl Work {
    /// Counts this many steps of the dispatch as made.
    pub(crate) fn count_steps(&mut self, made: usize) {
        self.steps = self.steps.saturating_sub(made);
    }

    /// Begins to apply a change to the waiting calls. It replaces one of the same kind.
    pub(crate) fn begin_sweep(&mut self, sweep: Sweep) {
        self.sweeps.retain(|other| other.news != sweep.news);
        self.sweeps.push_back(sweep);
        self.behind = true;
    }
}
