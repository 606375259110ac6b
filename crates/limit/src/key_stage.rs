//! The key stage: holds the calls of a failing key until its backoff is over and it is their turn
//! to try, without a place in a queue.
//!
//! At most one trial is past this stage at a time (P3). When a failure is recorded, every call of
//! the key that has passed and not left comes back (P2). Where writes go one at a time, one write
//! is past this stage, whether the key fails or not.

use super::{
    Arrival, AtKey, BucketId, Call, Cause, Combine, Grant, KeyGrant, KeyId, KeyState, LOOKED_AT_ONCE, Lasts, Limiter,
    Reason, Reserved, State, Ticket, Waiter, WaiterIndex,
};
use crate::key::Key;
use crate::moment::Moment;
use crate::sketch::in_class;

// === impl Limiter ===

impl Limiter {
    /// Adds a call to its key's held calls: at the end, or before all others.
    pub(super) fn hold(&mut self, index: WaiterIndex, first: bool) {
        let key = self.waiting.hold(index, first);
        self.set_timer(index);
        self.work.dirty_keys.extend(key);
    }

    /// Re-evaluates the calls held for a key: releases those that are no longer blocked and refuses
    /// those that cannot leave in time.
    pub(super) fn review_held_calls(&mut self, key: KeyId, now: Moment) {
        self.waiting.timers.cancel_key(key);
        let Some(first) = self.waiting.first_held(key) else { return };
        let whole = self.waiting.get(first).and_then(|waiter| waiter.call.key);
        let Some(view) = whole.and_then(|key| self.keys().view(&key, now)) else {
            return self.release_held_calls(key, now);
        };
        if view.state.ready_at > now {
            self.refuse_late_held_calls(key, &AtKey::failing(view.state, false, false, None, now), now);
        }
        if view.trial != 0 {
            // A trial may stay out for longer than its key is remembered.
            return self.waiting.timers.set_key(view.forget_at, key);
        }
        let Some(first) = self.waiting.first_held(key).filter(|first| !self.waits_for_write(*first)) else { return };
        let Some(waiter) = self.waiting.get(first) else { return };
        let (call, reserved, hold_ends) = (waiter.call, waiter.key_grant.reserved, waiter.hold_ends);
        let token_at = self.token_at(&call, &view.state, reserved, now);
        let at_key = AtKey::failing(view.state, false, false, token_at, now);
        if at_key.earliest <= now {
            self.enter_queue(first, true, now);
        } else if let Err(cause) = self.backoff(&call, &at_key, hold_ends) {
            self.refuse(first, cause, now);
        } else {
            return self.waiting.timers.set_key(at_key.earliest, key);
        }
        // If the trial was refused, the next call is reviewed.
        if self.waiting.first_held(key).is_some() {
            self.work.dirty_keys.push(key);
        }
    }

    /// Releases the calls held for a key that is not failing (any more): in order, except writes
    /// behind a write, and of many a few at a time.
    fn release_held_calls(&mut self, key: KeyId, now: Moment) {
        let first = self.waiting.held(key, LOOKED_AT_ONCE);
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
        let (first, before) = (self.waiting.held(key, LOOKED_AT_ONCE), self.waiting());
        for index in &first {
            let waiter = self.waiting.get(*index).map(|waiter| (waiter.call, waiter.hold_ends));
            if let Some((call, hold_ends)) = waiter
                && let Err(cause) = self.backoff(&call, at_key, hold_ends)
            {
                self.refuse(*index, cause, now);
            }
        }
        self.review_more(key, before.saturating_sub(self.waiting()), first.len());
    }

    /// Counts the held calls that were released or refused as steps. A key with more of them is
    /// reviewed again.
    fn review_more(&mut self, key: KeyId, over: usize, looked_at: usize) {
        self.work.count_steps(over);
        if over > 0 && looked_at == LOOKED_AT_ONCE {
            self.work.dirty_keys.push(key);
        }
    }

