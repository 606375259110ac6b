//! The turn loop: what time has brought about, whose turn it is, whose wait is over.

use std::time::Duration;

use super::{
    buckets::Turn,
    lanes::Next,
    limiter::Limiter,
    needs::{BucketId, Charges},
    queue::Bundle,
    sweep::STEPS,
    timers::Timer,
    verdict::{KeyState, Reason, Refusal},
    waiter::{Grant, State, Waiter},
};
use crate::moment::Moment;

// === impl Limiter ===

impl Limiter {
    /// Lets happen what time alone has brought about. Gives the time to go on with: it never goes back.
    #[inline]
    pub(super) fn catch_up(&mut self, now: Moment) -> Moment {
        self.now = self.now.max(now);
        let now = self.now;
        if !self.keys().is_empty() {
            self.forget_keys(now);
        }
        self.run(now);
        now
    }

    /// Apart, as [`Self::run_turns`] is, so that the usual case has no more registers to save than it uses.
    #[inline(never)]
    fn forget_keys(&mut self, now: Moment) {
        if self.table.has_expired(now) {
            self.table.expire(now, &mut self.stirred);
        }
    }

    /// Lets go everyone who can go and ends every wait that is over, until nothing more can happen at this moment.
    #[inline]
    pub(super) fn run(&mut self, now: Moment) {
        // The usual case by far: nobody waits.
        if self.lanes.waiting() == 0 && self.timers.is_empty() && self.stirred.is_empty() {
            self.freed.clear();
            self.supply.buckets.moved.clear();
            self.settled = now;
        } else {
            self.run_turns(now);
        }
    }

    #[inline(never)]
    pub(super) fn run_turns(&mut self, now: Moment) {
        self.steps = STEPS;
        while self.steps > 0 {
            if !self.step(now) {
                (self.settled, self.behind) = (now, false);
                return;
            }
            self.steps = self.steps.saturating_sub(1);
        }
        // Nobody else is kept waiting for it: the rest is done from the next operation on.
        self.behind = true;
    }

