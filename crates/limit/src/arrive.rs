//! Decides what happens to a call on arrival: it leaves at once, waits or is refused.
//!
//! This is the list of refusals. They stand here in the order in which a call meets them, each with
//! the number of its step in docs/internals/design.md ("The order of refusals"): the first that says no
//! decides the reason. Where the situation of a waiting call changes, the same functions decide. No
//! call passes those that wait already (P5), and a call whose wait is certain to fail is refused
//! (P8).

use std::time::Duration;

use super::{
    Arrival, Block, BucketId, Call, Cause, Demand, Grant, KeyGrant, KeyId, KeyState, Lane, Lasts, Limiter, MinWait,
    Permit, QueueIndex, QueueKey, Reason, Requirements, Strategy, Ticket, Turn, Verdict, Waiter, WaiterIndex,
};
use crate::moment::Moment;

/// A call at its key, and the causes that keep it there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtKey {
    /// The state of the key, if it is failing.
    pub(super) state: Option<KeyState>,
    /// True if another call of the failing key is the trial, or comes before this one.
    pub(super) tried: bool,
    /// True if another write of the key is on its way, or comes before this one.
    pub(super) busy: bool,
    /// The moment at which the delay is over, and the retry token there that is reserved on
    /// arrival.
    pub(super) earliest: Moment,
    /// The one of the two that comes later.
    pub(super) later: Reason,
    /// The retry bucket in which it reserves a token (`max_of`).
    pub(super) reserve: Option<BucketId>,
}

// === impl Limiter ===

impl Limiter {
    /// Decides about a call that arrives.
    pub fn arrive(&mut self, arrival: &Arrival<'_>, now: Moment) -> Verdict {
        let now = self.catch_up(now);
        let call = self.read(arrival, now);
        // 5. An exempt call goes, and every call while a bypass is on.
        if self.class(&call).lane == Lane::Exempt {
            return Verdict::Admit(Permit::new(call, self.exempt_grant()));
        }
        if self.is_unusual {
            if self.bypassed {
                return Verdict::Admit(Permit::new(call, self.exempt_grant()));
            }
            if let Err(cause) = self.per_key(arrival, now) {
                return Verdict::Refuse(cause.refusal(Duration::ZERO, None));
            }
        }
        let at_key = self.at_key(&call, now);
        if !at_key.passes(now) {
            return match self.may_hold(&call, &at_key, now) {
                Ok(()) => Verdict::Wait(self.hold_on_arrival(call, arrival, &at_key, now)),
                Err(cause) => self.refuse_on_arrival(&call, &at_key, &cause, now),
            };
        }
        let needs = self.resources.requirements(&self.policy, &call.demand, at_key.state.is_some(), now);
        let blocked = self.resources.blocked(&needs, call.demand.class, now);
        // The order of queues matters only if any call waits.
        if blocked.is_none() && self.scheduler.waiting == 0 {
            return Verdict::Admit(self.admit(call, needs, &at_key, now));
        }
        self.pass_or_queue(call, arrival, &at_key, (needs, blocked), now)
    }

    /// Admits a call without asking any limit: it takes nothing, and nothing is remembered of it.
    pub fn admit_unmetered(&mut self, arrival: &Arrival<'_>, now: Moment) -> Permit {
        let now = self.catch_up(now);
        let call = Call { key: None, ..self.read(arrival, now) };
        Permit::new(call, self.exempt_grant())
    }

    /// Reads an arrival. A class that does not exist is the default class.
    fn read(&self, arrival: &Arrival<'_>, now: Moment) -> Call {
        let exists = usize::from(arrival.class.0) < self.policy.classes.len();
        let class = if exists { arrival.class } else { self.policy.default_class() };
        let policy = self.policy.class(class);
        let forgetful = policy.lane == Lane::Exempt || policy.backoff.strategy == Strategy::Off;
        let alone = policy.lane != Lane::Exempt && self.policy.one_at_a_time && arrival.write;
        let Arrival { flow, credential, group, .. } = *arrival;
        let lasts = Lasts::new(arrival.long_running, arrival.lists_first);
        Call {
            demand: Demand { class, flow: flow.id, credential, group, lasts, cost: arrival.cost },
            serial: *self.serials.of(class),
            key: arrival.key.filter(|_| !forgetful || alone),
            write: arrival.write,
            patient: arrival.patient,
            arrived: now,
            half_time: arrival.timeout.map_or(Moment::MAX, |timeout| now + timeout / 2),
        }
    }