    /// Takes back every call of a key that has passed and not left. They are held before those that
    /// came later.
    pub(super) fn recall(&mut self, key: KeyId, now: Moment) {
        let Some(passed) = self.waiting.passed(key) else { return };
        for index in passed.into_iter().rev() {
            self.freshen(index, now);
            let Some(waiter) = self.waiting.get_mut(index) else { continue };
            waiter.hold_ends = now + self.policy.class(waiter.call.demand.class).backoff.hold;
            waiter.held_for = Some(Reason::Backoff);
            let mut key_grant = std::mem::take(&mut waiter.key_grant);
            match std::mem::replace(&mut waiter.state, State::Held) {
                State::Queued(queue) => {
                    let name = self.scheduler.queue(queue).and_then(|queue| queue.name.clone());
                    self.waiting.waiters.keep_flow_name(index, name);
                    self.scheduler.part(queue, index, &mut self.waiting.waiters, &mut self.resources);
                }
                State::Granted(grant) => {
                    self.undo(index, &grant);
                    key_grant = grant.key_grant;
                    self.waiting.count_in(index);
                }
                State::Held | State::Refused(_) | State::Unconnected => {}
            }
            self.end_key_grant(Some(key), key_grant);
            self.waiting.leave_key(index);
            self.hold(index, true);
        }
    }

    /// Moves a call that its key releases into its queue, as the trial or as a call of a healthy
    /// key, unless its wait is certain to fail.
    fn enter_queue(&mut self, index: WaiterIndex, retry: bool, now: Moment) {
        let Some(waiter) = self.waiting.get(index) else { return };
        let (call, hold_ends) = (waiter.call, waiter.hold_ends);
        let (id, needs) = self.queue_of(&call, retry, now);
        if let Err(cause) = self.turn_in_time(&call, &id, &needs, hold_ends, now) {
            return self.refuse(index, cause, now);
        }
        self.waiting.leave_key(index);
        let trial = call.key.filter(|_| retry).map_or(0, |key| self.table.begin_trial(KeyId::from(&key)));
        let alone = self.begin_write(&call);
        let Some(waiter) = self.waiting.get_mut(index) else { return };
        (waiter.key_grant.trial, waiter.key_grant.alone) = (trial, alone);
        let unneeded = if retry { None } else { waiter.key_grant.reserved.take() };
        self.end_key_grant(None, KeyGrant::of(unneeded));
        let name = self.waiting.waiters.take_flow_name(index);
        self.queue_up(index, (id, needs), name, now);
    }

    /// Takes back a granted call that was not sent. Its tokens and slot have been given back
    /// already.
    pub(super) fn come_back(&mut self, call: Call, grant: &Grant, now: Moment) -> Ticket {
        let hold_ends = now + self.class(&call).backoff.hold;
        let mut waiter = Waiter::new(call, grant.key_grant, self.ends(&call), hold_ends);
        waiter.sequence = grant.sequence;
        let index = self.waiting.waiters.insert(waiter);
        let ticket = self.waiting.ticket(index);
        if self.is_exempt(&call) {
            let grant = self.exempt_grant();
            self.conclude(index, State::Granted(Box::new(grant)));
            return ticket;
        }
        self.waiting.count_in(index);
        let key = call.key.as_ref().map(KeyId::from);
        let view = call.key.and_then(|key| self.keys().view(&key, now));
        let is_trial = key.is_some_and(|key| self.table.is_trial(key, grant.key_grant.trial));
        let held = view.is_some_and(|view| !is_trial || view.state.ready_at > now);
        let (kept, ended) = match (held, is_trial) {
            (true, _) => (KeyGrant::default(), grant.key_grant),
            (false, true) => (grant.key_grant, KeyGrant::default()),
            // The place of the one write is kept.
            (false, false) => (
                KeyGrant { alone: grant.key_grant.alone, ..KeyGrant::default() },
                KeyGrant { alone: false, ..grant.key_grant },
            ),
        };
        self.end_key_grant(key, ended);
        if let Some(waiter) = self.waiting.get_mut(index) {
            waiter.key_grant = kept;
            waiter.held_for = held.then_some(Reason::Backoff);
        }
        if held {
            self.hold(index, true);
            return ticket;
        }
        let (id, needs) = self.queue_of(&call, is_trial, now);
        let queue = self.scheduler.open(id, &needs, || None, &mut self.resources);
        self.scheduler.note_stopped(queue, now, Reason::Slot);
        self.join_queue(queue, index, true, now);
        ticket
    }

