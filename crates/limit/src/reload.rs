//! New limits at run time: buckets keep their level, calls in flight their slots, waiters their
//! places (P11).
//!
//! Waiters hold a place, not a time, so there is nothing to convert. The new limits apply at once.
//! The queues are then rebuilt in the order in which calls entered them, under the keys that the
//! new policy gives them, a few calls at a time. No turn is given before all calls have moved, so
//! that none passes another; a call that arrives meanwhile, and that anything limits, queues behind
//! them. If a call hangs up or its key fails before it has moved, it is moved first.

use super::{
    Combine, KeyGrant, KeyId, KeyList, Lane, Move, Parts, Policy, Reason, Scheduler, State, Step, Ticket, Waiter,
    WaiterIndex,
};
use crate::moment::Moment;

// === impl Parts ===

impl Parts {
    /// Applies new limits, and begins to move the waiting calls to their new queues. Returns false
    /// if nothing changes.
    pub(crate) fn reconfigure(&mut self, policy: Policy, now: Moment) -> bool {
        debug_assert!(!policy.classes.is_empty(), "a policy has a class");
        if policy == *self.rules.policy() || policy.classes.is_empty() {
            return false;
        }
        // The driver waits for a move that is under way.
        while self.queues.moving.is_some() {
            self.move_some(now);
        }
        let origins = self.rules.adopt_classes(&policy);
        self.stage.carry_paces_over(&self.rules, &policy, &origins, now);
        self.resources.reconfigure(&policy, &origins, now);
        self.rules.replace(policy);
        let policy = self.rules.policy();
        self.stage.table.set_max_keys(policy.max_keys);
        let queues = &mut self.queues;
        let old = std::mem::replace(&mut queues.scheduler, Scheduler::new(policy));
        queues.scheduler.inherit(&old, &origins);
        // One more than there are: as long as the move lasts, no call goes because the queues are
        // empty.
        queues.scheduler.waiting = old.waiting + 1;
        queues.waiting.waiters.era = queues.waiting.waiters.era.wrapping_add(1);
        queues.moving = Some(Box::new(Move::new(old, origins, &queues.waiting.waiters)));
        self.work.behind = true;
        true
    }

    /// Makes one step of a move.
    pub(crate) fn move_some(&mut self, now: Moment) {
        let Some(mut moving) = self.queues.moving.take() else { return };
        if self.move_step(&mut moving, now) {
            self.queues.moving = Some(moving);
        } else {
            self.queues.scheduler.waiting = self.queues.scheduler.waiting.saturating_sub(1);
        }
    }

    /// Makes one step of a move. Returns true if it goes on.
    fn move_step(&mut self, moving: &mut Move, now: Moment) -> bool {
        if moving.look_at_queues(&self.queues.waiting.waiters) {
            return true;
        }
        if let Some(index) = moving.next(&self.queues.waiting.waiters) {
            self.carry_over(&mut moving.old, index, now);
            return true;
        }
        if let Some((ticket, name)) = moving.late.pop_front() {
            self.place_late(ticket, name, now);
            return true;
        }
        let era = self.queues.waiting.waiters.era;
        match moving.walk.step(&self.queues.waiting.waiters, |waiter| waiter.era != era) {
            Step::At(index) => self.carry_over(&mut moving.old, index, now),
            Step::On => {}
            Step::Over => return false,
        }
        true
    }

    /// Moves a waiter to which something is about to happen, if it has not moved yet.
    pub(crate) fn freshen(&mut self, index: WaiterIndex, now: Moment) {
        if let Some(mut moving) = self.queues.moving.take() {
            self.carry_over(&mut moving.old, index, now);
            self.queues.moving = Some(moving);
        }
    }

