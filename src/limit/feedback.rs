//! Applies the outcome of a call: to its key, to the calls held for that key, to pauses and to the
//! rates of buckets.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use super::{
    call::{Call, KeyGrant},
    keys::{
        id::KeyId,
        table::{Failure, Recorded},
    },
    limiter::Limiter,
    permit::Receipt,
    policy::{Lane, Strategy},
    queue::{
        waiter::State,
        walk::{FROM_FIRST, Sweep},
    },
    refusal::{Reason, Refusal, Why},
    resources::pauses::Origin,
};
use crate::{
    api::{Answer, Gone, Key, Outcome, Pause},
    moment::Moment,
};

// === impl Limiter ===

impl Limiter {
    /// Records the outcome of a call. `key` replaces the receipt's key (for a name that is known
    /// only from the body). `name` is called if the key starts to fail.
    #[expect(clippy::needless_pass_by_value, reason = "a receipt is settled once: it is used up")]
    pub fn finish(
        &mut self,
        receipt: Receipt,
        answer: Answer,
        key: Option<Key>,
        name: &dyn Fn() -> String,
        now: Moment,
    ) {
        let now = self.catch_up(now);
        let tried = receipt.call().key.as_ref().map(KeyId::from);
        // The token reserved on arrival stays spent: only the key's part of the grant ends.
        let trial = KeyGrant { paid: None, ..receipt.grant().key_grant };
        self.feed_back(&receipt, answer, now);
        if let Some(key) = key.or_else(|| receipt.key()) {
            self.learn(key, receipt.call().serial, receipt.grant().left, answer, name, now);
        }
        self.end_key_grant(tried, trial);
        self.dispatch(now);
    }

    fn learn(&mut self, key: Key, serial: u32, left: u64, answer: Answer, name: &dyn Fn() -> String, now: Moment) {
        let id = KeyId::from(&key);
        let after = match answer.outcome {
            Outcome::Abandoned | Outcome::Neutral => return self.part_with(id, answer.gone, now),
            Outcome::Success => {
                self.table.forget(id, Some(Why::Recovered));
                self.dirty_keys.push(id);
                return self.part_with(id, answer.gone, now);
            }
            Outcome::Failure => None,
            Outcome::Throttled { after } => Some(after),
        };
        let class = &self.policy.classes[self.class_of(serial)];
        if class.lane == Lane::Exempt || class.backoff.strategy == Strategy::Off {
            return;
        }
        let failure = Failure { key, backoff: &class.backoff, after, status: answer.status, left };
        if self.table.record(&failure, name, now, &mut self.dirty_keys) == Recorded::Changed {
            self.recall(id, now);
            self.dirty_keys.push(id);
        }
    }

    /// Lets go what is remembered of what is gone.
    fn part_with(&mut self, id: KeyId, gone: Gone, now: Moment) {
        match gone {
            Gone::Nothing => {}
            Gone::Key => self.table.part_with(id, now, &mut self.dirty_keys),
            Gone::Object => self.table.part_with_object(id.object, now, &mut self.dirty_keys),
        }
    }

    /// Ends every pause now; says how many there were.
    pub fn lift_pauses(&mut self, now: Moment) -> usize {
        let now = self.catch_up(now);
        let lifted = self.resources.pauses.lift(now);
        self.keys().listen(false);
        self.begin_sweep(Sweep::Unpark { from: FROM_FIRST });
        self.dispatch_turns(now);
        lifted
    }

    /// Applies what an answer means beyond its key.
    pub(super) fn feed_back(&mut self, of: &Receipt, answer: Answer, now: Moment) {
        let (class, credential) = (self.class_of(of.call().serial), of.call().credential);
        let origin = Origin { class, credential, left: of.grant().number };
        if answer.throttled {
            self.slow_down(of, now);
        }
        // An exempt call ignores every pause, so its success says nothing about one.
        let passes = self.policy.classes.get(class).is_some_and(|class| class.lane == Lane::Exempt);
        if answer.outcome == Outcome::Success && !passes && self.resources.pauses.any_grows() {
            self.resources.pauses.succeeded(origin);
            self.keys().listen(self.resources.pauses.any_grows());
        }
        // The last call of a quota may succeed and still ask for a pause.
        if let Some(pause) = answer.pause {
            self.pause(pause, origin, now);
        }
    }

