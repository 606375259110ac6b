//! What an answer means for others than its key: the upstream asks for a pause, a call succeeds after one, or the upstream throttles.

use super::{
    limiter::Limiter,
    pauses::Origin,
    permit::Receipt,
    policy::Lane,
    sweep::{FROM_FIRST, Sweep},
    verdict::Reason,
    verdict::Refusal,
    waiter::{Call, State},
};
use crate::{
    api::{Answer, Outcome, Pause},
    moment::Moment,
};

// === impl Limiter ===

impl Limiter {
    /// Ends every pause now; says how many there were.
    pub fn lift_pauses(&mut self, now: Moment) -> usize {
        let now = self.catch_up(now);
        let lifted = self.supply.pauses.lift(now);
        self.keys().listen(false);
        self.begin_sweep(Sweep::Unpark { from: FROM_FIRST });
        self.run_turns(now);
        lifted
    }

    /// What an answer means beyond its key.
    pub(super) fn heed(&mut self, of: &Receipt, answer: Answer, now: Moment) {
        let (class, credential) = (self.class_of(of.call().serial), of.call().credential);
        let origin = Origin { class, credential, left: of.grant().number };
        if answer.throttled {
            self.slow_down(of, now);
        }
        // An exempt call passes every pause, so that its success says nothing of one.
        let passes = self.policy.classes.get(class).is_some_and(|class| class.lane == Lane::Exempt);
        if answer.outcome == Outcome::Success && !passes && self.supply.pauses.any_grows() {
            self.supply.pauses.succeeded(origin);
            self.keys().listen(self.supply.pauses.any_grows());
        }
        // The last call of a quota succeeds, and asks for a pause.
        if let Some(pause) = answer.pause {
            self.pause(pause, origin, now);
        }
    }

    /// When the pauses of a call are over, if they are not.
    pub(super) fn paused_until(&self, call: &Call, now: Moment) -> Option<Moment> {
        let pauses = &self.supply.pauses;
        let until = pauses.any(now).then(|| pauses.ends(call.class, pauses.own(call.credential)).all());
        until.filter(|until| *until > now)
    }

    /// The refusal of a call whose pause ends too late for it.
    pub(super) fn paused_in_vain(&self, call: &Call, now: Moment) -> Option<Refusal> {
        let until = self.paused_until(call, now).filter(|until| *until > self.ends(call) && !call.patient)?;
        let in_time = until <= call.arrived + self.policy.queue.max_wait;
        let reason = if in_time { Reason::Deadline } else { Reason::Pause };
        Some(Refusal { reason, retry_at: until, waited: now - call.arrived, key: None })
    }

    /// A granted call that nobody has claimed goes back to its place if a pause has begun meanwhile.
    pub(super) fn stop_if_paused(&mut self, index: u32, now: Moment) {
        let Some(waiter) = self.waiters.get(index) else { return };
        let call = waiter.call;
        let is_metered = matches!(&waiter.state, State::Granted(grant) if grant.needs.is_some());
        if !is_metered || self.paused_until(&call, now).is_none() {
            return;
        }
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        let State::Granted(grant) = std::mem::replace(&mut waiter.state, State::Held) else { return };
        waiter.pass = grant.pass;
        self.undo(index, &grant);
        let (id, needs) = self.queue_of(&call, grant.pass.trial != 0, now);
        let queue = self.lanes.open(id, &needs, || None, &mut self.supply);
        self.lanes.note_stopped(queue, now, Reason::Pause);
        self.lanes.join(queue, index, true, &mut self.waiters);
        self.start_waiting(index);
        self.set_timer(index);
        if let Some(Refusal { reason, retry_at, .. }) = self.paused_in_vain(&call, now) {
            self.refuse(index, reason, retry_at, None, now);
        }
        self.run(now);
    }

    /// Every bucket that the call took a token of gives way.
    fn slow_down(&mut self, of: &Receipt, now: Moment) {
        let charges = of.grant().needs.iter().flat_map(|needs| needs.charges.iter().map(|charge| charge.bucket));
        let paid = of.grant().pass.paid.map(|(bucket, ..)| bucket);
        for bucket in charges.chain(paid) {
            self.supply.buckets.throttled(bucket, of.grant().number, now);
        }
    }

    fn pause(&mut self, pause: Pause, origin: Origin, now: Moment) {
        let leaves = self.supply.buckets.takes();
        let until = self.supply.pauses.begin(pause, origin, leaves, now);
        self.keys().listen(self.supply.pauses.any_grows());
        // Whoever waits and now cannot make it is told so. A wait that ends later than this one may still be worth it.
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
