//! The work lists: everything that one operation leaves for the dispatch loop, or for the next
//! operation.

use std::collections::VecDeque;

use super::{KeyId, Sweep, Ticket};
use crate::moment::Moment;

/// The work that is left.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The keys whose held calls must be reviewed; the last is next.
    pub(super) dirty_keys: Vec<KeyId>,
    /// The calls in retry queues whose `hold` ended while a retry token was there: refused as soon
    /// as there is none.
    pub(super) expired_holds: Vec<Ticket>,
    /// The waiting calls whose answer has changed.
    pub(super) events: VecDeque<Ticket>,
    /// The sweeps under way.
    pub(super) sweeps: VecDeque<Sweep>,
    /// True if something is left to do at this moment.
    pub(super) behind: bool,
    /// The steps that are left of the turn under way.
    pub(super) steps: u32,
    /// True while a call arrives that does not come: nothing is remembered of it.
    pub(super) supposes: bool,
    /// The last moment at which every call that could leave had left.
    pub(super) idle_since: Moment,
}

// === impl Work ===

impl Work {
    /// Counts steps that were made.
    pub(super) fn count_steps(&mut self, made: usize) {
        self.steps = self.steps.saturating_sub(u32::try_from(made).unwrap_or(u32::MAX));
    }

    /// Begins a sweep. One of the same kind that is under way begins again.
    pub(super) fn begin_sweep(&mut self, sweep: Sweep) {
        let place = self.sweeps.iter().position(|other| other.is_like(&sweep));
        let before = place.and_then(|place| self.sweeps.remove(place));
        let sweep = match (sweep, before) {
            (Sweep::Paused { from, until }, Some(Sweep::Paused { until: before, .. })) => {
                Sweep::Paused { from, until: until.max(before) }
            }
            (sweep, _) => sweep,
        };
        self.sweeps.push_back(sweep);
        self.behind = true;
    }
}
