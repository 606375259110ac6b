//! Orders of an operator: to forget failing keys, and to preview what would happen to a call.

use super::{Limiter, Parts};
use crate::moment::Moment;
use crate::{Arrival, AtKey, KeyGrant, KeyState, Position, Reason, Refusal, Ticket, Verdict, WaiterState, token_at};

/// The preview of a call: what would happen if it arrived now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preview {
    /// The call would be sent at once.
    Goes,
    /// The call would wait.
    Waits {
        /// The reason for the wait.
        reason: Reason,
        /// The earliest moment for the call to be sent.
        until: Moment,
    },
    /// The call would be refused.
    Refused(Refusal),
}

/// The progress of a walk over all failing keys, a few at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    began: Option<Moment>,
    place: Option<Position>,
    is_over: bool,
}

/// The state to restore after a preview, because a preview must change nothing.
#[derive(Debug)]
pub(crate) struct Supposition {
    object: u64,
    full_at: Option<Moment>,
}

// === impl Walk ===

impl Walk {
    /// Returns true if the walk has visited every key.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

// === impl Limiter ===

impl Limiter {
    /// Forgets failing keys with a name accepted by `is_meant`, among the next few keys, and
    /// releases their calls.
    ///
    /// Returns how many were forgotten. Call it again until the walk is over. Keys that fail after
    /// the walk began stay.
    pub fn forget_some(&mut self, is_meant: &dyn Fn(&str) -> bool, walk: &mut Walk, now: Moment) -> usize {
        self.operate(now, |parts, now| parts.forget_some(is_meant, walk, now))
    }

    /// Forgets every failing key with a name that `is_meant` accepts. It takes time in
    /// proportion to the number of keys, so it is meant for simulations and tests.
    pub fn forget(&mut self, is_meant: &dyn Fn(&str) -> bool, now: Moment) -> usize {
        let mut walk = Walk::default();
        let mut forgotten = 0;
        while !walk.is_over() {
            forgotten += self.forget_some(is_meant, &mut walk, now);
        }
        forgotten
    }

    /// Returns what would happen to a call if it arrived now. Nothing is spent or remembered.
    pub fn preview(&mut self, arrival: &Arrival<'_>, now: Moment) -> Preview {
        let now = self.catch_up(now);
        let supposition = self.parts.suppose(arrival);
        let preview = match self.arrive(arrival, now) {
            Verdict::Admit(permit) => {
                self.retract(permit, now);
                Preview::Goes
            }
            Verdict::Refuse(refusal) => Preview::Refused(refusal),
            Verdict::Wait(ticket) => self.operate(now, |parts, now| parts.preview_wait(ticket, now)),
        };
        self.parts.end_supposing(&supposition);
        preview
    }
}

// === impl Parts ===

impl Parts {
    /// Forgets the next few failing keys ([`Limiter::forget_some`](super::Limiter::forget_some)).
    pub(crate) fn forget_some(&mut self, is_meant: &dyn Fn(&str) -> bool, walk: &mut Walk, now: Moment) -> usize {
        let began = *walk.began.get_or_insert(now);
        let failed_before = |name: &str, state: &KeyState| state.last_failure <= began && is_meant(name);
        let forgotten = self.stage.forget_some(&mut walk.place, failed_before, &mut self.work);
        walk.is_over = walk.place.is_none();
        forgotten
    }

    /// Begins a preview: until its end nothing is remembered of its call, and no other call is
    /// refused. Returns the state to restore.
    pub(crate) fn suppose(&mut self, arrival: &Arrival<'_>) -> Supposition {
        self.work.supposes = true;
        let object = arrival.key.map_or(0, |key| self.rules.counted_as(&key, arrival));
        Supposition { object, full_at: self.stage.object_full_at(object) }
    }

    pub(crate) fn end_supposing(&mut self, before: &Supposition) {
        self.work.supposes = false;
        self.stage.restore_object(before.object, before.full_at);
    }

    /// Returns the preview for a call that has begun to wait, and removes the call.
    pub(crate) fn preview_wait(&mut self, ticket: Ticket, now: Moment) -> Preview {
        let Some(waiter) = self.queues.find(ticket) else { return Preview::Goes };
        let call = waiter.call;
        let KeyGrant { trial, reserved, .. } = waiter.key_grant;
        let held_for = waiter.held_for;
        let stopped = match waiter.state {
            WaiterState::Queued(queue) => Some(self.queues.scheduler().stopped(queue)),
            _ => None,
        };
        self.withdraw(ticket.index);
        self.queues.remove(ticket.index);
        if let (None, Some(reason)) = (stopped, held_for) {
            let state = self.stage.view(&call, now).map(|view| view.state);
            let token_at =
                state.and_then(|state| token_at(&call, &state, reserved, &self.rules, &mut self.resources, now));
            let until = state.map_or(now, |state| AtKey::failing(state, false, false, token_at, now).earliest);
            return Preview::Waits { reason, until };
        }
        let place = self.place_of(&call, trial != 0, now);
        let min_wait = self.queues.scheduler().min_wait(&place.id, &place.needs, &self.resources, now);
        Preview::Waits { reason: stopped.unwrap_or(min_wait.reason), until: min_wait.at }
    }
}
