//! New limits at run time: buckets keep their level, calls in flight their slots, waiters their
//! places (P11).
//!
//! Waiters hold a place, not a time, so there is nothing to convert. What applies changes at once.
//! The queues are then rebuilt in the order in which calls entered them, under the identity that
//! the new policy gives them, a few calls at a time. No turn is given before all have moved, so
//! that none passes another; a call that comes meanwhile and is limited at all is put behind them.
//! A call that hangs up, or whose key fails, before it has moved moves first.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use std::collections::{BinaryHeap, VecDeque};

use super::{
    call::KeyGrant,
    keys::id::KeyId,
    limiter::Limiter,
    policy::{Combine, Lane, Policy},
    queue::{
        group::QueueKey,
        regroup::Move,
        scheduler::Scheduler,
        waiter::{By, KeyList, List, State, Waiter, Waiters},
        walk::{Step, WaiterWalk},
    },
    resources::{Resources, demand::Requirements},
    verdict::Ticket,
};
use crate::moment::Moment;

// === impl Limiter ===

impl Limiter {
    /// New limits. Buckets keep their level, waiters their place. Classes are the same by name;
    /// calls of a class that is gone go on as those of `default`. A bucket that is new, or split
    /// differently than before, starts with one token: no burst for free.
    pub fn reconfigure(&mut self, policy: Policy, now: Moment) {
        let now = self.catch_up(now);
        debug_assert!(!policy.classes.is_empty(), "a policy has a class");
        if policy == self.policy || policy.classes.is_empty() {
            return;
        }
        // The driver waits for that.
        while self.moving.is_some() {
            self.move_some(now);
        }
        let origins = self.adopt_classes(&policy);
        self.resources.reconfigure(&policy, &origins, now);
        self.policy = policy;
        self.table.set_max_keys(self.policy.max_keys);
        self.begin_move(origins);
        self.dispatch_turns(now);
    }

    /// Gives the new classes the lasting numbers of the old ones of their name; says which old
    /// class each one was.
    fn adopt_classes(&mut self, policy: &Policy) -> Vec<Option<usize>> {
        let mut fresh = self.serials.iter().max().map_or(0, |most| most.wrapping_add(1));
        let origin = |name: &str| self.policy.classes.iter().position(|class| &*class.name == name);
        let origins: Vec<_> = policy.classes.iter().map(|class| origin(&class.name)).collect();
        let serial = |origin: &Option<usize>| {
            origin.and_then(|origin| self.serials.get(origin).copied()).unwrap_or_else(|| {
                fresh = fresh.wrapping_add(1);
                fresh.wrapping_sub(1)
            })
        };
        self.serials = origins.iter().map(serial).collect();
        origins
    }

    fn begin_move(&mut self, origins: Vec<Option<usize>>) {
        let old = std::mem::replace(&mut self.scheduler, Scheduler::new(&self.policy));
        self.unblocked.clear();
        self.resources.buckets.retimed.clear();
        self.scheduler.inherit(&old, &origins);
        // One more than there are: as long as the move lasts, no call goes because the queues are
        // empty.
        self.scheduler.expect(old.waiting() + 1);
        self.waiters.era = self.waiters.era.wrapping_add(1);
        let walk = WaiterWalk::over(&self.waiters);
        let (heads, late) = (BinaryHeap::new(), VecDeque::new());
        self.moving = Some(Box::new(Move { old, origins, heads, next_queue: 0, late, walk }));
        self.behind = true;
    }

    /// Calls that wait in the old queues of a class.
    pub(super) fn unmoved(&self, class: usize) -> usize {
        let old = self.moving.as_ref().and_then(|moving| {
            let origin = moving.origins.get(class).copied().flatten()?;
            moving.old.classes.get(origin)
        });
        old.map_or(0, |class| class.waiting)
    }

    /// One step of a move.
    pub(super) fn move_some(&mut self, now: Moment) {
        let Some(mut moving) = self.moving.take() else { return };
        let over = self.move_step(&mut moving, now);
        if over {
            self.scheduler.expected_came();
        } else {
            self.moving = Some(moving);
        }
    }

