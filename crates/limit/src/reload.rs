//! New limits at run time: buckets keep their level, calls in flight their slots, waiters their
//! places (P11).
//!
//! Waiters hold a place, not a time, so there is nothing to convert. The new limits apply at once.
//! The queues are then rebuilt in the order in which calls entered them, under the keys that the
//! new policy gives them, a few calls at a time. No turn is given before all calls have moved, so
//! that none passes another; a call that arrives meanwhile, and that anything limits, queues behind
//! them. If a call hangs up or its key fails before it has moved, it is moved first.

use super::{
    ClassId, Combine, KeyGrant, KeyId, KeyList, Lane, Limiter, Move, Origins, Policy, Scheduler, State, Step, Ticket,
    Waiter, WaiterIndex,
};
use crate::moment::Moment;

// === impl Limiter ===

impl Limiter {
    /// Applies new limits. Buckets keep their level, and waiters their places. Classes are the same
    /// if their names are; calls of a class that is gone go on as those of `default`. A bucket that
    /// is new, or split differently than before, starts with one token: no burst for free.
    pub fn reconfigure(&mut self, policy: Policy, now: Moment) {
        let now = self.catch_up(now);
        debug_assert!(!policy.classes.is_empty(), "a policy has a class");
        if policy == self.policy || policy.classes.is_empty() {
            return;
        }
        // The driver waits for a move that is under way.
        while self.work.moving.is_some() {
            self.move_some(now);
        }
        let origins = self.adopt_classes(&policy);
        self.carry_paces_over(&policy, &origins, now);
        self.resources.reconfigure(&policy, &origins, now);
        self.policy = policy;
        self.is_unusual = self.bypassed || self.policy.enforces_per_key();
        self.table.set_max_keys(self.policy.max_keys);
        let old = std::mem::replace(&mut self.scheduler, Scheduler::new(&self.policy));
        self.scheduler.inherit(&old, &origins);
        // One more than there are: as long as the move lasts, no call goes because the queues are
        // empty.
        self.scheduler.waiting = old.waiting + 1;
        self.waiting.waiters.era = self.waiting.waiters.era.wrapping_add(1);
        self.work.moving = Some(Box::new(Move::new(old, origins, &self.waiting.waiters)));
        self.work.behind = true;
        self.dispatch_turns(now);
    }

    /// Gives the new classes the lasting numbers of the old ones of their name. Returns which old
    /// class each one was.
    fn adopt_classes(&mut self, policy: &Policy) -> Origins {
        let mut fresh = self.serials.iter().map(|(_, serial)| serial.wrapping_add(1)).max().unwrap_or(0)..;
        let old = &self.policy.classes;
        let origins = policy.per_class(|class| (0..).map(ClassId).zip(old).find(|(_, old)| old.name == class.name));
        let origins = origins.map(|origin| origin.map(|(id, _)| id));
        let kept = |origin: &Option<ClassId>| origin.and_then(|origin| self.serials.get(origin).copied());
        self.serials = origins.map(|origin| kept(origin).or_else(|| fresh.next()).unwrap_or(u32::MAX));
        origins
    }

    /// Brings what is counted of each object to the new paces of its classes.
    fn carry_paces_over(&mut self, policy: &Policy, origins: &Origins, now: Moment) {
        for (id, class) in (0..).map(ClassId).zip(&policy.classes) {
            let origin = origins.get(id).copied().flatten();
            let old = origin.and_then(|origin| self.policy.classes.get(usize::from(origin.0))?.per_key);
            for reads in [false, true] {
                let new = class.per_key.and_then(|per_key| per_key.pace(reads));
                let old = old.and_then(|per_key| per_key.pace(reads)).filter(|old| new != Some(*old));
                if let Some((old, serial)) = old.zip(self.serials.get(id)) {
                    self.objects.carry_over(*serial, reads, old, new, now);
                }
            }
        }
    }

    /// Returns the number of calls that wait in the old queues of a class.
    pub(super) fn unmoved(&self, class: ClassId) -> usize {
        let old = self.work.moving.as_ref().and_then(|moving| {
            let origin = moving.origins.get(class).copied().flatten()?;
            moving.old.classes.get(origin)
        });
        old.map_or(0, |class| class.waiting)
    }

    /// Makes one step of a move.
    pub(super) fn move_some(&mut self, now: Moment) {
        let Some(mut moving) = self.work.moving.take() else { return };
        if self.move_step(&mut moving, now) {
            self.work.moving = Some(moving);
        } else {
            self.scheduler.waiting = self.scheduler.waiting.saturating_sub(1);
        }
    }

