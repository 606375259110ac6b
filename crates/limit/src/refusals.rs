//! The checks refusing calls, in the order of docs/internals/design.md ("The order of
//! refusals").
//!
//! The first check that fails decides the reason. The checks apply to arriving calls, and again
//! where the situation of a waiting call changes. A call is refused if its wait is certain to fail
//! (P8).
//!
//! Some checks are elsewhere, because they also count calls: step 5, `per_key`, is at the key
//! stage, and the limits on waiting calls (`queue_full`, `bytes_full`) are beside their counters.

use std::time::Duration;

use super::{AtKey, CallFacts, Cause, MinWait, QueueIndex, QueueKey, Queues, Reason, Requirements, Resources, Rules};
use crate::moment::Moment;

/// What the checks read to predict a call's wait: limits, queues and resources at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook<'a> {
    rules: &'a Rules,
    queues: &'a Queues,
    resources: &'a Resources,
    now: Moment,
}

// === impl Outlook ===

impl<'a> Outlook<'a> {
    #[inline]
    pub(crate) fn new(rules: &'a Rules, queues: &'a Queues, resources: &'a Resources, now: Moment) -> Self {
        Self { rules, queues, resources, now }
    }

    /// Step 6, `backoff`: refuses a call if the backoff of its key ends later than the call may
    /// wait for its key. The reason is `retry_bucket` if the call's reserved token comes too late,
    /// and `deadline` if only the client's own deadline is too short.
    #[inline]
    pub(crate) fn backoff(&self, call: &CallFacts, at_key: &AtKey, hold_ends: Moment) -> Result<(), Cause> {
        let longest = hold_ends.min(self.rules.longest_wait(call));
        if call.patient || at_key.earliest <= longest.min(call.half_time) {
            return Ok(());
        }
        let reason = if at_key.earliest <= longest { Reason::Deadline } else { at_key.later };
        Err(Cause { of_key: true, ..Cause::new(reason, at_key.earliest) })
    }

    /// Step 6 again, for a call already waiting for its key. With `slow_refusals` it is not refused
    /// before the end of its `hold`.
    pub(crate) fn held_backoff(&self, call: &CallFacts, at_key: &AtKey, hold_ends: Moment) -> Result<(), Cause> {
        if self.rules.holds_on(hold_ends, self.now) { Ok(()) } else { self.backoff(call, at_key, hold_ends) }
    }

    /// Steps 7 and 15: returns the reason to refuse a call after the longest allowed wait for its
    /// key. It is `trial` or `one_at_a_time` if another call of the key is in progress, otherwise
    /// `retry_bucket` or `backoff`.
    pub(crate) fn hold_over(&self, call: &CallFacts, at_key: &AtKey) -> Cause {
        let reason = at_key.reason();
        let after_trial = call.key.zip(at_key.state).filter(|_| reason == Reason::Trial).map(|(key, state)| {
            self.now + self.rules.class(call).backoff.delay_of(&key, state.failures.saturating_add(1))
        });
        // The end of another write is unknown, so the earliest useful moment is now.
        let retry_at = at_key.earliest.max(after_trial.unwrap_or(self.now));
        Cause::new(reason, retry_at)
    }

    /// Steps 8 and 16, `pause`: refuses a call if a pause ends too late for it. The reason is
    /// `deadline` if only the client's own deadline is too short.
    pub(crate) fn pause(&self, call: &CallFacts) -> Result<(), Cause> {
        let until = self.resources.paused_until(&call.demand, self.now);
        let Some(until) = until.filter(|until| *until > self.rules.ends(call) && !call.patient) else { return Ok(()) };
        let reason = if until <= self.rules.longest_wait(call) { Reason::Deadline } else { Reason::Pause };
        Err(Cause::new(reason, until))
    }

    /// Steps 9 and 10: refuses a call that would get its turn or its token too late at the end of
    /// its queue.
    pub(crate) fn turn_in_time(
        &self,
        call: &CallFacts,
        id: &QueueKey,
        needs: &Requirements,
        token_by: Moment,
    ) -> Result<(), Cause> {
        if call.patient {
            return Ok(());
        }
        let min_wait = self.queues.scheduler().min_wait(id, needs, self.resources, self.now);
        self.retry_bucket(call, needs, &min_wait, token_by)?;
        self.too_late(call, &min_wait)
    }

    /// Step 9, `retry_bucket`: refuses a retry if its token comes later than `token_by`.
    fn retry_bucket(
        &self,
        call: &CallFacts,
        needs: &Requirements,
        min_wait: &MinWait,
        token_by: Moment,
    ) -> Result<(), Cause> {
        let at = min_wait.retry_at.filter(|_| self.rules.policy().retry_bucket.is_some());
        let late = at.filter(|at| *at > token_by.min(self.rules.ends(call)));
        // Where retries succeed, a refusal would only teach the controller to come later.
        let late = late.filter(|_| !self.resources.retries_are_open(&needs.charges));
        late.map_or(Ok(()), |at| Err(Cause::new(Reason::RetryBucket, at)))
    }

    /// Step 10: refuses a call that is certain not to get its turn in time. The reason is
    /// `deadline` if `max_wait` alone would have been enough, else `pause`, `bucket`,
    /// `class_bucket` or `slot`.
    fn too_late(&self, call: &CallFacts, min_wait: &MinWait) -> Result<(), Cause> {
        let ends = self.rules.ends(call);
        let reason = match min_wait.at {
            at if at <= ends => return Ok(()),
            at if at <= self.rules.longest_wait(call) => Reason::Deadline,
            _ if self.resources.paused_until(&call.demand, self.now).is_some_and(|until| until > ends) => Reason::Pause,
            _ => min_wait.reason,
        };
        Err(Cause::new(reason, min_wait.at))
    }

    /// Step 12: refuses a call that may not wait at all, with the cause `stop`. For any other call,
    /// returns the end of its wait.
    pub(crate) fn may_wait(&self, call: &CallFacts, needs: &Requirements, stop: Cause) -> Result<Moment, Cause> {
        let ends = self.rules.ends(call);
        if ends > self.now {
            return Ok(ends);
        }
        let needs_room = self.resources.blocked_but_for_room(needs, call.demand.class, self.now).is_none();
        if needs_room && call.half_time > self.now {
            // A connection being made is not a limit: otherwise a gate that never holds calls would
            // never make one, or would refuse the first call.
            return Ok(call.half_time.min(self.now + CONNECTING));
        }
        Err(stop)
    }

    /// Step 17: returns the reason to refuse a call after the longest allowed wait in its queue.
    /// The call may retry when a new call at the end of that queue would be sent.
    pub(crate) fn wait_over(&self, queue: QueueIndex) -> Cause {
        let scheduler = self.queues.scheduler();
        let Some((found, group)) = scheduler.queue(queue).zip(scheduler.group_of(queue)) else {
            return Cause::new(Reason::Bucket, self.now);
        };
        let block = self.resources.blocked(&group.needs, group.class, self.now);
        let reason = block.map_or_else(|| scheduler.stopped(queue), |block| block.reason);
        let min_wait = scheduler.min_wait(&found.id, &group.needs, self.resources, self.now);
        Cause::new(reason, min_wait.at)
    }
}

/// The longest wait for a connection if calls may wait for nothing else. A failed connection
/// attempt ends it sooner.
const CONNECTING: Duration = Duration::from_secs(10);
