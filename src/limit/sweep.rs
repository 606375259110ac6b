//! What concerns many waiting calls at once is done a little at a time: a pause that begins or
//! ends, connections that cannot be made, a bypass, a reload. No operation pays for all of it, and
//! what is left goes on with the next ones, or with the driver's next turn.
//!
//! No promise depends on when a sweep is over. A pause holds the calls it concerns from its first
//! moment; its sweep only tells those that cannot make it. While anything is left, a new call gets
//! in line behind those that wait, even where nothing stops it.

use super::{
    limiter::Limiter,
    queue::{
        scheduler::Scheduler,
        waiter::{State, Waiter},
        walk::{LOOKED_AT_ONCE, Step, Sweep, WaiterWalk},
    },
};
use crate::{api::Group, moment::Moment};

// === impl Limiter ===

impl Limiter {
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

    /// Whether something is left to be done that no moment is awaited for: `advance` does a little
    /// of it.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// One step of the sweep whose turn it is; says whether there was one.
    pub(super) fn sweep(&mut self, now: Moment) -> bool {
        let Some(sweep) = self.sweeps.pop_front() else { return false };
        let next = match sweep {
            Sweep::Strand(group, walk) => self.strand(group, walk, now),
            Sweep::LetGo(walk) => self.let_some_go(walk, now),
            Sweep::Paused { from, until } => self.tell_of_pause(from, until, now),
            Sweep::Unpark { from } => self.unpark_next(from),
        };
        if let Some(next) = next {
            self.sweeps.push_front(next);
        }
        true
    }

    fn strand(&mut self, group: Group, mut walk: WaiterWalk, now: Moment) -> Option<Sweep> {
        match walk.step(&self.waiters, |waiter| waiter.is_waiting() && waiter.call.group == group) {
            Step::Over => return None,
            Step::On => {}
            Step::At(index) => {
                self.withdraw(index, now);
                self.conclude(index, State::Unconnected);
            }
        }
        Some(Sweep::Strand(group, walk))
    }

    fn let_some_go(&mut self, mut walk: WaiterWalk, now: Moment) -> Option<Sweep> {
        match walk.step(&self.waiters, Waiter::is_waiting) {
            Step::Over => return None,
            Step::On => {}
            Step::At(index) => self.let_go(index, now),
        }
        self.bypassed.then_some(Sweep::LetGo(walk))
    }

    fn tell_of_pause(&mut self, from: (Moment, u32), until: Moment, now: Moment) -> Option<Sweep> {
        let from = self.timers.waiter_after(from, until)?;
        self.refuse_if_paused_in_vain(from.1, now);
        Some(Sweep::Paused { from, until })
    }

    fn unpark_next(&mut self, from: (Moment, u32)) -> Option<Sweep> {
        let from = self.scheduler.unpark_after(from)?;
        Some(Sweep::Unpark { from })
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Looks again at a few queue groups whose own token may be there now. Returns false if there
    /// were none.
    pub(super) fn unpark_due(&mut self, now: Moment) -> bool {
        for looked_at in 0..LOOKED_AT_ONCE {
            let Some(&(_, queue_group)) = self.parked.first().filter(|(until, _)| *until <= now) else {
                return looked_at > 0;
            };
            self.unpark(queue_group);
        }
        true
    }

    /// The next of those set aside is looked at again, whatever stopped it.
    fn unpark_after(&mut self, from: (Moment, u32)) -> Option<(Moment, u32)> {
        let next = *self.parked.range((std::ops::Bound::Excluded(from), std::ops::Bound::Unbounded)).next()?;
        self.unpark(next.1);
        Some(next)
    }
}
