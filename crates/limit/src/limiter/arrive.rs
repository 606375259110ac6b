//! Arrivals: decides whether a call is sent at once, waits or is refused.
//!
//! No call overtakes a waiting call of its own queue (P5). The checks in `refusals` decide which
//! calls may not wait.

use std::time::Duration;

use super::Parts;
use crate::moment::Moment;
use crate::{
    Arrival, AtKey, Block, CallFacts, Cause, Grant, KeyGrant, Lane, Permit, QueueKey, QueuePlace, Reason, Requirements,
    Ticket, Turn, Verdict, Waiter, WaiterIndex, reserve,
};

// === impl Parts ===

impl Parts {
    /// Decides whether an arriving call is sent at once, waits or is refused.
    pub(crate) fn arrive(&mut self, arrival: &Arrival<'_>, now: Moment) -> Verdict {
        let call = self.rules.read(arrival, self.resources.pauses.predict(arrival.quota), now);
        // 5. An exempt call goes, and every call while a bypass is on.
        if self.rules.class(&call).lane == Lane::Exempt {
            return Verdict::Admit(Permit::new(call, self.exempt_grant()));
        }
        if self.rules.is_unusual()
            && let Some(verdict) = self.unusual(&call, arrival, now)
        {
            return verdict;
        }
        let Self { rules, stage, queues, resources, .. } = self;
        let at_key = stage.at_key(&call, rules, queues, resources, now);
        if !at_key.passes(now) {
            return match self.may_hold(&call, &at_key, now) {
                Ok(hold_ends) => Verdict::Wait(self.hold_on_arrival(call, arrival, &at_key, hold_ends, now)),
                Err(cause) => self.refuse_on_arrival(&call, &at_key, &cause, now),
            };
        }
        let needs = self.resources.requirements(self.rules.policy(), &call.demand, at_key.state.is_some(), now);
        let blocked = self.resources.blocked(&needs, call.demand.class, now);
        // The order of queues matters only if any call waits.
        if blocked.is_none() && self.queues.scheduler().waiting == 0 {
            return Verdict::Admit(self.admit(call, needs, &at_key, now));
        }
        self.pass_or_queue(call, arrival, &at_key, needs, blocked, now)
    }

    /// Decides about a call during a bypass, or if the rate of its object is too high.
    #[inline(never)]
    fn unusual(&mut self, call: &CallFacts, arrival: &Arrival<'_>, now: Moment) -> Option<Verdict> {
        if self.rules.is_bypassed() {
            return Some(Verdict::Admit(Permit::new(*call, self.exempt_grant())));
        }
        let cause = self.stage.per_key(arrival, &self.rules, now).err()?;
        Some(Verdict::Refuse(cause.refusal(Duration::ZERO, None)))
    }

    /// Admits a call without checking any limit. The call takes no token or slot, and its outcome
    /// is not remembered.
    pub(crate) fn admit_unmetered(&mut self, arrival: &Arrival<'_>, now: Moment) -> Permit {
        let call =
            CallFacts { key: None, ..self.rules.read(arrival, self.resources.pauses.predict(arrival.quota), now) };
        Permit::new(call, self.exempt_grant())
    }

    /// Steps 6 to 8 of the order of refusals: refuses a call that would wait too long for its key,
    /// or returns the moment until which it may wait for its key.
    #[inline]
    fn may_hold(&mut self, call: &CallFacts, at_key: &AtKey, now: Moment) -> Result<Moment, Cause> {
        let mut hold_ends = self.rules.hold_ends(call, now);
        let outlook = self.outlook(now);
        if let Err(cause) = outlook.backoff(call, at_key, hold_ends) {
            let refused_at = self.refused_at(call, now).filter(|_| cause.reason != Reason::Deadline);
            hold_ends = refused_at.ok_or(cause)?;
        }
        if hold_ends.min(self.rules.ends(call)) <= now {
            return Err(outlook.hold_over(call, at_key));
        }
        outlook.pause(call)?;
        self.queue_full(now)?;
        Ok(hold_ends)
    }

    fn hold_on_arrival(
        &mut self,
        call: CallFacts,
        arrival: &Arrival<'_>,
        at_key: &AtKey,
        hold_ends: Moment,
        now: Moment,
    ) -> Ticket {
        let key_grant = KeyGrant::of(reserve(at_key.reserve, &mut self.resources, now));
        let mut waiter = Waiter::new(call, key_grant, self.rules.ends(&call), hold_ends);
        waiter.held_for = Some(at_key.reason());
        let index = self.queues.start(waiter);
        self.queues.keep_flow_name(index, arrival.flow.name.to_string().into());
        let ticket = self.queues.ticket(index);
        self.hold(index, false);
        self.dispatch(now);
        ticket
    }