    /// Asks the key of a call.
    fn at_key(&mut self, call: &Call, now: Moment) -> AtKey {
        let Some(key) = &call.key else { return AtKey::healthy(false, now) };
        let (alone, id) = (self.goes_alone(call), KeyId::from(key));
        let busy = alone && self.writes.contains(&id.written());
        let Some(view) = self.keys().view(key, now) else {
            return AtKey::healthy(busy || alone && self.waiting.first_held(id).is_some(), now);
        };
        let reserve = if self.reserves(call) { self.resources.retry_bucket(&call.demand, now) } else { None };
        let reserved_at = reserve.map(|bucket| self.resources.buckets.ready_at(bucket, now));
        let token_at = reserved_at.or_else(|| self.gives_way_until(call, &view.state, now));
        let tried = view.trial != 0 || self.waiting.first_held(id).is_some();
        AtKey { reserve, ..AtKey::failing(view.state, tried, busy, token_at, now) }
    }

    /// Refuses a call that its key may not hold: the steps 6 to 8.
    #[inline]
    fn may_hold(&mut self, call: &Call, at_key: &AtKey, now: Moment) -> Result<(), Cause> {
        let hold_ends = now + self.class(call).backoff.hold;
        self.backoff(call, at_key, hold_ends)?;
        if hold_ends.min(self.ends(call)) <= now {
            return Err(self.hold_over(call, at_key, now));
        }
        self.pause(call, now)?;
        self.queue_full(now)
    }

    fn hold_on_arrival(&mut self, call: Call, arrival: &Arrival<'_>, at_key: &AtKey, now: Moment) -> Ticket {
        let (ends, hold_ends) = (self.ends(&call), now + self.class(&call).backoff.hold);
        let key_grant = KeyGrant::of(self.reserve(at_key.reserve, now));
        let mut waiter = Waiter::new(call, key_grant, ends, hold_ends);
        waiter.held_for = Some(at_key.reason());
        let index = self.waiting.start(waiter);
        self.waiting.waiters.keep_flow_name(index, Some(arrival.flow.name.to_string().into()));
        let ticket = self.waiting.ticket(index);
        self.hold(index, false);
        self.dispatch(now);
        ticket
    }

    /// Admits a call past those that wait for what does not stop it, queues it or refuses it.
    /// Apart, so that a call that need not wait has no more to carry than it uses.
    #[inline(never)]
    fn pass_or_queue(
        &mut self,
        call: Call,
        arrival: &Arrival<'_>,
        at_key: &AtKey,
        (needs, blocked): (Requirements, Option<Block>),
        now: Moment,
    ) -> Verdict {
        let id = self.queue_key(&call, at_key.state.is_some());
        let is_new = self.scheduler.find(&id).is_none();
        if blocked.is_none() && is_new && !self.is_behind() {
            return Verdict::Admit(self.admit_past(call, needs, at_key, now));
        }
        self.resources.note_short(&needs, now);
        let reason = blocked.map_or(Reason::Bucket, |block| block.reason);
        let ends = match self.may_queue(&call, &id, &needs, (blocked, reason), now) {
            Ok(ends) => ends,
            Err(cause) => return self.refuse_on_arrival(&call, at_key, &cause, now),
        };
        let (key_grant, hold_ends) = (self.begin_key_grant(&call, at_key, now), now + self.class(&call).backoff.hold);
        let index = self.waiting.start(Waiter::new(call, key_grant, ends, hold_ends));
        let name = || arrival.flow.name.to_string().into();
        if self.work.moving.is_some() {
            self.await_move(index, name());
        } else {
            let queue = self.scheduler.open(id, &needs, || Some(name()), &mut self.resources);
            if is_new {
                self.scheduler.note_stopped(queue, now, reason);
            }
            self.join_queue(queue, index, false, now);
        }
        Verdict::Wait(self.waiting.ticket(index))
    }

    /// Refuses a call that may not queue: the steps 9 to 12. Else returns the moment its wait ends.
    fn may_queue(
        &mut self,
        call: &Call,
        id: &QueueKey,
        needs: &Requirements,
        blocked: (Option<Block>, Reason),
        now: Moment,
    ) -> Result<Moment, Cause> {
        // A retry is not held for its tokens, however soon they come: where many keys fail under
        // one worker the bucket is always empty, and holding each retry until the next token would
        // leave the worker no time for anything else. Only tokens reckoned on arrival are held for.
        let token_by = if self.reserves(call) { now + self.class(call).backoff.hold } else { now };
        // During a reload's move the calls before it are not known yet: it is asked when it is
        // placed.
        if self.work.moving.is_none() {
            self.turn_in_time(call, id, needs, token_by, now)?;
        }
        self.queue_full(now)?;
        self.may_wait(call, needs, blocked, now)
    }

