//! New limits at run time: buckets keep their level, calls in flight their slots, waiting calls
//! their places (P11).
//!
//! Waiting calls hold a place, not a time, so there is nothing to convert. The new limits apply at
//! once. The queues are then rebuilt, a few calls at a time, in the order in which the calls
//! entered them; the new policy decides which queue a call is moved to. No call is sent before all
//! have been moved, so that none overtakes another. A call that arrives meanwhile waits behind them
//! if anything limits it. If a call hangs up or its key fails before the call has been moved, it is
//! moved first.

use super::Parts;
use crate::moment::Moment;
use crate::{Combine, KeyId, Lane, LateCall, MoveStep, Policy, WaiterIndex, Withdrawal};

// === impl Parts ===

impl Parts {
    /// Applies new limits, and begins to move the waiting calls to their new queues. Returns false
    /// if nothing changes.
    pub(crate) fn reconfigure(&mut self, policy: Policy, now: Moment) -> bool {
        debug_assert!(!policy.classes.is_empty(), "a policy has a class");
        if policy == *self.rules.policy() || policy.classes.is_empty() {
            return false;
        }
        // The driver waits for a move that is under way.
        while self.queues.is_moving() {
            self.move_some(now);
        }
        let origins = self.rules.adopt_classes(&policy);
        self.stage.carry_paces_over(&self.rules, &policy, &origins, now);
        self.resources.reconfigure(&policy, &origins, now);
        self.rules.replace(policy);
        self.stage.set_max_keys(self.rules.policy().max_keys);
        self.queues.begin_move(self.rules.policy(), origins);
        self.work.behind = true;
        true
    }

    /// Moves a few waiting calls to their new queues.
    pub(crate) fn move_some(&mut self, now: Moment) {
        match self.queues.next_move() {
            Some(MoveStep::Carry(index)) => self.carry_over(index, now),
            Some(MoveStep::Place(late)) => self.place_late(late, now),
            Some(MoveStep::Search) | None => {}
        }
    }

    /// Applies the new limits to a waiting call, unless done already: updates its class, the end of
    /// its wait, and its queue. A reserved retry token is given back if the new policy reserves
    /// none.
    pub(crate) fn carry_over(&mut self, index: WaiterIndex, now: Moment) {
        let Some(waiter) = self.queues.unmoved(index) else { return };
        let is_waiting = waiter.is_waiting();
        let retry = waiter.key_grant.trial != 0;
        let mut call = waiter.call;
        call.demand.class = self.rules.class_of(&call);
        call.serial = self.rules.serial(call.demand.class).unwrap_or(u32::MAX);
        let old = self.queues.renew(index, call, self.rules.ends(&call));
        if self.rules.policy().queue.combine == Combine::Sequential {
            let unneeded = self.queues.take_reservation(index);
            self.end_key_grant(None, unneeded);
        }
        if is_waiting && self.rules.class(&call).lane == Lane::Exempt {
            self.release_as_exempt(index, now);
            self.work.dirty_keys.extend(call.key_id());
            return self.queues.forget_key(index);
        }
        if let Some(old) = old {
            let place = self.place_of(&call, retry, now);
            self.queues.move_over(index, &place, old, &mut self.resources);
        } else {
            let is_first = |key: &KeyId| self.queues.first_held(*key) == Some(index);
            self.work.dirty_keys.extend(call.key_id().filter(is_first));
        }
        self.queues.set_timer(index, &self.rules);
    }

    /// Puts a late call into its queue: it arrived while other calls were being moved. Does nothing
    /// if the call's client has hung up or the call waits for its key.
    fn place_late(&mut self, late: LateCall, now: Moment) {
        let LateCall { ticket, flow_name } = late;
        let Some(waiter) = self.queues.find(ticket).filter(|waiter| waiter.is_unplaced()) else { return };
        let call = waiter.call;
        let place = self.place_of(&call, waiter.key_grant.trial != 0, now);
        if let Err(cause) = self.outlook(now).turn_in_time(&call, &place.id, &place.needs, now) {
            return self.refuse(ticket.index, cause, now);
        }
        self.queues.leave_key(ticket.index);
        self.queue_up(ticket.index, place, Some(flow_name), now);
    }

    /// Makes the queued calls of a key wait for the key again, because the key has failed. They
    /// wait ahead of the calls that came later.
    pub(crate) fn recall(&mut self, key: KeyId, now: Moment) {
        for index in self.queues.passed(key).into_iter().rev() {
            self.carry_over(index, now);
            self.queues.keep_queue_name(index);
            let recalled = self.queues.recall(index, &mut self.resources);
            let Some(Withdrawal { key_grant, grant, .. }) = recalled else { continue };
            if let Some(grant) = grant {
                self.undo(index, &grant);
            }
            self.end_key_grant(Some(key), key_grant);
            let Some(waiter) = self.queues.get(index) else { continue };
            let hold_ends = self.rules.hold_ends(&waiter.call, now);
            self.queues.hold_again(index, hold_ends, &self.rules, &mut self.work);
        }
    }
}
