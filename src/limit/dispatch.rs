//! The dispatch loop: admits every waiting call that can leave, ends every wait that is over, and
//! reviews the held calls of dirty keys, until nothing more can happen at this moment.

use std::time::Duration;

use super::{
    call::Grant,
    limiter::Limiter,
    queue::{
        group::QueueGroup,
        scheduler::Next,
        timers::Timer,
        waiter::{State, Waiter},
        walk::STEPS,
    },
    refusal::{KeyState, Reason, Refusal},
    resources::{
        buckets::Turn,
        demand::{BucketId, Charges},
    },
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
            self.table.expire(now, &mut self.dirty_keys);
        }
    }

    /// Admits every call that can leave and ends every wait that is over, until nothing more can
    /// happen at this moment.
    #[inline]
    pub(super) fn dispatch(&mut self, now: Moment) {
        // By far the most frequent case: no call waits.
        if self.scheduler.waiting() == 0 && self.timers.is_empty() && self.dirty_keys.is_empty() {
            self.unblocked.clear();
            self.resources.buckets.retimed.clear();
            self.idle_since = now;
        } else {
            self.dispatch_turns(now);
        }
    }

    #[inline(never)]
    pub(super) fn dispatch_turns(&mut self, now: Moment) {
        self.steps = STEPS;
        while self.steps > 0 {
            if !self.step(now) {
                (self.idle_since, self.behind) = (now, false);
                return;
            }
            self.steps = self.steps.saturating_sub(1);
        }
        // No other call is kept waiting for it: the rest is done from the next operation on.
        self.behind = true;
    }

    /// Does what comes next at this moment, if there is anything.
    fn step(&mut self, now: Moment) -> bool {
        if self.moving.is_some() {
            self.move_some(now);
            return true;
        }
        self.unblocked.append(&mut self.resources.buckets.retimed);
        while let Some(queue_group) = self.unblocked.pop() {
            self.scheduler.unpark(queue_group);
        }
        if !self.sweeps.is_empty() && self.sweep(now) {
            return true;
        }
        if let Some(key) = self.dirty_keys.pop() {
            self.review_held_calls(key, now);
            return true;
        }
        match self.scheduler.next(&self.resources, now) {
            Next::Turn(queue) => self.grant_head(queue, now),
            Next::NotYetKnown => {}
            Next::Nobody => match self.timers.pop(now) {
                Some(timer) => self.fire(timer, now),
                None => return false,
            },
        }
        true
    }

    #[inline]
    pub(super) fn dispatch_if_dirty(&mut self, now: Moment) {
        if !self.dirty_keys.is_empty() || !self.unblocked.is_empty() || !self.resources.buckets.retimed.is_empty() {
            self.dispatch(now);
        }
    }

    /// Counts a call that begins to wait.
    pub(super) fn start_waiting(&mut self, index: u32) {
        self.waiting += 1;
        if let Some(waiter) = self.waiters.get(index) {
            self.waiting_bytes.add(waiter.bytes);
        }
    }

    /// Counts a call that no longer waits, whatever the reason, and cancels its timer.
    pub(super) fn stop_waiting(&mut self, index: u32) {
        self.waiting = self.waiting.saturating_sub(1);
        if let Some(waiter) = self.waiters.get_mut(index) {
            self.waiting_bytes.subtract(waiter.bytes);
            self.timers.cancel_waiter(std::mem::replace(&mut waiter.timer, Moment::MAX), index);
        }
    }

    /// Puts a waiter in a queue.
    pub(super) fn stand_in(&mut self, queue: u32, index: u32, returns: bool, now: Moment) {
        if !returns {
            self.sequence += 1;
        }
        let sequence = self.sequence;
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        waiter.entered = now;
        if !returns {
            waiter.sequence = sequence;
        }
        let key = waiter.key();
        self.scheduler.join(queue, index, returns, &mut self.waiters);
        if let Some(key) = key {
            self.held_calls.entry(key).or_default().let_pass(&mut self.waiters, index);
        }
        self.set_timer(index);
    }

    /// Sets a waiter's timer to the end of its present wait, be it for its key or in a queue.
    pub(super) fn set_timer(&mut self, index: u32) {
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        let for_key = match waiter.state {
            State::Held => true,
            State::Queued(queue) => {
                let is_metered = |queue_group: &QueueGroup| queue_group.needs.charges.of_retry().next().is_some();
                let queue_group = self.scheduler.group_of(queue).filter(|queue_group| queue_group.mode.retry);
                self.policy.retry_bucket.is_some() && queue_group.is_some_and(is_metered)
            }
            State::Granted(_) | State::Refused(_) | State::Unconnected => return,
        };
        let at = if for_key { waiter.ends.min(waiter.hold_ends) } else { waiter.ends };
        let before = std::mem::replace(&mut waiter.timer, at);
        self.timers.cancel_waiter(before, index);
        self.timers.set_waiter(at, index);
    }

    /// Ends a waiter's wait with a verdict that can now be claimed.
    pub(super) fn conclude(&mut self, index: u32, state: State) {
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.state = state;
            self.events.push_back(self.waiters.ticket(index));
        }
    }

    /// Ends a wait with a refusal.
    pub(super) fn refuse(&mut self, index: u32, reason: Reason, retry_at: Moment, key: Option<KeyState>, now: Moment) {
        let Some(waited) = self.waiters.get(index).map(|waiter| now - waiter.call.arrived) else { return };
        self.withdraw(index, now);
        let refusal = Refusal { reason, retry_at: retry_at.max(now), waited, key };
        self.conclude(index, State::Refused(Box::new(refusal)));
    }

    /// Refuses the retries whose `hold` is over, now that a bucket of which tokens were taken may have none left for them.
    pub(super) fn refuse_expired_holds(&mut self, taken: &Charges, now: Moment) {
        for bucket in taken.of_retry() {
            let ready_at = self.resources.buckets.ready_at(bucket, now);
            if !self.expired_holds.is_empty() && ready_at > now {
                self.refuse_overdue_for(bucket, ready_at, now);
            }
        }
    }

    fn refuse_overdue_for(&mut self, bucket: BucketId, ready_at: Moment, now: Moment) {
        for ticket in std::mem::take(&mut self.expired_holds) {
            let queue = match self.waiters.find(ticket).map(|waiter| &waiter.state) {
                Some(State::Queued(queue)) => *queue,
                _ => continue,
            };
            let needs = self.scheduler.group_of(queue).map(|queue_group| &queue_group.needs.charges);
            if needs.is_some_and(|charges| charges.contains(bucket)) {
                let key = self.key_state(ticket.index, now);
                self.refuse(ticket.index, Reason::RetryBucket, ready_at, key, now);
            } else {
                self.expired_holds.push(ticket);
            }
        }
    }

    pub(super) fn key_state(&self, index: u32, now: Moment) -> Option<KeyState> {
        let key = self.waiters.get(index)?.call.key?;
        self.keys().view(&key, now).map(|view| view.state)
    }

    /// Admits the call at the head of a queue, which takes its requirements.
    fn grant_head(&mut self, queue: u32, now: Moment) {
        let Some(index) = self.scheduler.queue(queue).and_then(|queue| queue.list.first()) else { return };
        let Some((needs, class)) =
            self.scheduler.group_of(queue).map(|queue_group| (queue_group.needs.clone(), queue_group.class))
        else {
            return;
        };
        let Some(entered) = self.waiters.get(index).map(|waiter| waiter.entered) else { return };
        // Judged at the moment it could have left if the driver had been on time: not before its
        // tokens were there, before it entered the queue, or before anything else that held it was
        // over. The lateness made up for is bounded, or a driver that slept for a minute would
        // admit a minute's calls at once (P1).
        let could_leave = self.resources.there_since(&needs, class).max(self.idle_since).max(entered);
        let at = could_leave.min(now).max(now.back(LATENESS));
        let turn = Turn { now, at, there_since: Some(could_leave) };
        let number = self.resources.take(&needs, class, turn);
        let stopped = self.scheduler.stopped(queue);
        self.scheduler.had_turn(queue);
        self.scheduler.part(queue, index, &mut self.waiters, &mut self.resources);
        self.stop_waiting(index);
        let left = self.table.failures();
        let taken = if self.expired_holds.is_empty() { None } else { Some(needs.charges.clone()) };
        if let Some(waiter) = self.waiters.get_mut(index) {
            let (key_grant, sequence) = (std::mem::take(&mut waiter.key_grant), waiter.sequence);
            let waited = waiter.waited(stopped, now);
            let grant = Grant { needs: Some(needs), number, left, key_grant, sequence, waited };
            self.conclude(index, State::Granted(Box::new(grant)));
        }
        if let Some(taken) = taken {
            self.refuse_expired_holds(&taken, now);
        }
    }

    fn fire(&mut self, timer: Timer, now: Moment) {
        match timer {
            Timer::Key(key) => self.dirty_keys.push(key),
            Timer::Waiter(index) => self.wait_is_over(index, now),
        }
    }

    fn wait_is_over(&mut self, index: u32, now: Moment) {
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        waiter.timer = Moment::MAX;
        match waiter.state {
            State::Held => self.hold_is_over(index, now),
            State::Queued(queue) => self.queueing_is_over(queue, index, now),
            State::Granted(_) | State::Refused(_) | State::Unconnected => {}
        }
    }

    fn queueing_is_over(&mut self, queue: u32, index: u32, now: Moment) {
        let Some((needs, class)) =
            self.scheduler.group_of(queue).map(|queue_group| (queue_group.needs.clone(), queue_group.class))
        else {
            return;
        };
        let is_metered = self.policy.retry_bucket.is_some()
            && self.scheduler.group_of(queue).is_some_and(|queue_group| queue_group.mode.retry);
        let tokens = needs.charges.of_retry().map(|bucket| self.resources.buckets.ready_at(bucket, now));
        let tokens_at = tokens.max().filter(|_| is_metered);
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        if let Some(ready_at) = tokens_at.filter(|_| waiter.hold_ends <= now) {
            waiter.hold_ends = Moment::MAX;
            if ready_at > now {
                let key = self.key_state(index, now);
                return self.refuse(index, Reason::RetryBucket, ready_at, key, now);
            }
            if waiter.ends > now {
                self.note_expired_hold(index);
                return self.set_timer(index);
            }
        }
        let block = self.resources.blocked(&needs, class, now);
        let reason = block.map_or_else(|| self.scheduler.stopped(queue), |block| block.reason);
        let retry_at = self.end_of_its_queue(index, now);
        let key = self.key_state(index, now).filter(|_| reason.concerns_key());
        self.refuse(index, reason, retry_at, key, now);
    }

    /// Returns the moment at which a call in a queue may come back: when it would leave from the
    /// end of that queue.
    pub(super) fn end_of_its_queue(&self, index: u32, now: Moment) -> Moment {
        let queue = match self.waiters.get(index).map(|waiter| &waiter.state) {
            Some(State::Queued(queue)) => *queue,
            _ => return now,
        };
        let found = self.scheduler.queue(queue).zip(self.scheduler.group_of(queue));
        found.map_or(now, |(queue, queue_group)| {
            self.scheduler.min_wait(&queue.id, &queue_group.needs, &self.resources, now).at
        })
    }

    fn note_expired_hold(&mut self, index: u32) {
        if self.expired_holds.len() > 2 * self.waiters.len() + 16 {
            let waiters = &self.waiters;
            self.expired_holds.retain(|ticket| waiters.find(*ticket).is_some_and(Waiter::is_waiting));
        }
        self.expired_holds.push(self.waiters.ticket(index));
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

/// The most of the driver's lateness that is made up for. P1 gives the reason and the measurements.
const LATENESS: Duration = Duration::from_millis(2);