    /// Admits a call past waiting calls, some of which may wait for what it takes.
    fn admit_past(&mut self, call: Call, needs: Requirements, at_key: &AtKey, now: Moment) -> Permit {
        let taken = if self.work.expired_holds.is_empty() { None } else { Some(needs.charges.clone()) };
        let permit = self.admit(call, needs, at_key, now);
        if let Some(taken) = taken {
            self.refuse_expired_holds(&taken, now);
            self.dispatch_if_dirty(now);
        }
        permit
    }

    /// Admits a call that need not wait: everything that waits is stopped by something that does
    /// not stop this call.
    fn admit(&mut self, call: Call, mut needs: Requirements, at_key: &AtKey, now: Moment) -> Permit {
        let key_grant = self.begin_key_grant(&call, at_key, now);
        let sequence = self.waiting.next_sequence();
        let turn = Turn { now, at: now, there_since: None };
        let number = self.resources.take(&mut needs, (call.demand.class, self.cost(&call)), turn);
        let left = self.table.failures;
        let grant = Grant { needs: Some(needs), number, left, key_grant, sequence, waited: None };
        self.dispatch_if_dirty(now);
        Permit::new(call, grant)
    }
}

// === impl Limiter: the refusals, in their order ===

impl Limiter {
    /// Step 6, `backoff`: the delay of its key ends after its hold. `retry_bucket` if the token
    /// that is reserved on arrival comes later; `deadline` if only the client's own is too short.
    #[inline]
    pub(super) fn backoff(&self, call: &Call, at_key: &AtKey, hold_ends: Moment) -> Result<(), Cause> {
        let longest = hold_ends.min(self.longest_wait(call));
        if call.patient || at_key.earliest <= longest.min(call.half_time) {
            return Ok(());
        }
        let reason = if at_key.earliest <= longest { Reason::Deadline } else { at_key.later };
        Err(Cause { of_key: true, ..Cause::new(reason, at_key.earliest) })
    }

    /// Steps 7 and 15, `trial` or `one_at_a_time`: its hold is over, and another call of its key is
    /// the trial or the one write. Else `retry_bucket` or `backoff`.
    pub(super) fn hold_over(&self, call: &Call, at_key: &AtKey, now: Moment) -> Cause {
        let reason = at_key.reason();
        let after_trial = call
            .key
            .zip(at_key.state)
            .filter(|_| reason == Reason::Trial)
            .map(|(key, state)| now + self.class(call).backoff.delay_of(&key, state.failures.saturating_add(1)));
        // The end of another write is unknown, so the earliest useful moment is now.
        let retry_at = at_key.earliest.max(after_trial.unwrap_or(now));
        Cause::new(reason, retry_at)
    }

    /// Steps 8 and 16, `pause`: one ends too late for it. `deadline` if only the client's own is
    /// too short.
    pub(super) fn pause(&self, call: &Call, now: Moment) -> Result<(), Cause> {
        let until = self.paused_until(call, now);
        let Some(until) = until.filter(|until| *until > self.ends(call) && !call.patient) else { return Ok(()) };
        let reason = if until <= self.longest_wait(call) { Reason::Deadline } else { Reason::Pause };
        Err(Cause::new(reason, until))
    }

    /// Steps 9 and 10, for a call that would join the end of this queue now.
    pub(super) fn turn_in_time(
        &self,
        call: &Call,
        id: &QueueKey,
        needs: &Requirements,
        token_by: Moment,
        now: Moment,
    ) -> Result<(), Cause> {
        if call.patient {
            return Ok(());
        }
        let min_wait = self.scheduler.min_wait(id, needs, &self.resources, now);
        self.retry_bucket(call, needs, &min_wait, token_by)?;
        self.too_late(call, &min_wait, now)
    }

    /// Step 9, `retry_bucket`: the tokens of a trial come after the moment until which it is held
    /// for them.
    fn retry_bucket(
        &self,
        call: &Call,
        needs: &Requirements,
        min_wait: &MinWait,
        token_by: Moment,
    ) -> Result<(), Cause> {
        let at = min_wait.retry_at.filter(|_| self.policy.retry_bucket.is_some());
        let late = at.filter(|at| *at > token_by.min(self.ends(call)));
        // Where retries succeed, one that is refused would only teach its controller to come later.
        let late = late.filter(|_| !self.resources.retries_are_open(&needs.charges));
        late.map_or(Ok(()), |at| Err(Cause::new(Reason::RetryBucket, at)))
    }

