//! Reviews the held calls of a key: releases them when its backoff is over and it is their turn to
//! try, and refuses those that it will not release in time.

use super::{
    AtKey, Call, Grant, KeyGrant, KeyId, LOOKED_AT_ONCE, Parts, Reason, State, Ticket, Waiter, WaiterIndex, token_at,
};
use crate::moment::Moment;

// === impl Parts ===

impl Parts {
    /// Re-evaluates the calls held for a key: releases those that are no longer blocked and refuses
    /// those that cannot leave in time.
    pub(crate) fn review_held_calls(&mut self, key: KeyId, now: Moment) {
        self.queues.waiting.timers.cancel_key(key);
        let Some(first) = self.queues.waiting.first_held(key) else { return };
        let whole = self.queues.waiting.get(first).and_then(|waiter| waiter.call.key);
        let Some(view) = whole.and_then(|key| self.stage.keys().view(&key, now)) else {
            return self.release_held_calls(key, now);
        };
        if view.state.ready_at > now {
            self.refuse_late_held_calls(key, &AtKey::failing(view.state, false, false, None, now), now);
        }
        if view.trial != 0 {
            // A trial may stay out for longer than its key is remembered.
            return self.queues.waiting.timers.set_key(view.forget_at, key);
        }
        let Some(first) = self.queues.waiting.first_held(key).filter(|first| !self.waits_for_write(*first)) else {
            return;
        };
        let Some(waiter) = self.queues.waiting.get(first) else { return };
        let call = waiter.call;
        let hold_ends = waiter.hold_ends;
        let reserved = waiter.key_grant.reserved;
        let token_at = token_at(&call, &view.state, reserved, &self.rules, &mut self.resources, now);
        let at_key = AtKey::failing(view.state, false, false, token_at, now);
        if at_key.earliest <= now {
            self.enter_queue(first, true, now);
        } else if let Err(cause) = self.outlook(now).backoff(&call, &at_key, hold_ends) {
            self.refuse(first, cause, now);
        } else {
            return self.queues.waiting.timers.set_key(at_key.earliest, key);
        }
        // If the trial was refused, the next call is reviewed.
        if self.queues.waiting.first_held(key).is_some() {
            self.work.dirty_keys.push(key);
        }
    }

    /// Releases the calls held for a key that is not failing (any more): in order, except writes
    /// behind a write, and of many a few at a time.
    fn release_held_calls(&mut self, key: KeyId, now: Moment) {
        let first = self.queues.waiting.held(key, LOOKED_AT_ONCE);
        let mut entered = 0;
        for index in &first {
            if !self.waits_for_write(*index) {
                self.enter_queue(*index, false, now);
                entered += 1;
            }
        }
        self.review_more(key, entered, first.len());
    }

    /// Refuses the held calls that the key will not release in time. The first to come can wait
    /// least, so only the beginning of a long list is looked at.
    fn refuse_late_held_calls(&mut self, key: KeyId, at_key: &AtKey, now: Moment) {
        let first = self.queues.waiting.held(key, LOOKED_AT_ONCE);
        let before = self.queues.waiting.count;
        for index in &first {
            if let Some(waiter) = self.queues.waiting.get(*index)
                && let Err(cause) = self.outlook(now).backoff(&waiter.call, at_key, waiter.hold_ends)
            {
                self.refuse(*index, cause, now);
            }
        }
        self.review_more(key, before.saturating_sub(self.queues.waiting.count), first.len());
    }

    /// Counts the held calls that were released or refused as steps. A key with more of them is
    /// reviewed again.
    fn review_more(&mut self, key: KeyId, over: usize, looked_at: usize) {
        self.work.count_steps(over);
        if over > 0 && looked_at == LOOKED_AT_ONCE {
            self.work.dirty_keys.push(key);
        }
    }