    /// Refuses a call whose time at the key stage is over.
    pub(super) fn hold_is_over(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.waiting.get(index) else { return };
        let (call, reserved) = (waiter.call, waiter.key_grant.reserved);
        let busy = self.waits_for_write(index);
        let at_key = match call.key.and_then(|key| Some((KeyId::from(&key), self.keys().view(&key, now)?))) {
            Some((key, view)) => {
                let tried = view.trial != 0 || self.waiting.first_held(key) != Some(index);
                AtKey::failing(view.state, tried, busy, self.token_at(&call, &view.state, reserved, now), now)
            }
            None if busy => AtKey::healthy(true, now),
            None => return self.work.dirty_keys.extend(call.key.as_ref().map(KeyId::from)),
        };
        let cause = self.hold_over(&call, &at_key, now);
        self.refuse(index, cause, now);
    }

    /// Step 5, `per_key`: its object was called more often than its class lets one be called. A
    /// call that passes has taken its object's token, whatever becomes of it. One whose key fails
    /// takes none, because its backoff is slower, and neither does one whose body tells its object.
    #[inline(never)]
    pub(super) fn per_key(&mut self, arrival: &Arrival<'_>, now: Moment) -> Result<(), Cause> {
        let class = self.policy.classes.get(usize::from(arrival.class.0));
        let pace = class.and_then(|class| class.per_key).filter(|per_key| per_key.enforce);
        let Some(pace) = pace.and_then(|per_key| per_key.pace(arrival.reads)) else { return Ok(()) };
        let known = arrival.key.filter(|key| !arrival.key_in_body && !key.is_collection_read());
        let Some(key) = known else { return Ok(()) };
        if self.keys().view(&key, now).is_some() {
            return Ok(());
        }
        let taken = self.objects.take(self.counted_as(&key, arrival), pace, now);
        taken.map_err(|retry_at| Cause::new(Reason::PerKey, retry_at))
    }

    /// Returns the number under which the object of a call is counted for its class.
    pub(super) fn counted_as(&self, key: &Key, arrival: &Arrival<'_>) -> u64 {
        let serial = self.serials.get(arrival.class).copied().unwrap_or(u32::MAX);
        in_class(key.object, serial, arrival.reads)
    }

    /// True if at most one call like this one may be past the key stage.
    pub(super) fn goes_alone(&self, call: &Call) -> bool {
        self.policy.one_at_a_time && call.write && call.key.is_some()
    }

    /// True if a held call is a write and another write of its key is on its way.
    fn waits_for_write(&self, index: WaiterIndex) -> bool {
        let Some(call) = self.waiting.get(index).map(|waiter| &waiter.call) else { return false };
        self.goes_alone(call) && call.key.as_ref().is_some_and(|key| self.writes.contains(&KeyId::from(key).written()))
    }

    /// Records a call as the one write of its key, if that matters.
    fn begin_write(&mut self, call: &Call) -> bool {
        let key = call.key.as_ref().map(KeyId::from).filter(|_| self.goes_alone(call));
        key.is_some_and(|key| {
            let is_only = self.writes.insert(key.written());
            debug_assert!(is_only, "one write at a time");
            is_only
        })
    }

