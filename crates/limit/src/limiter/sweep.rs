//! Sweeps: changes for many waiting calls, a few calls at a time.
//!
//! Such a change is a pause, a failed connection attempt or a bypass of all limits. No operation
//! pays for all of it: the rest follows with the next operations, or when the driver calls
//! `advance`.
//!
//! No promise depends on the end of a sweep. A pause holds the calls it concerns from its first
//! moment; its sweep only refuses those that cannot wait so long. While a sweep is under way, a new
//! call queues behind those that wait, even where nothing stops it.

use super::Parts;
use crate::moment::Moment;
use crate::{Cause, Step, Sweep, SweepNews, Waiter, WaiterIndex, WaiterState};

// === impl Parts ===

impl Parts {
    /// Begins to apply a change to all calls waiting now.
    pub(crate) fn begin_sweep(&mut self, news: SweepNews) {
        let walk = self.queues.walk();
        self.work.begin_sweep(Sweep { news, walk });
    }

    /// Applies the next change to a few more calls. Returns false if no change is being applied.
    pub(crate) fn sweep(&mut self, now: Moment) -> bool {
        let Some(mut sweep) = self.work.sweeps.pop_front() else { return false };
        let is_meant = |waiter: &Waiter| match sweep.news {
            SweepNews::Unconnected(group) => waiter.is_waiting() && waiter.call.demand.group == group,
            SweepNews::Bypass => waiter.is_waiting(),
            SweepNews::Pause => {
                matches!(waiter.state, WaiterState::Queued(_)) && self.outlook(now).pause(&waiter.call).is_err()
            }
        };
        let step = self.queues.step(&mut sweep.walk, is_meant);
        if let Step::At(index) = step {
            match sweep.news {
                SweepNews::Unconnected(_) => {
                    self.withdraw(index);
                    self.conclude(index, WaiterState::Unconnected);
                }
                SweepNews::Bypass => self.release_as_exempt(index, now),
                SweepNews::Pause => self.refuse_paused(index, now),
            }
        }
        let is_moot = sweep.news == SweepNews::Bypass && !self.rules.is_bypassed();
        if step != Step::Over && !is_moot {
            self.work.sweeps.push_front(sweep);
        }
        true
    }

    /// Refuses a queued call if a pause lasts longer than the call may wait.
    fn refuse_paused(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.queues.get(index) else { return };
        let WaiterState::Queued(queue) = waiter.state else { return };
        if let Err(cause) = self.outlook(now).pause(&waiter.call) {
            let cause = Cause { retry_at: self.outlook(now).wait_over(queue).retry_at, ..cause };
            self.refuse(index, cause, now);
        }
    }
}