    /// Moves a call that its key releases into its queue, as the trial or as a call of a healthy
    /// key, unless its wait is certain to fail.
    fn enter_queue(&mut self, index: WaiterIndex, retry: bool, now: Moment) {
        let Some(waiter) = self.queues.waiting.get(index) else { return };
        let call = waiter.call;
        let hold_ends = waiter.hold_ends;
        let place = self.place_of(&call, retry, now);
        if let Err(cause) = self.outlook(now).turn_in_time(&call, &place.id, &place.needs, hold_ends) {
            return self.refuse(index, cause, now);
        }
        self.queues.waiting.leave_key(index);
        let trial = call.key.filter(|_| retry).map_or(0, |key| self.stage.table.begin_trial(KeyId::from(&key)));
        let alone = self.stage.begin_write(&call, &self.rules);
        let Some(waiter) = self.queues.waiting.get_mut(index) else { return };
        waiter.key_grant.trial = trial;
        waiter.key_grant.alone = alone;
        let unneeded = if retry { None } else { waiter.key_grant.reserved.take() };
        self.end_key_grant(None, KeyGrant::of(unneeded));
        let name = self.queues.waiting.waiters.take_flow_name(index);
        self.queue_up(index, place, name, now);
    }

    /// Takes back a granted call that was not sent. Its tokens and slot have been given back
    /// already.
    pub(crate) fn come_back(&mut self, call: Call, grant: &Grant, now: Moment) -> Ticket {
        let hold_ends = self.rules.hold_ends(&call, now);
        let mut waiter = Waiter::new(call, grant.key_grant, self.rules.ends(&call), hold_ends);
        waiter.sequence = grant.sequence;
        let index = self.queues.waiting.waiters.insert(waiter);
        let ticket = self.queues.waiting.ticket(index);
        if self.rules.is_exempt(&call) {
            let grant = self.exempt_grant();
            self.conclude(index, State::Granted(Box::new(grant)));
            return ticket;
        }
        self.queues.waiting.count_in(index);
        let key = call.key.as_ref().map(KeyId::from);
        let view = call.key.and_then(|key| self.stage.keys().view(&key, now));
        let is_trial = key.is_some_and(|key| self.stage.table.is_trial(key, grant.key_grant.trial));
        let held = view.is_some_and(|view| !is_trial || view.state.ready_at > now);
        let mut kept = KeyGrant::default();
        let mut ended = grant.key_grant;
        if !held && is_trial {
            kept = std::mem::take(&mut ended);
        } else if !held {
            // The place of the one write is kept.
            kept.alone = std::mem::take(&mut ended.alone);
        }
        self.end_key_grant(key, ended);
        if let Some(waiter) = self.queues.waiting.get_mut(index) {
            waiter.key_grant = kept;
            waiter.held_for = held.then_some(Reason::Backoff);
        }
        if held {
            self.hold(index, true);
            return ticket;
        }
        let place = self.place_of(&call, is_trial, now);
        let queue = self.queues.scheduler.open(place.id, &place.needs, || None, &mut self.resources);
        self.queues.scheduler.note_stopped(queue, now, Reason::Slot);
        self.queues.join(queue, index, true, &self.rules, now);
        ticket
    }

    /// Refuses a call whose time at the key stage is over.
    pub(crate) fn hold_is_over(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.queues.waiting.get(index) else { return };
        let call = waiter.call;
        let reserved = waiter.key_grant.reserved;
        let busy = self.waits_for_write(index);
        let at_key = match call.key.and_then(|key| Some((KeyId::from(&key), self.stage.keys().view(&key, now)?))) {
            Some((key, view)) => {
                let tried = view.trial != 0 || self.queues.waiting.first_held(key) != Some(index);
                let token_at = token_at(&call, &view.state, reserved, &self.rules, &mut self.resources, now);
                AtKey::failing(view.state, tried, busy, token_at, now)
            }
            None if busy => AtKey::healthy(true, now),
            None => return self.work.dirty_keys.extend(call.key.as_ref().map(KeyId::from)),
        };
        let cause = self.outlook(now).hold_over(&call, &at_key);
        self.refuse(index, cause, now);
    }

    /// True if a held call is a write and another write of its key is on its way.
    fn waits_for_write(&self, index: WaiterIndex) -> bool {
        let waiter = self.queues.waiting.get(index);
        waiter.is_some_and(|waiter| self.stage.waits_for_write(&waiter.call, &self.rules))
    }
}