    /// Gives a call that passes its key what it gets there.
    #[inline]
    pub(super) fn begin_key_grant(&mut self, call: &Call, at_key: &AtKey, now: Moment) -> KeyGrant {
        if at_key.state.is_none() && !self.policy.one_at_a_time {
            return KeyGrant::default();
        }
        self.take_key(call, at_key, now)
    }

    /// Gives a call the trial, the place of the one write, and a reserved retry token.
    #[inline(never)]
    fn take_key(&mut self, call: &Call, at_key: &AtKey, now: Moment) -> KeyGrant {
        let key = call.key.as_ref().filter(|_| at_key.state.is_some());
        let trial = key.map_or(0, |key| self.table.begin_trial(KeyId::from(key)));
        KeyGrant { trial, reserved: self.reserve(at_key.reserve, now), alone: self.begin_write(call) }
    }

    /// Returns the moment from which a held call may have a retry token: the one that is reserved
    /// for it, or one that is not kept for another key.
    pub(super) fn token_at(
        &mut self,
        call: &Call,
        key: &KeyState,
        reserved: Option<Reserved>,
        now: Moment,
    ) -> Option<Moment> {
        reserved.map(|reserved| reserved.at).or_else(|| self.gives_way_until(call, key, now))
    }

    /// Returns the moment until which a trial of a key leaves the last token of a retry bucket to
    /// another key, which has been tried less often and not for longer. Without it the order in
    /// which a controller tries its objects would decide: if the same come at each token, these
    /// alone are tried, and their backoff becomes longer than the outage.
    #[inline]
    pub(super) fn gives_way_until(&mut self, call: &Call, key: &KeyState, now: Moment) -> Option<Moment> {
        // As nearly always: a key that is tried during its backoff.
        if key.ready_at > now { None } else { self.last_token_kept_until(call, key, now) }
    }

    #[inline(never)]
    fn last_token_kept_until(&mut self, call: &Call, key: &KeyState, now: Moment) -> Option<Moment> {
        if !self.is_metered(call) || self.policy.queue.combine != Combine::Sequential {
            return None;
        }
        let bucket = self.resources.retry_bucket(&call.demand, now)?;
        self.resources.buckets.get(bucket)?.last_token_kept_until(key, now)
    }

    /// Notes that a call is refused for want of a retry token, if that is the cause. Its key has no
    /// chance to fail again, so its time to be forgotten runs from now: otherwise objects that are
    /// tried less often than that would come back as healthy, and no retry bucket would hold them.
    #[inline]
    pub(super) fn note_passed_over(&mut self, call: &Call, cause: &Cause, now: Moment) {
        if cause.reason == Reason::RetryBucket && !self.work.supposes {
            self.pass_over(call, now);
        }
    }

    #[inline(never)]
    fn pass_over(&mut self, call: &Call, now: Moment) {
        let Some(key) = call.key else { return };
        let Some(view) = self.keys().view(&key, now) else { return };
        self.table.keep(KeyId::from(&key), now + self.class(call).backoff.forget_after);
        if let Some(bucket) = self.resources.retry_bucket(&call.demand, now) {
            self.resources.buckets.pass_over(bucket, view.state);
        }
    }

    /// True if a retry token is reserved when the call arrives instead of taken when it leaves.
    #[inline]
    pub(super) fn reserves(&self, call: &Call) -> bool {
        self.is_metered(call) && self.policy.queue.combine == Combine::MaxOf
    }

    /// True if a call takes tokens.
    #[inline]
    fn is_metered(&self, call: &Call) -> bool {
        call.demand.lasts != Lasts::Long || self.class(call).meter_long_running
    }

    pub(super) fn reserve(&mut self, bucket: Option<BucketId>, now: Moment) -> Option<Reserved> {
        let bucket = bucket?;
        let (at, number) = self.resources.buckets.reserve(bucket, now);
        Some(Reserved { bucket, number, at })
    }
}
