//! The operations for an operator in an emergency: forget failing keys, admit every call for a
//! while, and preview what would happen to a call.

use super::{
    Arrival, AtKey, KeyState, Limiter, Position, Reason, Refusal, State, Sweep, Ticket, Verdict, WaiterIndex,
    WaiterWalk,
};
use crate::moment::Moment;

/// A preview: what would happen to a call that arrived now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preview {
    /// It would leave at once.
    Goes,
    /// It would wait for this reason, at least until this moment.
    Waits {
        /// The reason for the wait.
        reason: Reason,
        /// The earliest moment at which it could leave.
        until: Moment,
    },
    /// It would be refused.
    Refused(Refusal),
}

/// A walk over all failing keys, and the place to which it has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    began: Option<Moment>,
    place: Option<Position>,
    is_over: bool,
}

// === impl Walk ===

impl Walk {
    /// True if it has been to every key.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

// === impl Limiter ===

impl Limiter {
    /// Forgets those of the next few failing keys whose names `is_meant`, and releases the calls
    /// that waited for them. Returns how many there were. Call it again until the walk is over.
    /// Keys that fail after the walk began are left alone.
    pub fn forget_some(&mut self, is_meant: &dyn Fn(&str) -> bool, walk: &mut Walk, now: Moment) -> usize {
        let now = self.catch_up(now);
        let began = *walk.began.get_or_insert(now);
        let failed_before = |name: &str, state: &KeyState| state.last_failure <= began && is_meant(name);
        let (meant, place) = self.table.next_meant(walk.place, &failed_before);
        (walk.place, walk.is_over) = (place, place.is_none());
        for key in &meant {
            self.table.forget(*key, None);
            self.work.dirty_keys.push(*key);
        }
        self.dispatch(now);
        meant.len()
    }

    /// Does the same to the end at once: for simulations and tests, because the time it takes grows
    /// with the number of keys.
    pub fn forget(&mut self, is_meant: &dyn Fn(&str) -> bool, now: Moment) -> usize {
        let (mut walk, mut forgotten) = (Walk::default(), 0);
        while !walk.is_over() {
            forgotten += self.forget_some(is_meant, &mut walk, now);
        }
        forgotten
    }

    /// True if keys are still there that no longer fail, or that are too many: `advance` forgets a
    /// few of them.
    pub fn has_expired_keys(&self, now: Moment) -> bool {
        self.table.has_expired(self.now.max(now))
    }

    /// Switches the bypass: while it is on, every call leaves at once and spends nothing, and
    /// waiting calls are released. Buckets fill and keys are remembered as usual, so that all
    /// limits hold again from the moment it is off.
    pub fn set_bypass(&mut self, on: bool, now: Moment) {
        let now = self.catch_up(now);
        self.bypassed = on;
        self.is_unusual = on || self.policy.enforces_per_key();
        if on {
            self.work.begin_sweep(Sweep::Release(WaiterWalk::over(&self.waiting.waiters)));
            self.dispatch_turns(now);
        }
    }

    /// True while every call is admitted without limits.
    pub fn is_bypassed(&self) -> bool {
        self.bypassed
    }

    /// Returns what would happen to a call that arrived now. The call arrives and leaves again
    /// within this moment, and nothing is spent.
    pub fn preview(&mut self, arrival: &Arrival<'_>, now: Moment) -> Preview {
        let now = self.catch_up(now);
        // A call that does not come takes no token for the want of which another would be refused.
        let expired_holds = std::mem::take(&mut self.work.expired_holds);
        let object = arrival.key.map_or(0, |key| self.counted_as(&key, arrival));
        let full_at = self.objects.full_at(object);
        self.work.supposes = true;
        let preview = match self.arrive(arrival, now) {
            Verdict::Admit(permit) => {
                self.retract(permit, now);
                Preview::Goes
            }
            Verdict::Refuse(refusal) => Preview::Refused(refusal),
            Verdict::Wait(ticket) => self.preview_wait(ticket, now),
        };
        self.work.supposes = false;
        self.work.expired_holds.extend(expired_holds);
        self.objects.restore(object, full_at);
        preview
    }

    fn preview_wait(&mut self, ticket: Ticket, now: Moment) -> Preview {
        let Some(waiter) = self.waiting.find(ticket) else { return Preview::Goes };
        let (call, held_for, retry) = (waiter.call, waiter.held_for, waiter.key_grant.trial != 0);
        let reserved = waiter.key_grant.reserved;
        let stopped = if let State::Queued(queue) = waiter.state { Some(self.scheduler.stopped(queue)) } else { None };
        self.leave(ticket, now);
        if let (None, Some(reason)) = (stopped, held_for) {
            let state = call.key.and_then(|key| self.keys().view(&key, now)).map(|view| view.state);
            let token_at = state.and_then(|state| self.token_at(&call, &state, reserved, now));
            let until = state.map_or(now, |state| AtKey::failing(state, false, false, token_at, now).earliest);
            return Preview::Waits { reason, until };
        }
        let (id, needs) = self.queue_of(&call, retry, now);
        let min_wait = self.scheduler.min_wait(&id, &needs, &self.resources, now);
        Preview::Waits { reason: stopped.unwrap_or(min_wait.reason), until: min_wait.at }
    }

    /// Releases a waiting call as if it were exempt.
    pub(super) fn release_as_exempt(&mut self, index: WaiterIndex, now: Moment) {
        self.withdraw(index);
        let mut grant = self.exempt_grant();
        if let Some(waiter) = self.waiting.get(index) {
            grant.waited = waiter.held_for.map(|reason| (reason, now - waiter.call.arrived));
        }
        self.conclude(index, State::Granted(Box::new(grant)));
    }
}