    /// Step 10, `deadline` if `max_wait` alone would have been enough, else `pause`, `bucket`,
    /// `class_bucket` or `slot`: it is certain not to get its turn in time.
    fn too_late(&self, call: &Call, min_wait: &MinWait, now: Moment) -> Result<(), Cause> {
        let ends = self.ends(call);
        let reason = match min_wait.at {
            at if at <= ends => return Ok(()),
            at if at <= self.longest_wait(call) => Reason::Deadline,
            _ if self.paused_until(call, now).is_some_and(|until| until > ends) => Reason::Pause,
            _ => min_wait.reason,
        };
        Err(Cause::new(reason, min_wait.at))
    }

    /// Steps 8 and 11, `queue_full`: too many calls wait.
    fn queue_full(&mut self, now: Moment) -> Result<(), Cause> {
        if self.waiting() < self.policy.queue.max_waiting {
            return Ok(());
        }
        Err(Cause::new(Reason::QueueFull, self.dropped_requests.drop_one(now)))
    }

    /// Step 12: it may not wait at all, and the reason is what stops it. Returns the moment at
    /// which the wait of any other call ends.
    fn may_wait(
        &self,
        call: &Call,
        needs: &Requirements,
        (blocked, reason): (Option<Block>, Reason),
        now: Moment,
    ) -> Result<Moment, Cause> {
        let ends = self.ends(call);
        if ends > now {
            return Ok(ends);
        }
        if self.resources.blocked_but_for_room(needs, call.demand.class, now).is_none() && call.half_time > now {
            // A connection being made is not a limit: otherwise a gate that never holds calls would
            // never make one, or would refuse the first call.
            return Ok(call.half_time.min(now + CONNECTING));
        }
        let retry_at = blocked.map(|block| block.until).filter(|until| *until < Moment::MAX).unwrap_or(now);
        Err(Cause::new(reason, retry_at))
    }

    /// Step 13, `bytes_full`: with these the bodies of waiting calls hold more than they may.
    /// Otherwise they are counted.
    pub(super) fn bytes_full(&mut self, index: WaiterIndex, more: usize, now: Moment) -> Result<(), Cause> {
        if self.waiting.add_bytes(index, more, self.policy.queue.max_waiting_bytes) {
            return Ok(());
        }
        Err(Cause::new(Reason::BytesFull, self.dropped_requests.drop_one(now)))
    }

    /// Step 17: its wait in a queue is over, and the reason is what stops it at that moment. It may
    /// come back when it would leave from the end of that queue.
    pub(super) fn wait_over(&self, queue: QueueIndex, now: Moment) -> Cause {
        let Some((found, group)) = self.scheduler.queue(queue).zip(self.scheduler.group_of(queue)) else {
            return Cause::new(Reason::Bucket, now);
        };
        let block = self.resources.blocked(&group.needs, group.class, now);
        let reason = block.map_or_else(|| self.scheduler.stopped(queue), |block| block.reason);
        let min_wait = self.scheduler.min_wait(&found.id, &group.needs, &self.resources, now);
        Cause::new(reason, min_wait.at)
    }
}

// === impl AtKey ===

impl AtKey {
    /// A call whose key is failing.
    #[inline]
    pub(super) fn failing(state: KeyState, tried: bool, busy: bool, token_at: Option<Moment>, now: Moment) -> Self {
        let ready_at = state.ready_at.max(now);
        let (earliest, later) = match token_at {
            Some(token_at) if token_at > ready_at => (token_at, Reason::RetryBucket),
            Some(_) | None => (ready_at, Reason::Backoff),
        };
        Self { state: Some(state), tried, busy, earliest, later, reserve: None }
    }

    /// A call whose key is healthy, and perhaps busy with another write.
    #[inline]
    pub(super) fn healthy(busy: bool, now: Moment) -> Self {
        Self { state: None, tried: false, busy, earliest: now, later: Reason::OneAtATime, reserve: None }
    }

    /// True if its key does not hold the call.
    #[inline]
    fn passes(&self, now: Moment) -> bool {
        !self.tried && !self.busy && self.earliest <= now
    }

    /// Returns the reason for which its key holds the call.
    fn reason(&self) -> Reason {
        match (self.tried, self.busy) {
            (true, _) => Reason::Trial,
            (false, true) => Reason::OneAtATime,
            (false, false) => self.later,
        }
    }
}

/// The longest a call waits for a connection at a gate that never holds calls. A failed dial ends
/// the wait sooner.
const CONNECTING: Duration = Duration::from_secs(10);
