//! The dispatch loop: admits every waiting call that can leave, ends every wait that is over, and
//! reviews the held calls of dirty keys, until nothing more can happen at this moment.

use std::time::Duration;

use super::{
    AtKey, BucketId, Call, Cause, Charges, Demand, Grant, Limiter, Mode, Next, QueueIndex, QueueKey, Reason,
    Requirements, STEPS, State, Timer, Turn, Verdict, Waiter, WaiterIndex,
};
use crate::moment::Moment;

// === impl Limiter ===

impl Limiter {
    /// Applies everything that time alone has brought about. Returns the time to go on with, which
    /// never goes back.
    #[inline]
    pub(super) fn catch_up(&mut self, now: Moment) -> Moment {
        self.now = self.now.max(now);
        let now = self.now;
        if !self.keys().is_empty() {
            self.forget_keys(now);
        }
        self.dispatch(now);
        now
    }

    /// A function of its own, as [`Self::dispatch_turns`] is, so that the usual case has no more
    /// registers to save than it uses.
    #[inline(never)]
    fn forget_keys(&mut self, now: Moment) {
        if self.table.has_expired(now) {
            self.table.expire(now, &mut self.work.dirty_keys);
        }
    }

    /// Admits every call that can leave and ends every wait that is over, until nothing more can
    /// happen at this moment.
    #[inline]
    pub(super) fn dispatch(&mut self, now: Moment) {
        // By far the most frequent case: no call waits.
        let is_idle = self.scheduler.waiting == 0 && self.work.dirty_keys.is_empty();
        if is_idle && self.waiting.timers.is_empty() {
            self.resources.unblocked.clear();
            self.work.idle_since = now;
        } else {
            self.dispatch_turns(now);
        }
    }

    /// Dispatches for one turn. Other calls are not kept waiting for what is left then: it is done
    /// from the next operation on.
    #[inline(never)]
    pub(super) fn dispatch_turns(&mut self, now: Moment) {
        self.work.steps = STEPS;
        while self.work.steps > 0 {
            if !self.step(now) {
                (self.work.idle_since, self.work.behind) = (now, false);
                return;
            }
            self.work.count_steps(1);
        }
        self.work.behind = true;
    }

    /// Does what comes next at this moment. Returns false if there is nothing.
    fn step(&mut self, now: Moment) -> bool {
        if self.work.moving.is_some() {
            self.move_some(now);
            return true;
        }
        while let Some(queue_group) = self.resources.unblocked.pop() {
            self.scheduler.unpark(queue_group);
        }
        if self.sweep(now) {
            return true;
        }
        if let Some(key) = self.work.dirty_keys.pop() {
            self.review_held_calls(key, now);
            return true;
        }
        match self.scheduler.next(&self.resources, now) {
            Next::Turn(queue) => self.grant_head(queue, now),
            Next::NotYetKnown => {}
            Next::None => match self.waiting.timers.pop(now) {
                Some(Timer::Key(key)) => self.work.dirty_keys.push(key),
                Some(Timer::Waiter(index)) => self.wait_is_over(index, now),
                None => return false,
            },
        }
        true
    }

    #[inline]
    pub(super) fn dispatch_if_dirty(&mut self, now: Moment) {
        if !self.work.dirty_keys.is_empty() || !self.resources.unblocked.is_empty() {
            self.dispatch(now);
        }
    }

    /// Returns the call's queue and its requirements there.
    pub(super) fn queue_of(&mut self, call: &Call, retry: bool, now: Moment) -> (QueueKey, Requirements) {
        (self.queue_key(call, retry), self.resources.requirements(&self.policy, &call.demand, retry, now))
    }

    /// Returns the key of the call's queue, split by credential if buckets, slots or pauses are.
    pub(super) fn queue_key(&self, call: &Call, retry: bool) -> QueueKey {
        let Demand { class, flow, credential, group, lasts, .. } = call.demand;
        let credential = if self.policy.splits_by_credential(class) { credential } else { 0 };
        QueueKey { class, flow, mode: Mode { group, lasts, retry }, credential }
    }

    /// Puts a waiter at the end of its queue, and notes what stops it there.
    pub(super) fn queue_up(
        &mut self,
        index: WaiterIndex,
        (id, needs): (QueueKey, Requirements),
        name: Option<Box<str>>,
        now: Moment,
    ) {
        let class = id.class;
        let queue = self.scheduler.open(id, &needs, || name, &mut self.resources);
        if let Some(block) = self.resources.blocked(&needs, class, now) {
            self.scheduler.note_stopped(queue, now, block.reason);
        }
        self.join_queue(queue, index, false, now);
    }

