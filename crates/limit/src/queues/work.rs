//! The work left by an operation for the dispatch loop, or for the next operation.

use std::collections::VecDeque;

use super::Sweep;
use crate::moment::Moment;
use crate::{KeyId, Ticket};

/// The work left to do.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The keys whose held calls must be reviewed; the last is next.
    pub(crate) dirty_keys: Vec<KeyId>,
    /// The queued retries past their `hold`, while a retry token is there. They are refused
    /// as soon as there is none.
    pub(crate) expired_holds: Vec<Ticket>,
    /// The waiting calls with a verdict to claim.
    pub(crate) events: VecDeque<Ticket>,
    pub(crate) sweeps: VecDeque<Sweep>,
    /// Set if something is left to do at this moment.
    pub(crate) behind: bool,
    /// The steps left of the turn under way.
    pub(crate) steps: usize,
    /// Set while a preview's call arrives: nothing is remembered of it.
    pub(crate) supposes: bool,
    /// The last moment at which every call that could leave had left.
    pub(crate) idle_since: Moment,
}

// === impl Work ===

impl Work {
    /// Counts steps.
    pub(crate) fn count_steps(&mut self, made: usize) {
        self.steps = self.steps.saturating_sub(made);
    }

    /// Begins a sweep. It replaces a sweep with the same change.
    pub(crate) fn begin_sweep(&mut self, sweep: Sweep) {
        self.sweeps.retain(|other| other.news != sweep.news);
        self.sweeps.push_back(sweep);
        self.behind = true;
    }
}