    /// Says whether the move is over.
    fn move_step(&mut self, moving: &mut Move, now: Moment) -> bool {
        if moving.look_at_queues(&self.waiters) {
            return false;
        }
        if let Some(index) = moving.next(&self.waiters) {
            self.carry_over(&mut moving.old, index, now);
            return false;
        }
        if let Some((ticket, name)) = moving.late.pop_front() {
            self.place_late(ticket, name, now);
            return false;
        }
        let era = self.waiters.era;
        match moving.walk.step(&self.waiters, |waiter| waiter.era != era) {
            Step::At(index) => self.carry_over(&mut moving.old, index, now),
            Step::On => {}
            Step::Over => return true,
        }
        false
    }

    /// Something is about to happen to a waiter: it moves first, if it has not.
    pub(super) fn freshen(&mut self, index: u32, now: Moment) {
        if let Some(mut moving) = self.moving.take() {
            self.carry_over(&mut moving.old, index, now);
            self.moving = Some(moving);
        }
    }

    /// A waiter under the new limits: its class, when its wait ends, its queue, and no reckoned
    /// retry token where there is none any more.
    fn carry_over(&mut self, old: &mut Scheduler, index: u32, now: Moment) {
        let Some(waiter) = self.waiters.get(index).filter(|waiter| waiter.era != self.waiters.era) else { return };
        let mut call = waiter.call;
        call.class = self.class_of(call.serial);
        call.serial = self.serials[call.class];
        let (ends, era) = (self.ends(&call), self.waiters.era);
        let sequential = self.policy.queue.combine == Combine::Sequential;
        let is_exempt = self.policy.classes[call.class].lane == Lane::Exempt;
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        (waiter.call, waiter.ends, waiter.era) = (call, ends, era);
        let paid = if sequential { waiter.key_grant.paid.take() } else { None };
        let (is_waiting, retry) = (waiter.is_waiting(), waiter.key_grant.trial != 0);
        let queue = match waiter.state {
            State::Queued(queue) => Some(queue),
            State::Granted(_) | State::Held | State::Refused(_) | State::Unconnected => None,
        };
        if queue.is_some() {
            waiter.state = State::Held;
            self.scheduler.expected_came();
        }
        let place = queue.and_then(|queue| old.take_out(queue, index, &mut self.waiters));
        self.end_key_grant(None, KeyGrant { paid, ..KeyGrant::default() });
        let key = call.key.as_ref().map(KeyId::from);
        if is_waiting && is_exempt {
            self.let_go(index, now);
            self.dirty_keys.extend(key);
            if let Some(waiter) = self.waiters.get_mut(index) {
                waiter.call.key = None;
            }
            return;
        }
        if let Some((stamp, name)) = place {
            let (id, needs) = self.queue_of(&call, retry, now);
            let queue = self.scheduler.open_at(id, &needs, name, stamp, &mut self.resources);
            self.scheduler.join_in_order(queue, index, &mut self.waiters);
        } else if key.is_some_and(|key| self.held_calls.get(&key).is_some_and(|held| held.begins_with(index))) {
            self.dirty_keys.extend(key);
        }
        self.set_timer(index);
    }

    /// A call that came during a move and may not go at once: it gets in line when everyone before
    /// it has moved.
    pub(super) fn come_late(&mut self, index: u32, name: Box<str>) {
        let ticket = self.waiters.ticket(index);
        let key = self.waiters.get(index).and_then(Waiter::key);
        if let Some(key) = key {
            self.held_calls.entry(key).or_default().let_pass(&mut self.waiters, index);
        }
        if let Some(moving) = &mut self.moving {
            moving.late.push_back((ticket, name));
        }
        self.set_timer(index);
    }