    /// Admits a call ahead of waiting calls with other needs, queues it, or refuses it. This is a
    /// separate function, so that it does not slow down calls that need not wait.
    #[inline(never)]
    fn pass_or_queue(
        &mut self,
        call: CallFacts,
        arrival: &Arrival<'_>,
        at_key: &AtKey,
        needs: Requirements,
        blocked: Option<Block>,
        now: Moment,
    ) -> Verdict {
        let id = self.rules.queue_key(&call, at_key.state.is_some());
        let is_new = self.queues.scheduler().find(&id).is_none();
        if blocked.is_none() && is_new && !self.work.behind {
            return Verdict::Admit(self.admit_past(call, needs, at_key, now));
        }
        self.resources.note_short(&needs, now);
        let reason = blocked.map_or(Reason::Bucket, |block| block.reason);
        let retry_at = blocked.map(|block| block.until).filter(|until| *until < Moment::MAX).unwrap_or(now);
        let refused_at = at_key.state.and_then(|_| self.refused_at(&call, now));
        let hold_ends = refused_at.unwrap_or_else(|| self.rules.hold_ends(&call, now));
        let waits = refused_at.is_some() && self.waits_for_trials(&needs, hold_ends, now);
        let ends = match self.may_queue(&call, &id, &needs, waits, Cause::new(reason, retry_at), now) {
            Ok(ends) => ends,
            Err(cause) => return self.refuse_on_arrival(&call, at_key, &cause, now),
        };
        let key_grant = self.stage.begin_grant(&call, at_key, &self.rules, &mut self.resources, now);
        let index = self.queues.start(Waiter::new(call, key_grant, ends, hold_ends));
        let name = || arrival.flow.name.to_string().into();
        if self.queues.is_moving() {
            self.queues.await_move(index, name(), &self.rules);
        } else {
            let place = QueuePlace { id, needs, stopped: is_new.then_some(reason) };
            self.queues.join(index, &place, || Some(name()), &self.rules, &mut self.resources, now);
        }
        Verdict::Wait(self.queues.ticket(index))
    }

    /// Steps 9 to 12 of the order of refusals: refuses a call, or returns the end of its wait in a
    /// queue.
    fn may_queue(
        &mut self,
        call: &CallFacts,
        id: &QueueKey,
        needs: &Requirements,
        waits: bool,
        stop: Cause,
        now: Moment,
    ) -> Result<Moment, Cause> {
        // A retry is not held for its tokens, however soon they come: where one worker has many
        // failing keys the bucket is always empty, and holding each retry until the next token
        // would leave the worker no time for anything else. It is held for a reserved token only, or
        // for as long as the call would take to fail.
        let token_by = if self.rules.reserves(call) { self.rules.hold_ends(call, now) } else { now };
        // During a reload's move the calls before it are not known yet: this is checked when it is
        // placed.
        if !self.queues.is_moving() && !waits {
            self.outlook(now).turn_in_time(call, id, needs, token_by)?;
        }
        self.queue_full(now)?;
        self.outlook(now).may_wait(call, needs, stop)
    }

    /// Admits a call while other calls wait, and refuses the retries waiting past their `hold` if
    /// the call took their last token.
    fn admit_past(&mut self, call: CallFacts, needs: Requirements, at_key: &AtKey, now: Moment) -> Permit {
        let taken = if self.work.expired_holds.is_empty() { None } else { Some(needs.charges.clone()) };
        let permit = self.admit(call, needs, at_key, now);
        if let Some(taken) = taken {
            self.refuse_expired_holds(&taken, now);
            self.dispatch_if_dirty(now);
        }
        permit
    }

    /// Admits a call and takes the resources it needs, whatever stops the waiting calls.
    fn admit(&mut self, call: CallFacts, mut needs: Requirements, at_key: &AtKey, now: Moment) -> Permit {
        let key_grant = self.stage.begin_grant(&call, at_key, &self.rules, &mut self.resources, now);
        let sequence = self.queues.next_sequence();
        let turn = Turn { now, at: now, there_since: None };
        let number = self.resources.take(&mut needs, call.demand.class, self.rules.cost(&call), turn);
        if self.rules.is_unusual() && !self.work.supposes {
            self.resources.pauses.depart(call.demand.class, call.demand.quota, now);
        }
        let left = self.stage.table().failures();
        let grant = Grant { needs: Some(needs), number, left, key_grant, sequence, waited: None };
        self.dispatch_if_dirty(now);
        Permit::new(call, grant)
    }

    /// Returns when to refuse a call of a failing key; `None` to refuse it at once, as in a
    /// preview.
    fn refused_at(&self, call: &CallFacts, now: Moment) -> Option<Moment> {
        if self.work.supposes { None } else { self.rules.refused_at(call, now) }
    }

    /// Refuses an arriving call.
    #[inline]
    fn refuse_on_arrival(&mut self, call: &CallFacts, at_key: &AtKey, cause: &Cause, now: Moment) -> Verdict {
        self.note_passed_over(call, cause, now);
        Verdict::Refuse(cause.refusal(Duration::ZERO, at_key.state))
    }

    /// Steps 8 and 11 of the order of refusals, `queue_full`: refuses a call if too many calls
    /// wait.
    fn queue_full(&mut self, now: Moment) -> Result<(), Cause> {
        if self.queues.waiting() < self.rules.policy().queue.max_waiting {
            return Ok(());
        }
        Err(Cause::new(Reason::QueueFull, self.dropped_requests.drop_one(now)))
    }

    /// Step 13 of the order of refusals, `bytes_full`: counts more bytes of a waiting call's body,
    /// and fails past the limit.
    pub(crate) fn bytes_full(&mut self, index: WaiterIndex, more: usize, now: Moment) -> Result<(), Cause> {
        if self.queues.add_bytes(index, more, self.rules.policy().queue.max_waiting_bytes) {
            return Ok(());
        }
        Err(Cause::new(Reason::BytesFull, self.dropped_requests.drop_one(now)))
    }
}
