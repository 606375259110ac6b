//! The key stage: holds the calls of a failing key until its backoff is over and it is their turn
//! to try, without a place in a queue.
//!
//! At most one trial is past this stage at a time (P3). When a failure is recorded, every call of
//! the key that has passed and not left comes back (P2). Where writes go one at a time, one write
//! is past this stage, whether the key fails or not.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use super::{
    call::{Call, Grant, KeyGrant},
    keys::id::KeyId,
    limiter::Limiter,
    policy::Lane,
    queue::{
        held_calls::HeldCalls,
        waiter::{By, List, State, Waiter},
        walk::LOOKED_AT_ONCE,
    },
    refusal::Reason,
    resources::demand::BucketId,
    verdict::Ticket,
};
use crate::moment::Moment;

// === impl Limiter ===

impl Limiter {
    /// Adds a call to its key's held calls: at the end, or before all others.
    pub(super) fn hold(&mut self, index: u32, first: bool) {
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        waiter.state = State::Held;
        let Some(key) = waiter.key() else { return };
        self.held_calls.entry(key).or_default().hold(&mut self.waiters, index, first);
        self.set_timer(index);
        self.dirty_keys.push(key);
    }

    /// Re-evaluates the calls held for a key: releases those that are no longer blocked and refuses
    /// those that cannot leave in time.
    pub(super) fn review_held_calls(&mut self, key: KeyId, now: Moment) {
        let Some(held) = self.held_calls.get(&key).map(|held| held.held) else { return };
        self.timers.cancel_key(key);
        let Some(first) = held.first() else { return };
        let whole = self.waiters.get(first).and_then(|waiter| waiter.call.key);
        let Some(view) = whole.and_then(|key| self.keys().view(&key, now)) else {
            // Not failing (any more): all go, in order, but for writes behind a write.
            return self.let_line_go(key, held, now);
        };
        if view.state.ready_at > now {
            self.refuse_line_in_vain(key, held, view.state.ready_at, now);
        }
        if view.trial != 0 {
            // A trial may stay out for longer than its key is remembered.
            self.timers.set_key(view.forget_at, key);
            return;
        }
        let Some(first) = self.held_calls.get(&key).and_then(|held| held.held.first()) else { return };
        if self.waits_for_write(first) {
            return;
        }
        let token_at = self.waiters.get(first).and_then(|waiter| waiter.key_grant.paid).map_or(now, |(_, _, at)| at);
        let at = view.state.ready_at.max(token_at);
        if at <= now {
            self.enter(first, true, now);
            // If the trial was refused, the next call is reviewed.
            if self.held_calls.get(&key).is_some_and(HeldCalls::holds_anyone) {
                self.dirty_keys.push(key);
            }
        } else {
            self.timers.set_key(at, key);
        }
    }

    /// The key does not fail (any more): all go, in order, but for writes behind a write. Of a long line a few at a time.
    fn let_line_go(&mut self, key: KeyId, held: List, now: Moment) {
        let first = held.collect(&self.waiters, By::Key, LOOKED_AT_ONCE);
        let mut entered = 0;
        for index in &first {
            if !self.waits_for_write(*index) {
                self.enter(*index, false, now);
                entered += 1;
            }
        }
        self.steps = self.steps.saturating_sub(entered);
        if entered > 0 && first.len() == LOOKED_AT_ONCE {
            self.dirty_keys.push(key);
        }
    }

    /// Refuses the held calls that the key will not release in time. The first to come can wait
    /// least, so only the beginning of a long list is looked at.
    fn refuse_line_in_vain(&mut self, key: KeyId, held: List, ready_at: Moment, now: Moment) {
        let first = held.collect(&self.waiters, By::Key, LOOKED_AT_ONCE);
        let before = self.waiting;
        for index in &first {
            self.refuse_if_in_vain(*index, ready_at, now);
        }
        let refused = before.saturating_sub(self.waiting);
        self.steps = self.steps.saturating_sub(u32::try_from(refused).unwrap_or(u32::MAX));
        if refused > 0 && first.len() == LOOKED_AT_ONCE {
            self.dirty_keys.push(key);
        }
    }