    /// Makes one step of a move. Returns true if it goes on.
    fn move_step(&mut self, moving: &mut Move, now: Moment) -> bool {
        if moving.look_at_queues(&self.waiting.waiters) {
            return true;
        }
        if let Some(index) = moving.next(&self.waiting.waiters) {
            self.carry_over(&mut moving.old, index, now);
            return true;
        }
        if let Some((ticket, name)) = moving.late.pop_front() {
            self.place_late(ticket, name, now);
            return true;
        }
        let era = self.waiting.waiters.era;
        match moving.walk.step(&self.waiting.waiters, |waiter| waiter.era != era) {
            Step::At(index) => self.carry_over(&mut moving.old, index, now),
            Step::On => {}
            Step::Over => return false,
        }
        true
    }

    /// Moves a waiter to which something is about to happen, if it has not moved yet.
    pub(super) fn freshen(&mut self, index: WaiterIndex, now: Moment) {
        if let Some(mut moving) = self.work.moving.take() {
            self.carry_over(&mut moving.old, index, now);
            self.work.moving = Some(moving);
        }
    }

    /// Brings a waiter under the new limits: its class, the end of its wait, its queue, and no
    /// reserved retry token where there is none any more.
    fn carry_over(&mut self, old: &mut Scheduler, index: WaiterIndex, now: Moment) {
        let era = self.waiting.waiters.era;
        let Some(waiter) = self.waiting.get(index).filter(|waiter| waiter.era != era) else { return };
        let mut call = waiter.call;
        call.demand.class = self.class_of(&call);
        call.serial = *self.serials.of(call.demand.class);
        let (ends, is_exempt) = (self.ends(&call), self.class(&call).lane == Lane::Exempt);
        let sequential = self.policy.queue.combine == Combine::Sequential;
        let Some(waiter) = self.waiting.get_mut(index) else { return };
        (waiter.call, waiter.ends, waiter.era) = (call, ends, era);
        let unneeded = if sequential { waiter.key_grant.reserved.take() } else { None };
        let (is_waiting, retry) = (waiter.is_waiting(), waiter.key_grant.trial != 0);
        let place = if let State::Queued(queue) = waiter.state {
            waiter.state = State::Held;
            self.scheduler.waiting = self.scheduler.waiting.saturating_sub(1);
            old.take_out(queue, index, &mut self.waiting.waiters)
        } else {
            None
        };
        self.end_key_grant(None, KeyGrant::of(unneeded));
        let key = call.key.as_ref().map(KeyId::from);
        if is_waiting && is_exempt {
            self.release_as_exempt(index, now);
            self.work.dirty_keys.extend(key);
            if let Some(waiter) = self.waiting.get_mut(index) {
                waiter.call.key = None;
            }
            return;
        }
        if let Some(place) = place {
            let (id, needs) = self.queue_of(&call, retry, now);
            let queue = self.scheduler.open_at(id, &needs, place, &mut self.resources);
            self.scheduler.join_in_order(queue, index, &mut self.waiting.waiters);
        } else {
            self.work.dirty_keys.extend(key.filter(|key| self.waiting.first_held(*key) == Some(index)));
        }
        self.set_timer(index);
    }

    /// Keeps a call that came during a move and may not go at once. It queues when all before it
    /// have moved.
    pub(super) fn await_move(&mut self, index: WaiterIndex, name: Box<str>) {
        self.waiting.note_passed(index);
        let ticket = self.waiting.ticket(index);
        if let Some(moving) = &mut self.work.moving {
            moving.late.push_back((ticket, name));
        }
        self.set_timer(index);
    }

    fn place_late(&mut self, ticket: Ticket, name: Box<str>, now: Moment) {
        // It may have left, or its key may have failed and hold it.
        let is_late = |waiter: &&Waiter| matches!(waiter.state, State::Held) && waiter.key_list != Some(KeyList::Held);
        let Some(waiter) = self.waiting.find(ticket).filter(is_late) else { return };
        let (call, retry, index) = (waiter.call, waiter.key_grant.trial != 0, ticket.index);
        let (id, needs) = self.queue_of(&call, retry, now);
        if let Err(cause) = self.turn_in_time(&call, &id, &needs, now, now) {
            return self.refuse(index, cause, now);
        }
        self.waiting.leave_key(index);
        self.queue_up(index, (id, needs), Some(name), now);
    }
}