    /// Brings a waiter under the new limits: its class, the end of its wait, its queue, and no
    /// reserved retry token where there is none any more.
    fn carry_over(&mut self, old: &mut Scheduler, index: WaiterIndex, now: Moment) {
        let era = self.queues.waiting.waiters.era;
        let Some(waiter) = self.queues.waiting.get(index).filter(|waiter| waiter.era != era) else { return };
        let mut call = waiter.call;
        call.demand.class = self.rules.class_of(&call);
        call.serial = self.rules.serial(call.demand.class).unwrap_or(u32::MAX);
        let ends = self.rules.ends(&call);
        let is_exempt = self.rules.class(&call).lane == Lane::Exempt;
        let sequential = self.rules.policy().queue.combine == Combine::Sequential;
        let Some(waiter) = self.queues.waiting.get_mut(index) else { return };
        waiter.call = call;
        waiter.ends = ends;
        waiter.era = era;
        let unneeded = if sequential { waiter.key_grant.reserved.take() } else { None };
        let is_waiting = waiter.is_waiting();
        let retry = waiter.key_grant.trial != 0;
        let old_place = if let State::Queued(queue) = waiter.state {
            waiter.state = State::Held;
            self.queues.scheduler.waiting = self.queues.scheduler.waiting.saturating_sub(1);
            old.take_out(queue, index, &mut self.queues.waiting.waiters)
        } else {
            None
        };
        self.end_key_grant(None, KeyGrant::of(unneeded));
        let key = call.key.as_ref().map(KeyId::from);
        if is_waiting && is_exempt {
            self.release_as_exempt(index, now);
            self.work.dirty_keys.extend(key);
            if let Some(waiter) = self.queues.waiting.get_mut(index) {
                waiter.call.key = None;
            }
            return;
        }
        if let Some(old) = old_place {
            let place = self.place_of(&call, retry, now);
            let queue = self.queues.scheduler.open_at(place.id, &place.needs, old, &mut self.resources);
            self.queues.scheduler.join_in_order(queue, index, &mut self.queues.waiting.waiters);
        } else {
            self.work.dirty_keys.extend(key.filter(|key| self.queues.waiting.first_held(*key) == Some(index)));
        }
        self.queues.set_timer(index, &self.rules);
    }

    fn place_late(&mut self, ticket: Ticket, name: Box<str>, now: Moment) {
        // It may have left, or its key may have failed and hold it.
        let is_late = |waiter: &&Waiter| matches!(waiter.state, State::Held) && waiter.key_list != Some(KeyList::Held);
        let Some(waiter) = self.queues.waiting.find(ticket).filter(is_late) else { return };
        let call = waiter.call;
        let retry = waiter.key_grant.trial != 0;
        let index = ticket.index;
        let place = self.place_of(&call, retry, now);
        if let Err(cause) = self.outlook(now).turn_in_time(&call, &place.id, &place.needs, now) {
            return self.refuse(index, cause, now);
        }
        self.queues.waiting.leave_key(index);
        self.queue_up(index, place, Some(name), now);
    }

    /// Takes back every call of a key that has passed and not left. They are held before those that
    /// came later.
    pub(crate) fn recall(&mut self, key: KeyId, now: Moment) {
        let Some(passed) = self.queues.waiting.passed(key) else { return };
        for index in passed.into_iter().rev() {
            self.freshen(index, now);
            let Some(waiter) = self.queues.waiting.get_mut(index) else { continue };
            waiter.hold_ends = now + self.rules.policy().class(waiter.call.demand.class).backoff.hold;
            waiter.held_for = Some(Reason::Backoff);
            let mut key_grant = std::mem::take(&mut waiter.key_grant);
            match std::mem::replace(&mut waiter.state, State::Held) {
                State::Queued(queue) => {
                    let name = self.queues.scheduler.queue(queue).and_then(|queue| queue.name.clone());
                    self.queues.waiting.waiters.keep_flow_name(index, name);
                    self.queues.scheduler.part(queue, index, &mut self.queues.waiting.waiters, &mut self.resources);
                }
                State::Granted(grant) => {
                    self.undo(index, &grant);
                    key_grant = grant.key_grant;
                    self.queues.waiting.count_in(index);
                }
                State::Held | State::Refused(_) | State::Unconnected => {}
            }
            self.end_key_grant(Some(key), key_grant);
            self.queues.waiting.leave_key(index);
            self.hold(index, true);
        }
    }
}
