//! The dispatch loop: admits waiting calls, ends waits that are too long, and reviews the calls
//! waiting for changed keys, until nothing more can happen at this moment.

use std::time::Duration;

use super::Parts;
use crate::moment::Moment;
use crate::{Cause, DueWork, Grant, QueueIndex, Reason, STEPS, Turn, Waiter, WaiterIndex, WaiterState};

// === impl Parts ===

impl Parts {
    /// Admits waiting calls and ends overlong waits, until nothing more can happen at this moment.
    #[inline]
    pub(crate) fn dispatch(&mut self, now: Moment) {
        // By far the most frequent case: no call waits.
        if self.queues.is_idle() && self.work.dirty_keys.is_empty() {
            self.resources.unblocked.clear();
            self.work.idle_since = now;
        } else {
            self.dispatch_turns(now);
        }
    }

    /// Does a bounded part of [`Self::dispatch`]. The rest is left to the next operations, so that
    /// other tasks are not kept waiting. This is a separate function, so that the usual case saves
    /// no registers.
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

    /// Does the next thing due at this moment. Returns false if nothing is due.
    fn step(&mut self, now: Moment) -> bool {
        if self.queues.is_moving() {
            self.move_some(now);
            return true;
        }
        while let Some(queue_group) = self.resources.unblocked.pop() {
            self.queues.unpark(queue_group);
        }
        if self.sweep(now) {
            return true;
        }
        if let Some(key) = self.work.dirty_keys.pop() {
            self.review_held_calls(key, now);
            return true;
        }
        match self.queues.next_due(&self.resources, now) {
            Some(DueWork::Turn(queue)) => self.grant_head(queue, now),
            Some(DueWork::Key(key)) => self.work.dirty_keys.push(key),
            Some(DueWork::WaitOver(index)) => self.wait_is_over(index, now),
            Some(DueWork::Unknown) => {}
            None => return false,
        }
        true
    }

    #[inline]
    pub(crate) fn dispatch_if_dirty(&mut self, now: Moment) {
        if !self.work.dirty_keys.is_empty() || !self.resources.unblocked.is_empty() {
            self.dispatch(now);
        }
    }

    /// Admits the first call of a queue.
    fn grant_head(&mut self, queue: QueueIndex, now: Moment) {
        let scheduler = self.queues.scheduler();
        let Some((found, group)) = scheduler.queue(queue).zip(scheduler.group_of(queue)) else { return };
        let Some(index) = found.list.first else { return };
        let Some(waiter) = self.queues.get(index) else { return };
        let mut needs = group.needs.clone();
        let class = group.class;
        let cost = self.rules.cost(&waiter.call);
        // Judged at the moment it could have left if the driver had been on time: not before its
        // tokens were there, before it entered the queue, or before anything else that held it was
        // over. Only a little lateness is made up for, or a driver that slept for a minute would
        // admit a minute's calls at once (P1).
        let there = self.resources.turn_since(&needs, class, now).max(waiter.entered);
        let could_leave = there.max(self.work.idle_since);
        let at = could_leave.min(now).max(now.back(LATENESS));
        let turn = Turn { now, at, there_since: Some(could_leave) };
        let stopped = scheduler.limit_stop(queue).main_reason(waiter.entered, there, now);
        let waited = waiter.waited(stopped, now);
        let sequence = waiter.sequence;
        let number = self.resources.take(&mut needs, class, cost, turn);
        self.queues.take_head(queue, index, cost, &mut self.resources);
        let left = self.stage.table().failures();
        let taken = if self.work.expired_holds.is_empty() { None } else { Some(needs.charges.clone()) };
        let key_grant = self.queues.take_key_grant(index);
        let grant = Grant { needs: Some(needs), number, left, key_grant, sequence, waited };
        self.conclude(index, WaiterState::Granted(Box::new(grant)));
        if let Some(taken) = taken {
            self.refuse_expired_holds(&taken, now);
        }
    }

    fn wait_is_over(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.queues.get(index) else { return };
        match waiter.state {
            WaiterState::Held => self.hold_is_over(index, now),
            WaiterState::Queued(queue) => self.queueing_is_over(queue, index, now),
            WaiterState::Granted(_) | WaiterState::Refused(_) | WaiterState::Unconnected => {}
        }
    }

    /// Refuses a call after the longest allowed wait in its queue.
    ///
    /// A retry at the end of its `hold` keeps waiting while a retry token is available, or while
    /// retries succeed and their bucket lets more through. The latter is checked again at
    /// intervals.
    fn queueing_is_over(&mut self, queue: QueueIndex, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.queues.get(index).filter(|waiter| waiter.hold_ends <= now) else {
            return self.refuse(index, self.outlook(now).wait_over(queue), now);
        };
        let has_time = waiter.ends > now;
        let tokens = self.queues.retry_tokens(queue, &self.rules).into_iter().flatten();
        match tokens.map(|bucket| self.resources.buckets.ready_at(bucket, now)).max() {
            Some(ready_at) if ready_at > now => {
                if has_time && self.queues.is_open(queue, &self.resources) {
                    return self.queues.extend_hold(index, &self.rules, now);
                }
                self.refuse(index, Cause::new(Reason::RetryBucket, ready_at), now);
            }
            Some(_) if has_time => {
                self.queues.note_expired_hold(index, &mut self.work);
                self.queues.set_hold_end(index, Moment::MAX, &self.rules);
            }
            _ => self.refuse(index, self.outlook(now).wait_over(queue), now),
        }
    }
}

// === impl Waiter ===

impl Waiter {
    /// Returns the main reason for a call's wait and the length of the whole wait, at its end;
    /// `None` if the call did not wait.
    fn waited(&self, stopped: Reason, now: Moment) -> Option<(Reason, Duration)> {
        let total = now - self.call.arrived;
        let queued = now - self.entered;
        let reason = self.held_for.filter(|_| queued < total - queued).unwrap_or(stopped);
        (!total.is_zero()).then_some((reason, total))
    }
}

/// The longest delay of the driver to make up for: the tokens of a call admitted late count as
/// taken up to this much earlier (P1).
const LATENESS: Duration = Duration::from_millis(2);