    fn place_late(&mut self, ticket: Ticket, name: Box<str>, now: Moment) {
        // It may have left, or its key may have failed and hold it.
        let is_late = |waiter: &&Waiter| matches!(waiter.state, State::Held) && waiter.key_list != Some(KeyList::Held);
        let Some(waiter) = self.waiters.find(ticket).filter(is_late) else { return };
        let (call, retry, index) = (waiter.call, waiter.key_grant.trial != 0, ticket.index);
        let (id, needs) = self.queue_of(&call, retry, now);
        if let Some(refusal) = self.in_vain(&call, &id, &needs, now, now) {
            let key = self.key_state(index, now).filter(|_| refusal.reason.concerns_key());
            return self.refuse(index, refusal.reason, refusal.retry_at, key, now);
        }
        if let Some(key) = call.key.as_ref().map(KeyId::from) {
            self.leave_held_calls(key, index);
        }
        let queue = self.scheduler.open(id, &needs, || Some(name), &mut self.resources);
        if let Some(block) = self.resources.blocked(&needs, call.class, now) {
            self.scheduler.note_stopped(queue, now, block.reason);
        }
        self.stand_in(queue, index, false, now);
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Takes a waiter out of a queue of old limits, of which nothing is used any more: gives the
    /// queue's stamp and name.
    fn take_out(&mut self, queue: u32, index: u32, waiters: &mut Waiters) -> Option<(u64, Option<Box<str>>)> {
        let found = self.queues.get_mut(queue as usize)?;
        found.list.remove(waiters, By::Queue, index);
        found.len = found.len.saturating_sub(1);
        let (stamp, class, queue_group, is_empty) = (found.stamp, found.id.class(), found.queue_group, found.len == 0);
        if let Some(class) = self.classes.get_mut(class) {
            class.waiting = class.waiting.saturating_sub(1);
        }
        if !is_empty {
            return Some((stamp, found.name.clone()));
        }
        let name = self.queues.remove(queue as usize).name;
        if let Some(queue_group) = self.queue_groups.get_mut(queue_group as usize) {
            queue_group.queues.remove(&(stamp, queue));
        }
        if self.queue_groups.get(queue_group as usize).is_some_and(|queue_group| queue_group.queues.is_empty()) {
            // Now, and not all of them at the end.
            self.queue_groups.remove(queue_group as usize);
        }
        Some((stamp, name))
    }

    /// So many are on their way to these queues.
    fn expect(&mut self, calls: usize) {
        self.waiting += calls;
    }

    /// One of those has come.
    fn expected_came(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Puts a waiter where its sequence says, which is nearly always the end.
    fn join_in_order(&mut self, queue: u32, index: u32, waiters: &mut Waiters) {
        let sequence = |index: u32| waiters.get(index).map_or(0, |waiter| waiter.sequence);
        let (mine, list) = (sequence(index), self.queue(queue).map(|queue| queue.list).unwrap_or_default());
        let (mut next, mut before) = (None, list.last());
        while let Some(other) = before.filter(|other| sequence(*other) > mine) {
            (next, before) = (before, List::before(waiters, By::Queue, other));
        }
        self.join_before(queue, index, next, waiters);
    }

    /// The queue with this identity, made if need be with a stamp it had before a reload.
    fn open_at(
        &mut self,
        id: QueueKey,
        needs: &Requirements,
        name: Option<Box<str>>,
        stamp: u64,
        resources: &mut Resources,
    ) -> u32 {
        let is_new = self.find(&id).is_none();
        let queue = self.open(id, needs, || name, resources);
        if let Some(found) = self.queues.get_mut(queue as usize).filter(|_| is_new) {
            found.stamp = stamp;
        }
        queue
    }

    /// Takes over from before a reload whose turn it is. `origins` says for each class which old
    /// one it was.
    fn inherit(&mut self, old: &Self, origins: &[Option<usize>]) {
        self.clock = old.clock;
        self.passed = old.passed;
        for (class, origin) in self.classes.iter_mut().zip(origins) {
            class.stamp = origin.and_then(|origin| old.classes.get(origin)).map_or(old.clock, |old| old.stamp);
        }
    }
}
