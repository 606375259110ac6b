//! The review of the calls waiting for a key: lets them continue one after another once the backoff
//! is over, and refuses those that have waited too long.

use super::Parts;
use crate::moment::Moment;
use crate::{
    AtKey, CallFacts, Combine, Grant, KeyGrant, KeyId, LOOKED_AT_ONCE, QueuePlace, Reason, Requirements, Ticket,
    Waiter, WaiterIndex, token_at,
};

// === impl Parts ===

impl Parts {
    /// Reviews the calls waiting for a key: lets a call continue if nothing blocks it any more, and
    /// refuses the calls that have waited too long.
    pub(crate) fn review_held_calls(&mut self, key: KeyId, now: Moment) {
        self.queues.set_key_timer(key, Moment::MAX);
        let Some(first) = self.queues.first_held(key) else { return };
        let whole = self.queues.get(first).and_then(|waiter| waiter.call.key);
        let Some(view) = whole.and_then(|key| self.stage.keys().view(&key, now)) else {
            return self.release_held_calls(key, now);
        };
        if view.state.ready_at > now {
            self.refuse_late_held_calls(key, &AtKey::failing(view.state, false, false, None, now), now);
        }
        if view.trial != 0 {
            // A trial may stay out for longer than its key is remembered.
            return self.queues.set_key_timer(key, view.forget_at);
        }
        let Some(first) = self.queues.first_held(key).filter(|first| !self.waits_for_write(*first)) else {
            return;
        };
        let Some(waiter) = self.queues.get(first) else { return };
        let call = waiter.call;
        let hold_ends = waiter.hold_ends;
        let reserved = waiter.key_grant.reserved;
        let token_at = token_at(&call, &view.state, reserved, &self.rules, &mut self.resources, now);
        let at_key = AtKey::failing(view.state, false, false, token_at, now);
        if at_key.earliest <= now {
            self.enter_queue(first, true, now);
        } else if let Err(cause) = self.outlook(now).held_backoff(&call, &at_key, hold_ends) {
            self.refuse(first, cause, now);
        } else {
            return self.queues.set_key_timer(key, at_key.earliest);
        }
        // If the trial was refused, the next call is reviewed.
        if self.queues.first_held(key).is_some() {
            self.work.dirty_keys.push(key);
        }
    }

    /// Lets a few of the calls waiting for a key continue, in order, because the key is not failing
    /// (any more). A write stays if another write of its key is in progress.
    fn release_held_calls(&mut self, key: KeyId, now: Moment) {
        let first = self.queues.held(key, LOOKED_AT_ONCE);
        let mut entered = 0;
        for index in &first {
            if !self.waits_for_write(*index) {
                self.enter_queue(*index, false, now);
                entered += 1;
            }
        }
        self.review_more(key, entered, first.len());
    }

    /// Refuses calls unable to wait until the backoff of their key ends. The calls that came first
    /// can wait least, so only the beginning of a long list is checked.
    fn refuse_late_held_calls(&mut self, key: KeyId, at_key: &AtKey, now: Moment) {
        let first = self.queues.held(key, LOOKED_AT_ONCE);
        let before = self.queues.waiting();
        for index in &first {
            if let Some(waiter) = self.queues.get(*index)
                && let Err(cause) = self.outlook(now).held_backoff(&waiter.call, at_key, waiter.hold_ends)
            {
                self.refuse(*index, cause, now);
            }
        }
        self.review_more(key, before.saturating_sub(self.queues.waiting()), first.len());
    }

    /// Counts the released or refused calls as steps of the dispatch. If more calls wait for the
    /// key, marks the key for another review.
    fn review_more(&mut self, key: KeyId, over: usize, looked_at: usize) {
        self.work.count_steps(over);
        if over > 0 && looked_at == LOOKED_AT_ONCE {
            self.work.dirty_keys.push(key);
        }
    }

