//! The dispatch loop: admits every waiting call that can leave, ends every wait that is over, and
//! reviews the held calls of dirty keys, until nothing more can happen at this moment.

use std::time::Duration;

use super::{Cause, Grant, Next, Parts, QueueIndex, Reason, STEPS, State, Timer, Turn, Waiter, WaiterIndex};
use crate::moment::Moment;

// === impl Parts ===

impl Parts {
    /// A function of its own, as [`Self::dispatch_turns`] is, so that the usual case has no more
    /// registers to save than it uses.
    #[inline(never)]
    pub(crate) fn forget_keys(&mut self, now: Moment) {
        if self.stage.table.has_expired(now) {
            self.stage.table.expire(now, &mut self.work.dirty_keys);
        }
    }

    /// Admits every call that can leave and ends every wait that is over, until nothing more can
    /// happen at this moment.
    #[inline]
    pub(crate) fn dispatch(&mut self, now: Moment) {
        // By far the most frequent case: no call waits.
        let is_idle = self.queues.scheduler.waiting == 0 && self.work.dirty_keys.is_empty();
        if is_idle && self.queues.waiting.timers.is_empty() {
            self.resources.unblocked.clear();
            self.work.idle_since = now;
        } else {
            self.dispatch_turns(now);
        }
    }

    /// Dispatches for one turn. Other calls are not kept waiting for what is left then: it is done
    /// from the next operation on.
    #[inline(never)]
    pub(crate) fn dispatch_turns(&mut self, now: Moment) {
        self.work.steps = STEPS;
        while self.work.steps > 0 {
            if !self.step(now) {
                self.work.idle_since = now;
                self.work.behind = false;
                return;
            }
            self.work.count_steps(1);
        }
        self.work.behind = true;
    }

    /// Does what comes next at this moment. Returns false if there is nothing.
    fn step(&mut self, now: Moment) -> bool {
        if self.queues.moving.is_some() {
            self.move_some(now);
            return true;
        }
        while let Some(queue_group) = self.resources.unblocked.pop() {
            self.queues.scheduler.unpark(queue_group);
        }
        if self.sweep(now) {
            return true;
        }
        if let Some(key) = self.work.dirty_keys.pop() {
            self.review_held_calls(key, now);
            return true;
        }
        match self.queues.scheduler.next(&self.resources, now) {
            Next::Turn(queue) => self.grant_head(queue, now),
            Next::NotYetKnown => {}
            Next::None => match self.queues.waiting.timers.pop(now) {
                Some(Timer::Key(key)) => self.work.dirty_keys.push(key),
                Some(Timer::Waiter(index)) => self.wait_is_over(index, now),
                None => return false,
            },
        }
        true
    }

    #[inline]
    pub(crate) fn dispatch_if_dirty(&mut self, now: Moment) {
        if !self.work.dirty_keys.is_empty() || !self.resources.unblocked.is_empty() {
            self.dispatch(now);
        }
    }

    /// Admits the call at the head of a queue, which takes its requirements.
    fn grant_head(&mut self, queue: QueueIndex, now: Moment) {
        let Some((found, group)) = self.queues.scheduler.queue(queue).zip(self.queues.scheduler.group_of(queue)) else {
            return;
        };
        let mut needs = group.needs.clone();
        let class = group.class;
        let Some(index) = found.list.first else { return };
        let Some(waiter) = self.queues.waiting.get(index) else { return };
        let entered = waiter.entered;
        let cost = self.rules.cost(&waiter.call);
        // Judged at the moment it could have left if the driver had been on time: not before its
        // tokens were there, before it entered the queue, or before anything else that held it was
        // over. The lateness made up for is bounded, or a driver that slept for a minute would
        // admit a minute's calls at once (P1).
        let there = self.resources.there_since(&needs, class, now).max(entered);
        let could_leave = there.max(self.work.idle_since);
        let at = could_leave.min(now).max(now.back(LATENESS));
        let turn = Turn { now, at, there_since: Some(could_leave) };
        let number = self.resources.take(&mut needs, class, cost, turn);
        let stopped = self.queues.scheduler.limit_stop(queue).main_reason(entered, there, now);
        self.queues.scheduler.had_turn(queue, cost);
        self.queues.scheduler.part(queue, index, &mut self.queues.waiting.waiters, &mut self.resources);
        self.queues.waiting.count_out(index);
        let left = self.stage.table.failures;
        let taken = if self.work.expired_holds.is_empty() { None } else { Some(needs.charges.clone()) };
        if let Some(waiter) = self.queues.waiting.get_mut(index) {
            let key_grant = std::mem::take(&mut waiter.key_grant);
            let sequence = waiter.sequence;
            let waited = waiter.waited(stopped, now);
            let grant = Grant { needs: Some(needs), number, left, key_grant, sequence, waited };
            self.conclude(index, State::Granted(Box::new(grant)));
        }
        if let Some(taken) = taken {
            self.refuse_expired_holds(&taken, now);
        }
    }

    fn wait_is_over(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.queues.waiting.get_mut(index) else { return };
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
        let tokens = self.queues.retry_tokens(queue, &self.rules).into_iter().flatten();
        let tokens_at = tokens.map(|bucket| self.resources.buckets.ready_at(bucket, now)).max();
        let is_open = tokens_at.is_some_and(|ready_at| ready_at > now) && self.queues.is_open(queue, &self.resources);
        let Some(waiter) = self.queues.waiting.get_mut(index) else { return };
        if let Some(ready_at) = tokens_at.filter(|_| waiter.hold_ends <= now) {
            waiter.hold_ends = Moment::MAX;
            if is_open && waiter.ends > now {
                return self.queues.look_again(index, &self.rules, now);
            }
            if ready_at > now {
                return self.refuse(index, Cause::new(Reason::RetryBucket, ready_at), now);
            }
            if waiter.ends > now {
                self.queues.note_expired_hold(index, &mut self.work);
                return self.queues.set_timer(index, &self.rules);
            }
        }
        self.refuse(index, self.outlook(now).wait_over(queue), now);
    }
}

// === impl Waiter ===

impl Waiter {
    /// Returns the time it has waited and the main reason for the wait, now that it leaves.
    fn waited(&self, stopped: Reason, now: Moment) -> Option<(Reason, Duration)> {
        let total = now - self.call.arrived;
        let queued = now - self.entered;
        let reason = self.held_for.filter(|_| queued < total - queued).unwrap_or(stopped);
        (!total.is_zero()).then_some((reason, total))
    }
}

/// The most of the driver's lateness that is made up for. P1 gives the reason and the measurements.
const LATENESS: Duration = Duration::from_millis(2);