    /// Does what comes next at this moment, if there is anything.
    fn step(&mut self, now: Moment) -> bool {
        if self.moving.is_some() {
            self.move_some(now);
            return true;
        }
        self.freed.append(&mut self.supply.buckets.moved);
        while let Some(bundle) = self.freed.pop() {
            self.lanes.unpark(bundle);
        }
        if !self.sweeps.is_empty() && self.sweep(now) {
            return true;
        }
        if let Some(key) = self.stirred.pop() {
            self.settle_line(key, now);
            return true;
        }
        match self.lanes.next(&self.supply, now) {
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
    pub(super) fn run_if_stirred(&mut self, now: Moment) {
        if !self.stirred.is_empty() || !self.freed.is_empty() || !self.supply.buckets.moved.is_empty() {
            self.run(now);
        }
    }

    /// A call begins to wait.
    pub(super) fn start_waiting(&mut self, index: u32) {
        self.waiting += 1;
        if let Some(waiter) = self.waiters.get(index) {
            self.waiting_bytes = self.waiting_bytes.saturating_add(waiter.bytes);
        }
    }

    /// A call waits no longer, one way or the other.
    pub(super) fn stop_waiting(&mut self, index: u32) {
        self.waiting = self.waiting.saturating_sub(1);
        if let Some(waiter) = self.waiters.get_mut(index) {
            self.waiting_bytes = self.waiting_bytes.saturating_sub(waiter.bytes);
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
        self.lanes.join(queue, index, returns, &mut self.waiters);
        if let Some(key) = key {
            self.lines.entry(key).or_default().pass(&mut self.waiters, index);
        }
        self.set_timer(index);
    }

    /// Sets the timer of a waiter to when its wait, of whatever it waits for now, is over.
    pub(super) fn set_timer(&mut self, index: u32) {
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        let for_key = match waiter.state {
            State::Held => true,
            State::Queued(queue) => {
                let is_metered = |bundle: &Bundle| bundle.needs.charges.of_retry().next().is_some();
                let bundle = self.lanes.bundle_of(queue).filter(|bundle| bundle.mode.retry);
                self.policy.retry_bucket.is_some() && bundle.is_some_and(is_metered)
            }
            State::Granted(_) | State::Refused(_) | State::Unconnected => return,
        };
        let at = if for_key { waiter.ends.min(waiter.hold_ends) } else { waiter.ends };
        let before = std::mem::replace(&mut waiter.timer, at);
        self.timers.cancel_waiter(before, index);
        self.timers.set_waiter(at, index);
    }

    /// A waiter's wait has ended one way or the other: its verdict is there to be claimed.
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
    pub(super) fn refuse_overdue(&mut self, taken: &Charges, now: Moment) {
        for bucket in taken.of_retry() {
            let ready_at = self.supply.buckets.ready_at(bucket, now);
            if !self.overdue.is_empty() && ready_at > now {
                self.refuse_overdue_for(bucket, ready_at, now);
            }
        }
    }

    fn refuse_overdue_for(&mut self, bucket: BucketId, ready_at: Moment, now: Moment) {
        for ticket in std::mem::take(&mut self.overdue) {
            let queue = match self.waiters.find(ticket).map(|waiter| &waiter.state) {
                Some(State::Queued(queue)) => *queue,
                _ => continue,
            };
            let needs = self.lanes.bundle_of(queue).map(|bundle| &bundle.needs.charges);
            if needs.is_some_and(|charges| charges.contains(bucket)) {
                let key = self.key_state(ticket.index, now);
                self.refuse(ticket.index, Reason::RetryBucket, ready_at, key, now);
            } else {
                self.overdue.push(ticket);
            }
        }
    }

    pub(super) fn key_state(&self, index: u32, now: Moment) -> Option<KeyState> {
        let key = self.waiters.get(index)?.call.key?;
        self.keys().view(&key, now).map(|view| view.state)
    }

    /// The head of a queue leaves, with all it needs.
    fn grant_head(&mut self, queue: u32, now: Moment) {
        let Some(index) = self.lanes.queue(queue).and_then(|queue| queue.list.first()) else { return };
        let Some((needs, class)) = self.lanes.bundle_of(queue).map(|bundle| (bundle.needs.clone(), bundle.class))
        else {
            return;
        };
        let Some(entered) = self.waiters.get(index).map(|waiter| waiter.entered) else { return };
        // Judged when it could have left had nobody been late: not before the tokens, nor it, nor whatever else held it was over. But
        // no more than so late, or a driver that slept through a minute would let a minute's calls out at once (P1).
        let could_leave = self.supply.there_since(&needs, class).max(self.settled).max(entered);
        let at = could_leave.min(now).max(now.back(LATENESS));
        let turn = Turn { now, at, there_since: Some(could_leave) };
        let number = self.supply.take(&needs, class, turn);
        let stopped = self.lanes.stopped(queue);
        self.lanes.had_turn(queue);
        self.lanes.part(queue, index, &mut self.waiters, &mut self.supply);
        self.stop_waiting(index);
        let left = self.table.failures();
        let taken = if self.overdue.is_empty() { None } else { Some(needs.charges.clone()) };
        if let Some(waiter) = self.waiters.get_mut(index) {
            let (pass, sequence) = (std::mem::take(&mut waiter.pass), waiter.sequence);
            let waited = waiter.waited(stopped, now);
            let grant = Grant { needs: Some(needs), number, left, pass, sequence, waited };
            self.conclude(index, State::Granted(Box::new(grant)));
        }
        if let Some(taken) = taken {
            self.refuse_overdue(&taken, now);
        }
    }

    fn fire(&mut self, timer: Timer, now: Moment) {
        match timer {
            Timer::Key(key) => self.stirred.push(key),
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
        let Some((needs, class)) = self.lanes.bundle_of(queue).map(|bundle| (bundle.needs.clone(), bundle.class))
        else {
            return;
        };
        let is_metered =
            self.policy.retry_bucket.is_some() && self.lanes.bundle_of(queue).is_some_and(|bundle| bundle.mode.retry);
        let tokens = needs.charges.of_retry().map(|bucket| self.supply.buckets.ready_at(bucket, now));
        let tokens_at = tokens.max().filter(|_| is_metered);
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        if let Some(ready_at) = tokens_at.filter(|_| waiter.hold_ends <= now) {
            waiter.hold_ends = Moment::MAX;
            if ready_at > now {
                let key = self.key_state(index, now);
                return self.refuse(index, Reason::RetryBucket, ready_at, key, now);
            }
            if waiter.ends > now {
                self.note_overdue(index);
                return self.set_timer(index);
            }
        }
        let block = self.supply.blocked(&needs, class, now);
        let reason = block.map_or_else(|| self.lanes.stopped(queue), |block| block.reason);
        let retry_at = self.end_of_its_queue(index, now);
        let key = self.key_state(index, now).filter(|_| reason.concerns_key());
        self.refuse(index, reason, retry_at, key, now);
    }

    /// What coming back means for a call in a queue: the end of it.
    pub(super) fn end_of_its_queue(&self, index: u32, now: Moment) -> Moment {
        let queue = match self.waiters.get(index).map(|waiter| &waiter.state) {
            Some(State::Queued(queue)) => *queue,
            _ => return now,
        };
        let found = self.lanes.queue(queue).zip(self.lanes.bundle_of(queue));
        found.map_or(now, |(queue, bundle)| self.lanes.certain(&queue.id, &bundle.needs, &self.supply, now).at)
    }

    fn note_overdue(&mut self, index: u32) {
        if self.overdue.len() > 2 * self.waiters.len() + 16 {
            let waiters = &self.waiters;
            self.overdue.retain(|ticket| waiters.find(*ticket).is_some_and(Waiter::is_waiting));
        }
        self.overdue.push(self.waiters.ticket(index));
    }
}

// === impl Waiter ===

impl Waiter {
    /// How long it has waited and for what above all, now that it leaves.
    fn waited(&self, stopped: Reason, now: Moment) -> Option<(Reason, Duration)> {
        let (total, queued) = (now - self.call.arrived, now - self.entered);
        let reason = self.held_for.filter(|_| queued < total - queued).unwrap_or(stopped);
        (!total.is_zero()).then_some((reason, total))
    }
}

/// How much of the driver's lateness is made up for: P1 gives the reason and the measurements.
const LATENESS: Duration = Duration::from_millis(2);
