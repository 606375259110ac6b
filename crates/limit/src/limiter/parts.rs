//! The parts of a limiter, and the operations on one waiting call that concern several of them.

use super::Parts;
use crate::moment::Moment;
use crate::{
    Ask, CallFacts, Cause, Charges, DroppedRequests, Grant, KeyGrant, KeyId, KeyStage, Outlook, Permit, Policy,
    QueuePlace, Queues, Reason, Receipt, Resources, Rules, Slot, WaiterIndex, WaiterState, Withdrawal, Work,
};

// === impl Parts ===

impl Parts {
    pub(crate) fn new(policy: Policy, seed: u64, now: Moment) -> Self {
        Self {
            stage: KeyStage::new(policy.max_keys, seed),
            resources: Resources::new(&policy, seed, now),
            queues: Queues::new(&policy),
            rules: Rules::new(policy),
            work: Work { idle_since: now, ..Work::default() },
            dropped_requests: DroppedRequests::new(),
        }
    }

    /// Returns what the checks for refusals need to predict the wait of a call.
    #[inline]
    pub(crate) fn outlook(&self, now: Moment) -> Outlook<'_> {
        Outlook::new(&self.rules, &self.queues, &self.resources, now)
    }

    /// Returns the requests due now to the stores of shared buckets.
    pub(crate) fn take_asks(&mut self, now: Moment) -> Vec<Ask> {
        let longest = self.rules.policy().queue.max_wait;
        // More tokens than calls that could leave while they last would only expire.
        let slots = self.resources.free_slots();
        let queues = &self.queues;
        let scheduler = self.queues.scheduler();
        let Resources { buckets, pauses, .. } = &mut self.resources;
        let ends = |index| queues.get(index).map(|waiter| waiter.call.half_time.min(waiter.call.arrived + longest));
        let asks = buckets.asks(|| scheduler.waiting_for_shared(pauses, slots, ends, now), now);
        buckets.set_member_timer(now);
        asks
    }

    /// Returns a call's queue, and the tokens, slots and connection the call needs.
    pub(crate) fn place_of(&mut self, call: &CallFacts, retry: bool, now: Moment) -> QueuePlace {
        let needs = self.resources.requirements(self.rules.policy(), &call.demand, retry, now);
        QueuePlace { id: self.rules.queue_key(call, retry), needs, stopped: None }
    }

    /// Puts a call at the end of its queue.
    pub(crate) fn queue_up(&mut self, index: WaiterIndex, mut place: QueuePlace, name: Option<Box<str>>, now: Moment) {
        place.stopped = self.resources.blocked(&place.needs, place.id.class, now).map(|block| block.reason);
        self.queues.join(index, &place, || name, &self.rules, &mut self.resources, now);
    }

    /// Makes a call wait for its key: behind the calls already waiting for the key, or ahead of
    /// them if `first`.
    pub(crate) fn hold(&mut self, index: WaiterIndex, first: bool) {
        self.queues.hold(index, first, &self.rules, &mut self.work);
    }

    /// Returns an empty grant, for an exempt call.
    pub(crate) fn exempt_grant(&mut self) -> Grant {
        let left = self.stage.table().failures();
        let number = self.resources.buckets.next_take();
        Grant { needs: None, number, left, key_grant: KeyGrant::default(), sequence: 0, waited: None }
    }

    /// Ends a call's wait with a result for the call's owner to claim.
    pub(crate) fn conclude(&mut self, index: WaiterIndex, state: WaiterState) {
        self.queues.conclude(index, state, &mut self.work);
    }

    /// Ends a call's wait with a refusal.
    pub(crate) fn refuse(&mut self, index: WaiterIndex, cause: Cause, now: Moment) {
        let Some(call) = self.queues.get(index).map(|waiter| waiter.call) else { return };
        self.note_passed_over(&call, &cause, now);
        let view = if cause.of_key { self.stage.view(&call, now) } else { None };
        self.withdraw(index);
        let cause = Cause { retry_at: cause.retry_at.max(now), ..cause };
        let refusal = cause.refusal(now - call.arrived, view.map(|view| view.state));
        self.conclude(index, WaiterState::Refused(Box::new(refusal)));
    }

    /// Records the refusal of a call for lack of a retry token, if that is the cause. Then the
    /// call's key is not forgotten too early.
    #[inline]
    pub(crate) fn note_passed_over(&mut self, call: &CallFacts, cause: &Cause, now: Moment) {
        if cause.reason == Reason::RetryBucket && !self.work.supposes {
            self.stage.pass_over(call, &self.rules, &mut self.resources, now);
        }
    }

    /// Removes a call from its queue, or from waiting for its key, and gives back its tokens and
    /// permissions. The call's record stays.
    pub(crate) fn withdraw(&mut self, index: WaiterIndex) {
        let withdrawn = self.queues.withdraw(index, &mut self.resources);
        let Some(Withdrawal { key, key_grant, grant }) = withdrawn else { return };
        if let Some(grant) = grant {
            self.undo(index, &grant);
        }
        self.end_key_grant(key, key_grant);
    }

    /// Gives back the tokens, slots and room of an admitted but unsent call.
    pub(crate) fn undo(&mut self, index: WaiterIndex, grant: &Grant) {
        let Some(needs) = &grant.needs else { return };
        let class = self.queues.get(index).map(|waiter| waiter.call.demand.class);
        self.resources.add_room(needs.group, 1);
        self.resources.give_back_tokens(needs, grant.number);
        self.resources.give_back_slot(needs.shares, class);
    }

    /// Revokes the permission a call got from its key.
    pub(crate) fn end_key_grant(&mut self, key: Option<KeyId>, key_grant: KeyGrant) {
        self.stage.end_grant(key, key_grant, &mut self.resources, &mut self.work);
    }

    /// Gives back the tokens and the slot of an unsent call. Returns its receipt.
    pub(crate) fn take_back(&mut self, permit: Permit) -> Receipt {
        let Permit { receipt, slot } = permit;
        if let Some(needs) = &receipt.grant().needs {
            self.resources.give_back_tokens(needs, receipt.grant().number);
        }
        self.give_back_slot(&slot);
        receipt
    }

    /// Gives back a permit with everything the call took, because the call will not be sent.
    pub(crate) fn retract(&mut self, permit: Permit) {
        let receipt = self.take_back(permit);
        let grant = receipt.grant();
        if let Some(needs) = &grant.needs {
            self.resources.add_room(needs.group, 1);
        }
        self.end_key_grant(receipt.call().key_id(), grant.key_grant);
    }

    pub(crate) fn give_back_slot(&mut self, slot: &Slot) {
        let class = self.rules.find_class(slot.serial, slot.class);
        self.resources.give_back_slot(slot.shares, class);
    }

    /// Admits a waiting call as if it were exempt.
    pub(crate) fn release_as_exempt(&mut self, index: WaiterIndex, now: Moment) {
        self.withdraw(index);
        let mut grant = self.exempt_grant();
        if let Some(waiter) = self.queues.get(index) {
            grant.waited = waiter.held_for.map(|reason| (reason, now - waiter.call.arrived));
        }
        self.conclude(index, WaiterState::Granted(Box::new(grant)));
    }

    /// Refuses the retries waiting for longer than `hold`, if a call has just `taken` their last
    /// token.
    pub(crate) fn refuse_expired_holds(&mut self, taken: &Charges, now: Moment) {
        for bucket in taken.of_retry() {
            let ready_at = self.resources.buckets.ready_at(bucket, now);
            if ready_at <= now || self.work.supposes {
                continue;
            }
            for ticket in std::mem::take(&mut self.work.expired_holds) {
                let Some(waiter) = self.queues.find(ticket) else { continue };
                let WaiterState::Queued(queue) = waiter.state else { continue };
                let group = self.queues.scheduler().group_of(queue);
                if self.queues.is_open(queue, &self.resources) {
                    self.queues.extend_hold(ticket.index, &self.rules, now);
                } else if group.is_some_and(|queue_group| queue_group.needs.charges.contains(bucket)) {
                    self.refuse(ticket.index, Cause::new(Reason::RetryBucket, ready_at), now);
                } else {
                    self.work.expired_holds.push(ticket);
                }
            }
        }
    }
}