    /// Puts a waiter in a queue: at its end, or where it was if it returns.
    pub(super) fn join_queue(&mut self, queue: QueueIndex, index: WaiterIndex, returns: bool, now: Moment) {
        self.waiting.enter(index, returns, now);
        self.scheduler.join(queue, index, returns, &mut self.waiting.waiters);
        self.waiting.note_passed(index);
        self.set_timer(index);
    }

    /// Sets a waiter's timer to the end of its present wait, be it for its key or in a queue.
    pub(super) fn set_timer(&mut self, index: WaiterIndex) {
        let Some(waiter) = self.waiting.get(index) else { return };
        let for_key = match waiter.state {
            State::Held => true,
            State::Queued(queue) => self.retry_tokens(queue).is_some_and(|mut tokens| tokens.next().is_some()),
            State::Granted(_) | State::Refused(_) | State::Unconnected => return,
        };
        let at = if for_key { waiter.ends.min(waiter.hold_ends) } else { waiter.ends };
        self.waiting.set_timer(index, at);
    }

    /// Returns the buckets for whose tokens the calls of a queue are held no longer than their keys
    /// may hold them. `None` if it is no queue of retries, or retries are not metered.
    fn retry_tokens(&self, queue: QueueIndex) -> Option<impl Iterator<Item = BucketId>> {
        self.policy.retry_bucket?;
        let queue_group = self.scheduler.group_of(queue).filter(|queue_group| queue_group.mode.retry)?;
        Some(queue_group.needs.charges.of_retry())
    }

    /// Ends a waiter's wait with a verdict that can now be claimed.
    pub(super) fn conclude(&mut self, index: WaiterIndex, state: State) {
        if let Some(waiter) = self.waiting.get_mut(index) {
            waiter.state = state;
            self.work.events.push_back(self.waiting.ticket(index));
        }
    }

    /// Ends a wait with a refusal.
    pub(super) fn refuse(&mut self, index: WaiterIndex, cause: Cause, now: Moment) {
        let Some(call) = self.waiting.get(index).map(|waiter| waiter.call) else { return };
        self.note_passed_over(&call, &cause, now);
        let view = call.key.filter(|_| cause.of_key).and_then(|key| self.keys().view(&key, now));
        self.withdraw(index);
        let cause = Cause { retry_at: cause.retry_at.max(now), ..cause };
        let refusal = cause.refusal(now - call.arrived, view.map(|view| view.state));
        self.conclude(index, State::Refused(Box::new(refusal)));
    }

    /// Refuses a call that arrives.
    #[inline]
    pub(super) fn refuse_on_arrival(&mut self, call: &Call, at_key: &AtKey, cause: &Cause, now: Moment) -> Verdict {
        self.note_passed_over(call, cause, now);
        Verdict::Refuse(cause.refusal(Duration::ZERO, at_key.state))
    }

    /// Refuses the retries whose `hold` is over, now that a bucket of which tokens were taken may
    /// have none left for them.
    pub(super) fn refuse_expired_holds(&mut self, taken: &Charges, now: Moment) {
        for bucket in taken.of_retry() {
            let ready_at = self.resources.buckets.ready_at(bucket, now);
            if ready_at <= now {
                continue;
            }
            for ticket in std::mem::take(&mut self.work.expired_holds) {
                let Some(waiter) = self.waiting.find(ticket) else { continue };
                let State::Queued(queue) = waiter.state else { continue };
                let group = self.scheduler.group_of(queue);
                if self.is_open(queue) {
                    self.look_again(ticket.index, now);
                } else if group.is_some_and(|queue_group| queue_group.needs.charges.contains(bucket)) {
                    self.refuse(ticket.index, Cause::new(Reason::RetryBucket, ready_at), now);
                } else {
                    self.work.expired_holds.push(ticket);
                }
            }
        }
    }