    /// Takes back whatever of a key has passed and not left: its place in line is before those who came later.
    pub(super) fn recall(&mut self, key: KeyId, now: Moment) {
        let Some(passed) =
            self.held_calls.get(&key).map(|held| held.passed.collect(&self.waiters, By::Key, usize::MAX))
        else {
            return;
        };
        for index in passed.into_iter().rev() {
            self.freshen(index, now);
            let Some(waiter) = self.waiters.get_mut(index) else { continue };
            let hold = self.policy.classes[waiter.call.class].backoff.hold;
            waiter.hold_ends = now + hold;
            waiter.held_for = Some(Reason::Backoff);
            let mut key_grant = std::mem::take(&mut waiter.key_grant);
            match std::mem::replace(&mut waiter.state, State::Held) {
                State::Queued(queue) => {
                    let name = self.scheduler.queue(queue).and_then(|queue| queue.name.clone());
                    self.waiters.keep_flow_name(index, name);
                    self.scheduler.part(queue, index, &mut self.waiters, &mut self.resources);
                }
                State::Granted(grant) => {
                    self.undo(index, &grant);
                    key_grant = grant.key_grant;
                    self.start_waiting(index);
                }
                State::Held | State::Refused(_) | State::Unconnected => {}
            }
            self.end_key_grant(Some(key), key_grant);
            if let Some(held) = self.held_calls.get_mut(&key) {
                held.remove(&mut self.waiters, index);
            }
            self.hold(index, true);
        }
    }

    /// Moves a call that its key releases into its queue, as the trial or as a call of a healthy
    /// key, unless it would wait in vain.
    pub(super) fn enter(&mut self, index: u32, retry: bool, now: Moment) {
        let Some(waiter) = self.waiters.get(index) else { return };
        let (call, hold_ends, patient) = (waiter.call, waiter.hold_ends, waiter.call.patient);
        let (id, needs) = self.queue_of(&call, retry, now);
        if !patient && let Some(refusal) = self.in_vain(&call, &id, &needs, hold_ends, now) {
            let key = self.key_state(index, now).filter(|_| refusal.reason.concerns_key());
            return self.refuse(index, refusal.reason, refusal.retry_at, key, now);
        }
        let Some(key) = call.key.as_ref().map(KeyId::from) else { return };
        self.leave_held_calls(key, index);
        let trial = if retry { self.table.begin_trial(key) } else { 0 };
        let alone = self.begin_write(&call);
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        (waiter.key_grant.trial, waiter.key_grant.alone) = (trial, alone);
        let unneeded = if retry { None } else { waiter.key_grant.paid.take() };
        let name = self.waiters.take_flow_name(index);
        self.end_key_grant(None, KeyGrant { paid: unneeded, ..KeyGrant::default() });
        let queue = self.scheduler.open(id, &needs, || name, &mut self.resources);
        let block = self.resources.blocked(&needs, call.class, now);
        if let Some(block) = block {
            self.scheduler.note_stopped(queue, now, block.reason);
        }
        self.stand_in(queue, index, false, now);
    }

