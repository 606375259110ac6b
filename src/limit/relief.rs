//! What an operator may do at night: forget failing keys, let everything through for a while, and ask what would happen to a call.

use super::{
    limiter::{Limiter, Verdict},
    order::Stand,
    sweep::{self, Sweep},
    verdict::{Arrival, KeyState, Reason, Refusal},
    waiter::State,
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

/// How far a walk over all failing keys has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    began: Option<Moment>,
    place: Option<Stand>,
    is_over: bool,
}

// === impl Walk ===

impl Walk {
    /// Whether it has been to every key.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

// === impl Limiter ===

impl Limiter {
    /// Forgets the failing keys whose names `is_meant`, of the next few; whoever waited for one goes on. Says how many there were; to be
    /// asked again until the walk is over. Keys that fail after its beginning are left alone.
    pub fn forget_some(&mut self, is_meant: &dyn Fn(&str) -> bool, walk: &mut Walk, now: Moment) -> usize {
        let now = self.catch_up(now);
        let began = *walk.began.get_or_insert(now);
        let failed_before = |name: &str, state: &KeyState| state.last_failure <= began && is_meant(name);
        let (meant, place) = self.table.next_meant(walk.place, &failed_before);
        (walk.place, walk.is_over) = (place, place.is_none());
        for key in &meant {
            self.table.forget(*key, None);
            self.stirred.push(*key);
        }
        self.run(now);
        meant.len()
    }

    /// The same to the end at once: for simulations and tests, since it takes as long as there are keys.
    pub fn forget(&mut self, is_meant: &dyn Fn(&str) -> bool, now: Moment) -> usize {
        let (mut walk, mut forgotten) = (Walk::default(), 0);
        while !walk.is_over() {
            forgotten += self.forget_some(is_meant, &mut walk, now);
        }
        forgotten
    }

    /// Whether keys are still there that no longer fail, or are too many: `advance` forgets a few of them.
    #[must_use]
    pub fn has_expired_keys(&self, now: Moment) -> bool {
        self.table.has_expired(self.now.max(now))
    }

    /// While on, every call leaves at once and spends nothing, and whoever waits is let go. Buckets fill and keys are remembered as ever, so
    /// that all limits hold again from the moment it is off.
    pub fn set_bypass(&mut self, on: bool, now: Moment) {
        let now = self.catch_up(now);
        self.bypassed = on;
        if on {
            self.begin_sweep(Sweep::LetGo(sweep::Walk::over(&self.waiters)));
            self.run_turns(now);
        }
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
