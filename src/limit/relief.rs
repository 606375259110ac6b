//! What an operator may do at night: forget failing keys, let everything through for a while, and ask what would happen to a call.

use super::{
    limiter::{Limiter, Verdict},
    table::KeyId,
    verdict::{Arrival, Reason, Refusal},
    waiter::{State, Waiter},
};
use crate::moment::Moment;

/// What would happen to a call that came now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foresight {
    /// It would go at once.
    Goes,
    /// It would wait for this, at least until then.
    Waits {
        /// What for.
        reason: Reason,
        /// Not before this moment.
        until: Moment,
    },
    /// It would be refused.
    Refused(Refusal),
}

// === impl Limiter ===

impl Limiter {
    /// Forgets every failing key whose name `is_meant`; whoever waited for one goes on. Says how many there were.
    pub fn forget(&mut self, is_meant: &dyn Fn(&str) -> bool, now: Moment) -> usize {
        let now = self.catch_up(now);
        let failing = self.keys().list(now);
        let meant: Vec<_> =
            failing.iter().filter(|(name, ..)| is_meant(name)).map(|(_, key, _)| KeyId::from(key)).collect();
        for key in &meant {
            self.table.forget(*key, None);
            self.stirred.push(*key);
        }
        self.run(now);
        meant.len()
    }

    /// While on, every call leaves at once and spends nothing, and whoever waits is let go. Buckets fill and keys are remembered as ever, so
    /// that all limits hold again from the moment it is off.
    pub fn set_bypass(&mut self, on: bool, now: Moment) {
        let now = self.catch_up(now);
        self.bypassed = on;
        if !on {
            return;
        }
        let waiting: Vec<u32> =
            self.waiters.iter().filter(|(_, waiter)| waiter.is_waiting()).map(|(index, _)| index).collect();
        for index in waiting {
            // One may be gone already: its key's trial was among them.
            if self.waiters.get(index).is_some_and(Waiter::is_waiting) {
                self.let_go(index, now);
            }
        }
        self.run(now);
    }

    /// Whether everything is let through.
    #[must_use]
    pub fn is_bypassed(&self) -> bool {
        self.bypassed
    }

    /// What would happen to a call that came now. It comes and leaves again within this moment, and nothing is spent.
    pub fn foresee(&mut self, arrival: &Arrival<'_>, now: Moment) -> Foresight {
        let now = self.catch_up(now);
        // A call that does not come takes no token for the want of which another would be refused.
        let overdue = std::mem::take(&mut self.overdue);
        let foreseen = self.come_and_go(arrival, now);
        self.overdue.extend(overdue);
        foreseen
    }

    fn come_and_go(&mut self, arrival: &Arrival<'_>, now: Moment) -> Foresight {
        let ticket = match self.arrive(arrival, now) {
            Verdict::Admit(permit) => {
                self.retract(permit, now);
                return Foresight::Goes;
            }
            Verdict::Refuse(refusal) => return Foresight::Refused(refusal),
            Verdict::Wait(ticket) => ticket,
        };
        let foreseen = self.waiters.find(ticket).map(|waiter| (waiter.call, waiter.held_for, waiter.pass.trial != 0));
        let queue = self.waiters.find(ticket).and_then(|waiter| match waiter.state {
            State::Queued(queue) => Some(queue),
            State::Granted(_) | State::Held | State::Refused(_) | State::Unconnected => None,
        });
        let stopped = queue.map(|queue| self.lanes.stopped(queue));
        self.leave(ticket, now);
        let Some((call, held_for, retry)) = foreseen else { return Foresight::Goes };
        if let (None, Some(reason)) = (stopped, held_for) {
            let ready_at = call.key.and_then(|key| self.keys().view(&key, now)).map_or(now, |view| view.state.ready_at);
            return Foresight::Waits { reason, until: ready_at };
        }
        let (id, needs) = self.queue_of(&call, retry, now);
        let certain = self.lanes.certain(&id, &needs, &self.supply, now);
        Foresight::Waits { reason: stopped.unwrap_or(certain.reason), until: certain.at }
    }

    /// A waiting call leaves as an exempt one does.
    pub(super) fn let_go(&mut self, index: u32, now: Moment) {
        self.withdraw(index, now);
        let mut grant = self.exempt_grant();
        if let Some(waiter) = self.waiters.get(index) {
            grant.waited = waiter.held_for.map(|reason| (reason, now - waiter.call.arrived));
        }
        self.conclude(index, State::Granted(Box::new(grant)));
    }
}
