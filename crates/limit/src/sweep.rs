//! Sweeps: what concerns many waiting calls at once (a pause that begins or ends, connections that
//! cannot be made, a bypass) is done a little at a time. No operation pays for all of it; what is
//! left goes on with the next ones, or with the driver's next turn.
//!
//! No promise depends on when a sweep is over. A pause holds the calls it concerns from its first
//! moment; its sweep only refuses those that cannot make it. While anything is left, a new call
//! queues behind those that wait, even where nothing stops it.

use super::{Cause, Parts, State, Step, Sweep, Waiter, WaiterIndex, WaiterWalk};
use crate::moment::Moment;

// === impl Parts ===

impl Parts {
    /// Begins a sweep over all calls that wait now.
    pub(crate) fn sweep_waiters(&mut self, sweep: impl FnOnce(WaiterWalk) -> Sweep) {
        self.work.begin_sweep(sweep(WaiterWalk::over(&self.queues.waiting.waiters)));
    }

    /// Makes one step of the sweep whose turn it is. Returns false if there is none.
    pub(crate) fn sweep(&mut self, now: Moment) -> bool {
        let Some(mut sweep) = self.work.sweeps.pop_front() else { return false };
        if self.sweep_on(&mut sweep, now) {
            self.work.sweeps.push_front(sweep);
        }
        true
    }

    /// Makes one step of a sweep. Returns true if it goes on.
    fn sweep_on(&mut self, sweep: &mut Sweep, now: Moment) -> bool {
        match sweep {
            Sweep::Unconnected(group, walk) => {
                let is_meant = |waiter: &Waiter| waiter.is_waiting() && waiter.call.demand.group == *group;
                let step = walk.step(&self.queues.waiting.waiters, is_meant);
                if let Step::At(index) = step {
                    self.withdraw(index);
                    self.conclude(index, State::Unconnected);
                }
                step != Step::Over
            }
            Sweep::Release(walk) => {
                let step = walk.step(&self.queues.waiting.waiters, Waiter::is_waiting);
                if let Step::At(index) = step {
                    self.release_as_exempt(index, now);
                }
                self.rules.is_bypassed() && step != Step::Over
            }
            Sweep::Paused { from, until } => {
                let Some(next) = self.queues.waiting.timers.waiter_after(*from, *until) else { return false };
                self.refuse_if_paused(next.1, now);
                *from = next;
                true
            }
            Sweep::Unpark { from } => {
                let Some(next) = self.queues.scheduler.unpark_after(*from) else { return false };
                *from = next;
                true
            }
        }
    }

    /// Refuses a call in a queue whose pause ends too late for it.
    fn refuse_if_paused(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.queues.waiting.get(index) else { return };
        let State::Queued(queue) = waiter.state else { return };
        let call = waiter.call;
        if let Err(cause) = self.outlook(now).pause(&call) {
            let cause = Cause { retry_at: self.outlook(now).wait_over(queue).retry_at, ..cause };
            self.refuse(index, cause, now);
        }
    }
}