    /// Moves a call from waiting for its key to its queue, unless its wait there is certain to be
    /// too long. `retry` is set if the call tests a failing key.
    fn enter_queue(&mut self, index: WaiterIndex, retry: bool, now: Moment) {
        let Some(waiter) = self.queues.get(index) else { return };
        let call = waiter.call;
        let hold_ends = waiter.hold_ends;
        let place = self.place_of(&call, retry, now);
        let waits = retry && self.waits_for_trials(&place.needs, hold_ends, now);
        let in_time = || self.outlook(now).turn_in_time(&call, &place.id, &place.needs, hold_ends);
        if let Err(cause) = if waits { Ok(()) } else { in_time() } {
            return self.refuse(index, cause, now);
        }
        let trial = if retry { self.stage.begin_trial(&call) } else { 0 };
        let alone = self.stage.begin_write(&call, &self.rules);
        let name = self.queues.pass_key(index, trial, alone);
        if !retry {
            let unneeded = self.queues.take_reservation(index);
            self.end_key_grant(None, unneeded);
        }
        self.queue_up(index, place, name, now);
    }

    /// Makes an admitted but unsent call wait again. Its tokens and its slot have been given back
    /// already.
    pub(crate) fn come_back(&mut self, call: CallFacts, grant: &Grant, now: Moment) -> Ticket {
        let hold_ends = self.rules.hold_ends(&call, now);
        let mut waiter = Waiter::new(call, grant.key_grant, self.rules.ends(&call), hold_ends);
        if self.rules.is_exempt(&call) {
            let index = self.queues.start(waiter);
            self.release_as_exempt(index, now);
            return self.queues.ticket(index);
        }
        let key = call.key_id();
        let is_trial = key.is_some_and(|key| self.stage.table().is_trial(key, grant.key_grant.trial));
        let held = self.stage.view(&call, now).is_some_and(|view| !is_trial || view.state.ready_at > now);
        let mut kept = KeyGrant::default();
        let mut ended = grant.key_grant;
        if !held && is_trial {
            kept = std::mem::take(&mut ended);
        } else if !held {
            // The place of the one write is kept.
            kept.alone = std::mem::take(&mut ended.alone);
        }
        self.end_key_grant(key, ended);
        waiter.key_grant = kept;
        if held {
            waiter.held_for = Some(Reason::Backoff);
            let index = self.queues.start(waiter);
            self.hold(index, true);
            return self.queues.ticket(index);
        }
        waiter.sequence = grant.sequence;
        let index = self.queues.start(waiter);
        let place = QueuePlace { stopped: Some(Reason::Slot), ..self.place_of(&call, is_trial, now) };
        self.queues.join(index, &place, || None, &self.rules, &mut self.resources, now);
        self.queues.ticket(index)
    }

    /// Refuses a call at the end of the longest allowed wait for its key.
    pub(crate) fn hold_is_over(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.queues.get(index) else { return };
        let call = waiter.call;
        let reserved = waiter.key_grant.reserved;
        let busy = self.waits_for_write(index);
        let at_key = match call.key.and_then(|key| Some((KeyId::from(&key), self.stage.keys().view(&key, now)?))) {
            Some((key, view)) => {
                let tried = view.trial != 0 || self.queues.first_held(key) != Some(index);
                let token_at = token_at(&call, &view.state, reserved, &self.rules, &mut self.resources, now);
                AtKey::failing(view.state, tried, busy, token_at, now)
            }
            None if busy => AtKey::healthy(true, now),
            None => return self.work.dirty_keys.extend(call.key.as_ref().map(KeyId::from)),
        };
        let cause = self.outlook(now).hold_over(&call, &at_key);
        self.refuse(index, cause, now);
    }

    /// Returns true if a retry must wait until `hold_ends` before a refusal, because the retries in
    /// progress may succeed.
    pub(crate) fn waits_for_trials(&self, needs: &Requirements, hold_ends: Moment, now: Moment) -> bool {
        let policy = self.rules.policy();
        let is_metered = policy.retry_bucket.is_some() && policy.queue.combine == Combine::Sequential;
        is_metered && self.rules.holds_on(hold_ends, now) && !self.resources.retries_are_open(&needs.charges)
    }

    /// Returns true if a call waiting for its key is a write, and another write of the key is in
    /// progress.
    fn waits_for_write(&self, index: WaiterIndex) -> bool {
        let waiter = self.queues.get(index);
        waiter.is_some_and(|waiter| self.stage.waits_for_write(&waiter.call, &self.rules))
    }
}