    /// Takes back a granted call that was not sent. Its tokens and slot have been given back
    /// already.
    pub(super) fn come_back(&mut self, call: Call, grant: &Grant, now: Moment) -> Ticket {
        let (ends, hold_ends) = (self.ends(&call), now + self.class(&call).backoff.hold);
        let mut waiter = Waiter::new(call, grant.key_grant, ends, hold_ends);
        waiter.sequence = grant.sequence;
        let index = self.waiters.insert(waiter);
        let ticket = self.waiters.ticket(index);
        if self.bypassed || self.class(&call).lane == Lane::Exempt {
            let grant = self.exempt_grant();
            self.conclude(index, State::Granted(Box::new(grant)));
            return ticket;
        }
        self.start_waiting(index);
        let key = call.key.as_ref().map(KeyId::from);
        let view = call.key.and_then(|key| self.keys().view(&key, now));
        let is_trial = key.is_some_and(|key| self.table.is_trial(key, grant.key_grant.trial));
        let held = view.is_some_and(|view| !is_trial || view.state.ready_at > now);
        let kept = match (held, is_trial) {
            (true, _) => KeyGrant::default(),
            (false, true) => grant.key_grant,
            (false, false) => KeyGrant { alone: grant.key_grant.alone, ..KeyGrant::default() },
        };
        if held || !is_trial {
            self.end_key_grant(key, KeyGrant { alone: grant.key_grant.alone && !kept.alone, ..grant.key_grant });
            if let Some(waiter) = self.waiters.get_mut(index) {
                waiter.key_grant = kept;
            }
        }
        if held {
            if let Some(waiter) = self.waiters.get_mut(index) {
                waiter.held_for = Some(Reason::Backoff);
            }
            self.hold(index, true);
            return ticket;
        }
        let (id, needs) = self.queue_of(&call, is_trial, now);
        let queue = self.scheduler.open(id, &needs, || None, &mut self.resources);
        self.scheduler.note_stopped(queue, now, Reason::Slot);
        self.stand_in(queue, index, true, now);
        ticket
    }

    /// Ends the hold of a call whose time at the key stage is over.
    pub(super) fn hold_is_over(&mut self, index: u32, now: Moment) {
        let Some(waiter) = self.waiters.get(index) else { return };
        let (call, paid) = (waiter.call, waiter.key_grant.paid);
        let behind = self.waits_for_write(index);
        let Some((key, view)) = call.key.and_then(|key| Some((key, self.keys().view(&key, now)?))) else {
            if behind {
                return self.refuse(index, Reason::OneAtATime, now, None, now);
            }
            self.dirty_keys.extend(call.key.as_ref().map(KeyId::from));
            return;
        };
        let token_at = paid.map_or(now, |(_, _, at): (BucketId, u64, Moment)| at);
        let earliest = view.state.ready_at.max(token_at);
        let is_first = self.held_calls.get(&KeyId::from(&key)).is_some_and(|held| held.held.first() == Some(index));
        let (reason, retry_at) = if view.trial != 0 || !is_first {
            let failures = view.state.failures.saturating_add(1);
            (Reason::Trial, (now + self.class(&call).backoff.delay_of(&key, failures)).max(earliest))
        } else if behind {
            (Reason::OneAtATime, earliest)
        } else if token_at > view.state.ready_at {
            (Reason::RetryBucket, token_at)
        } else {
            (Reason::Backoff, earliest)
        };
        self.refuse(index, reason, retry_at, Some(view.state), now);
    }

    /// True if at most one call like this one may be past the key stage.
    pub(super) fn goes_alone(&self, call: &Call) -> bool {
        self.policy.one_at_a_time && call.write && call.key.is_some()
    }

    /// Records a call as the one write of its key, if that matters.
    pub(super) fn begin_write(&mut self, call: &Call) -> bool {
        let key = call.key.as_ref().map(KeyId::from).filter(|_| self.goes_alone(call));
        key.is_some_and(|key| {
            let is_only = self.writes.insert(key.written());
            debug_assert!(is_only, "one write at a time");
            is_only
        })
    }

    /// True if a held call is a write and another write of its key is on its way.
    fn waits_for_write(&self, index: u32) -> bool {
        let Some(call) = self.waiters.get(index).map(|waiter| &waiter.call) else { return false };
        self.goes_alone(call) && call.key.as_ref().is_some_and(|key| self.writes.contains(&KeyId::from(key).written()))
    }

    /// Refuses a held call that its key will not release in time.
    fn refuse_if_in_vain(&mut self, index: u32, ready_at: Moment, now: Moment) {
        let in_vain = |waiter: &Waiter| !waiter.call.patient && ready_at > waiter.hold_ends.min(waiter.ends);
        if self.waiters.get(index).is_some_and(in_vain) {
            let key = self.key_state(index, now);
            self.refuse(index, Reason::Backoff, ready_at, key, now);
        }
    }
}
