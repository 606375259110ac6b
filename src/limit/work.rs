//! The work lists: everything that one operation leaves for the dispatch loop, or for the next
//! operation.

use std::collections::VecDeque;

use super::{KeyId, Move, STEPS, Sweep, Ticket};
use crate::moment::Moment;

/// The work that is left.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// The keys whose held calls must be reviewed; the last is next.
    pub(super) dirty_keys: Vec<KeyId>,
    /// The calls in retry queues whose `hold` ended while a retry token was there: refused as soon
    /// as there is none.
    pub(super) expired_holds: Vec<Ticket>,
    /// A reload whose waiters are on their way to their new queues.
    pub(super) moving: Option<Box<Move>>,
    /// The waiting calls whose answer has changed.
    events: VecDeque<Ticket>,
    /// The sweeps under way.
    sweeps: VecDeque<Sweep>,
    /// True if something is left to do at this moment.
    behind: bool,
    /// The steps that are left of the turn under way.
    steps: u32,
    /// The last moment at which every call that could leave had left.
    idle_since: Moment,
}

// === impl Work ===

impl Work {
    pub(super) fn new(now: Moment) -> Self {
        Self { idle_since: now, ..Self::default() }
    }

    pub(super) fn is_behind(&self) -> bool {
        self.behind
    }

    pub(super) fn idle_since(&self) -> Moment {
        self.idle_since
    }

    /// Records that every call that could leave has left.
    #[inline]
    pub(super) fn rest(&mut self, now: Moment) {
        self.idle_since = now;
    }

    /// Records that something is left to do at this moment.
    pub(super) fn fall_behind(&mut self) {
        self.behind = true;
    }

    /// Begins a turn of the dispatch loop, which has a number of steps.
    pub(super) fn begin_turn(&mut self) {
        self.steps = STEPS;
    }

    /// Ends a turn after which nothing is left to do at this moment.
    pub(super) fn end_turn(&mut self, now: Moment) {
        (self.idle_since, self.behind) = (now, false);
    }

    /// Returns true if the turn has steps left.
    pub(super) fn has_steps(&self) -> bool {
        self.steps > 0
    }

    /// Counts steps that were made.
    pub(super) fn count_steps(&mut self, made: usize) {
        self.steps = self.steps.saturating_sub(u32::try_from(made).unwrap_or(u32::MAX));
    }

    /// Records that the answer of a waiting call has changed.
    pub(super) fn announce(&mut self, ticket: Ticket) {
        self.events.push_back(ticket);
    }

    pub(super) fn next_event(&mut self) -> Option<Ticket> {
        self.events.pop_front()
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

    pub(super) fn next_sweep(&mut self) -> Option<Sweep> {
        self.sweeps.pop_front()
    }

    /// Puts a sweep back that is not over.
    pub(super) fn resume(&mut self, sweep: Sweep) {
        self.sweeps.push_front(sweep);
    }
}