    /// Returns the moment at which the call's pauses are over, or `None` if they are.
    pub(super) fn paused_until(&self, call: &Call, now: Moment) -> Option<Moment> {
        let pauses = &self.resources.pauses;
        let until = pauses.any(now).then(|| pauses.ends(call.class, pauses.own(call.credential)).all());
        until.filter(|until| *until > now)
    }

    /// Returns the refusal of a call whose pause ends too late for it.
    pub(super) fn paused_in_vain(&self, call: &Call, now: Moment) -> Option<Refusal> {
        let until = self.paused_until(call, now).filter(|until| *until > self.ends(call) && !call.patient)?;
        let in_time = until <= call.arrived + self.policy.queue.max_wait;
        let reason = if in_time { Reason::Deadline } else { Reason::Pause };
        Some(Refusal { reason, retry_at: until, waited: now - call.arrived, key: None })
    }

    /// Puts a granted but unclaimed call back into its queue if a pause has begun meanwhile.
    pub(super) fn stop_if_paused(&mut self, index: u32, now: Moment) {
        let Some(waiter) = self.waiters.get(index) else { return };
        let call = waiter.call;
        let is_metered = matches!(&waiter.state, State::Granted(grant) if grant.needs.is_some());
        if !is_metered || self.paused_until(&call, now).is_none() {
            return;
        }
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        let State::Granted(grant) = std::mem::replace(&mut waiter.state, State::Held) else { return };
        waiter.key_grant = grant.key_grant;
        self.undo(index, &grant);
        let (id, needs) = self.queue_of(&call, grant.key_grant.trial != 0, now);
        let queue = self.scheduler.open(id, &needs, || None, &mut self.resources);
        self.scheduler.note_stopped(queue, now, Reason::Pause);
        self.scheduler.join(queue, index, true, &mut self.waiters);
        self.start_waiting(index);
        self.set_timer(index);
        if let Some(Refusal { reason, retry_at, .. }) = self.paused_in_vain(&call, now) {
            self.refuse(index, reason, retry_at, None, now);
        }
        self.dispatch(now);
    }

    /// Slows down every bucket from which the call took a token.
    fn slow_down(&mut self, of: &Receipt, now: Moment) {
        let charges = of.grant().needs.iter().flat_map(|needs| needs.charges.iter().map(|charge| charge.bucket));
        let paid = of.grant().key_grant.paid.map(|(bucket, ..)| bucket);
        for bucket in charges.chain(paid) {
            self.resources.buckets.throttled(bucket, of.grant().number, now);
        }
    }

    fn pause(&mut self, pause: Pause, origin: Origin, now: Moment) {
        let leaves = self.resources.buckets.takes();
        let until = self.resources.pauses.begin(pause, origin, leaves, now);
        self.keys().listen(self.resources.pauses.any_grows());
        // Waiting calls whose wait ends before the pause are refused. A later end may still be worth
        // the wait.
        if let Some(until) = until.filter(|_| !self.timers.is_empty()) {
            self.begin_sweep(Sweep::Paused { from: FROM_FIRST, until });
        }
    }

    /// Refuses a call in a queue whose pause ends too late for it.
    pub(super) fn refuse_if_paused_in_vain(&mut self, index: u32, now: Moment) {
        let queued = self.waiters.get(index).filter(|waiter| matches!(waiter.state, State::Queued(_)));
        let call = queued.map(|waiter| waiter.call);
        if let Some(Refusal { reason, .. }) = call.and_then(|call| self.paused_in_vain(&call, now)) {
            let retry_at = self.end_of_its_queue(index, now);
            self.refuse(index, reason, retry_at, None, now);
        }
    }
}