    /// Admits the call at the head of a queue, which takes its requirements.
    fn grant_head(&mut self, queue: QueueIndex, now: Moment) {
        let Some((found, group)) = self.scheduler.queue(queue).zip(self.scheduler.group_of(queue)) else { return };
        let (mut needs, class) = (group.needs.clone(), group.class);
        let Some(index) = found.list.first else { return };
        let Some((entered, call)) = self.waiting.get(index).map(|waiter| (waiter.entered, waiter.call)) else { return };
        // Judged at the moment it could have left if the driver had been on time: not before its
        // tokens were there, before it entered the queue, or before anything else that held it was
        // over. The lateness made up for is bounded, or a driver that slept for a minute would
        // admit a minute's calls at once (P1).
        let there = self.resources.there_since(&needs, class, now).max(entered);
        let could_leave = there.max(self.work.idle_since);
        let at = could_leave.min(now).max(now.back(LATENESS));
        let turn = Turn { now, at, there_since: Some(could_leave) };
        let cost = self.cost(&call);
        let number = self.resources.take(&mut needs, (class, cost), turn);
        let stopped = self.scheduler.limit_stop(queue).main_reason(entered, there, now);
        self.scheduler.had_turn(queue, cost);
        self.scheduler.part(queue, index, &mut self.waiting.waiters, &mut self.resources);
        self.waiting.count_out(index);
        let left = self.table.failures;
        let taken = if self.work.expired_holds.is_empty() { None } else { Some(needs.charges.clone()) };
        if let Some(waiter) = self.waiting.get_mut(index) {
            let (key_grant, sequence) = (std::mem::take(&mut waiter.key_grant), waiter.sequence);
            let waited = waiter.waited(stopped, now);
            let grant = Grant { needs: Some(needs), number, left, key_grant, sequence, waited };
            self.conclude(index, State::Granted(Box::new(grant)));
        }
        if let Some(taken) = taken {
            self.refuse_expired_holds(&taken, now);
        }
    }

    fn wait_is_over(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.waiting.get_mut(index) else { return };
        waiter.timer = Moment::MAX;
        match waiter.state {
            State::Held => self.hold_is_over(index, now),
            State::Queued(queue) => self.queueing_is_over(queue, index, now),
            State::Granted(_) | State::Refused(_) | State::Unconnected => {}
        }
    }

    /// Refuses a call whose time in a queue is over. A retry whose `hold` is over waits on while a
    /// retry token is there, or while its bucket is open, which is looked at again from time to
    /// time.
    fn queueing_is_over(&mut self, queue: QueueIndex, index: WaiterIndex, now: Moment) {
        let tokens = self.retry_tokens(queue).into_iter().flatten();
        let tokens_at = tokens.map(|bucket| self.resources.buckets.ready_at(bucket, now)).max();
        let is_open = tokens_at.is_some_and(|ready_at| ready_at > now) && self.is_open(queue);
        let Some(waiter) = self.waiting.get_mut(index) else { return };
        if let Some(ready_at) = tokens_at.filter(|_| waiter.hold_ends <= now) {
            waiter.hold_ends = Moment::MAX;
            if is_open && waiter.ends > now {
                return self.look_again(index, now);
            }
            if ready_at > now {
                return self.refuse(index, Cause::new(Reason::RetryBucket, ready_at), now);
            }
            if waiter.ends > now {
                self.note_expired_hold(index);
                return self.set_timer(index);
            }
        }
        self.refuse(index, self.wait_over(queue, now), now);
    }

    /// Lets a retry whose `hold` is over wait on for a while.
    fn look_again(&mut self, index: WaiterIndex, now: Moment) {
        if let Some(waiter) = self.waiting.get_mut(index) {
            waiter.hold_ends = now + STILL_OPEN;
            self.set_timer(index);
        }
    }

    /// True if the calls of a queue are retries whose bucket is open.
    fn is_open(&self, queue: QueueIndex) -> bool {
        let group = self.scheduler.group_of(queue);
        group.is_some_and(|queue_group| self.resources.retries_are_open(&queue_group.needs.charges))
    }

    fn note_expired_hold(&mut self, index: WaiterIndex) {
        let expired_holds = &mut self.work.expired_holds;
        if expired_holds.len() > 2 * self.waiting.waiters.store.len() + 16 {
            expired_holds.retain(|ticket| self.waiting.find(*ticket).is_some_and(Waiter::is_waiting));
        }
        expired_holds.push(self.waiting.ticket(index));
    }
}

// === impl Waiter ===

impl Waiter {
    /// Returns the time it has waited and the main reason for the wait, now that it leaves.
    fn waited(&self, stopped: Reason, now: Moment) -> Option<(Reason, Duration)> {
        let (total, queued) = (now - self.call.arrived, now - self.entered);
        let reason = self.held_for.filter(|_| queued < total - queued).unwrap_or(stopped);
        (!total.is_zero()).then_some((reason, total))
    }
}

/// The time after which a retry that waits in an open bucket looks if it is still open.
const STILL_OPEN: Duration = Duration::from_millis(100);
/// The most of the driver's lateness that is made up for. P1 gives the reason and the measurements.
const LATENESS: Duration = Duration::from_millis(2);
