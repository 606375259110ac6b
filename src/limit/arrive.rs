//! Decides what happens to a call on arrival: it leaves at once, waits or is refused.
//!
//! The order of the checks: exempt calls leave; then the key stage, where a held call has no place
//! in a queue and no token; then the queue. A call that is certain to wait in vain is refused (P8),
//! and no call passes those that wait already (P5).

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use super::{
    call::{Call, Grant, KeyGrant},
    keys::id::KeyId,
    limiter::Limiter,
    permit::Permit,
    policy::{ClassPolicy, Combine, Lane, Strategy},
    queue::{group::QueueKey, waiter::Waiter},
    refusal::{KeyState, Reason, Refusal},
    resources::{
        buckets::Turn,
        demand::{Block, BucketId, Demand, Lasts, Requirements},
    },
    verdict::{Arrival, Verdict},
};
use crate::moment::Moment;

/// The key stage's answer to a call that arrives.
enum KeyStage {
    /// Its key is not failing, or the call is the trial.
    On(Entry),
    /// Its key holds it. `pay` is the retry bucket in which a token is reserved for it.
    Hold {
        pay: Option<BucketId>,
        reason: Reason,
    },
    Refuse(Refusal),
}

/// The way in which a call reaches its queue.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The state of its failing key, if the call is the key's trial.
    retry: Option<KeyState>,
    /// The retry bucket from which it takes a token in advance (`max_of`).
    pay: Option<BucketId>,
}

// === impl Limiter ===

impl Limiter {
    /// Decides about a call that arrives.
    pub fn arrive(&mut self, arrival: &Arrival<'_>, now: Moment) -> Verdict {
        let now = self.catch_up(now);
        let call = self.read(arrival, now);
        if self.bypassed || self.class(&call).lane == Lane::Exempt {
            return Verdict::Admit(Permit::new(call, self.exempt_grant()));
        }
        match self.at_key(&call, now) {
            KeyStage::On(way) => self.at_queue(call, arrival, way, now),
            KeyStage::Hold { pay, reason } => self.hold_on_arrival(call, arrival, pay, reason, now),
            KeyStage::Refuse(refusal) => Verdict::Refuse(refusal),
        }
    }

    /// Admits a call without asking any limit: it takes nothing, and nothing is remembered of it.
    pub fn admit_unmetered(&mut self, arrival: &Arrival<'_>, now: Moment) -> Permit {
        let now = self.catch_up(now);
        let call = Call { key: None, ..self.read(arrival, now) };
        Permit::new(call, self.exempt_grant())
    }

    /// Returns the grant of an exempt call: it takes nothing.
    pub(super) fn exempt_grant(&mut self) -> Grant {
        let (left, number) = (self.table.failures(), self.resources.buckets.next_take());
        Grant { needs: None, number, left, key_grant: KeyGrant::default(), sequence: 0, waited: None }
    }

    pub(super) fn class(&self, call: &Call) -> &ClassPolicy {
        &self.policy.classes[call.class]
    }

    pub(super) fn demand(call: &Call, retry: bool) -> Demand {
        let Call { class, flow, credential, group, lasts, .. } = *call;
        let (long_running, lists_first) = (lasts != Lasts::Shortly, lasts == Lasts::LongAfterList);
        Demand { class, flow, credential, group, long_running, lists_first, retry }
    }

    /// Returns the moment at which the call's wait ends in any case.
    pub(super) fn ends(&self, call: &Call) -> Moment {
        let longest = self.policy.queue.max_wait;
        call.half_time.min(call.arrived + longest)
    }

    /// Returns the call's queue and its requirements there.
    pub(super) fn queue_of(&mut self, call: &Call, retry: bool, now: Moment) -> (QueueKey, Requirements) {
        let demand = Self::demand(call, retry);
        (self.queue_key(&demand), self.resources.requirements(&self.policy, &demand, now))
    }

    fn queue_key(&self, demand: &Demand) -> QueueKey {
        QueueKey::new(demand, self.policy.splits_by_credential(demand.class))
    }

    /// Returns the refusal of a call that is certain to wait in vain: a retry for tokens that come
    /// after `token_by`, any call for anything that comes after the end of its wait.
    pub(super) fn in_vain(
        &self,
        call: &Call,
        id: &QueueKey,
        needs: &Requirements,
        token_by: Moment,
        now: Moment,
    ) -> Option<Refusal> {
        if call.patient {
            return None;
        }
        let min_wait = self.scheduler.min_wait(id, needs, &self.resources, now);
        let ends = self.ends(call);
        let refuse = |reason, retry_at| Some(Refusal { reason, retry_at, waited: now - call.arrived, key: None });
        match min_wait.retry_at.filter(|_| self.policy.retry_bucket.is_some()) {
            Some(at) if at > token_by.min(ends) => refuse(Reason::RetryBucket, at),
            _ if min_wait.at <= ends => None,
            // The gate would have held it that long; the client's deadline is too short.
            _ if min_wait.at <= call.arrived + self.policy.queue.max_wait => refuse(Reason::Deadline, min_wait.at),
            _ if self.paused_until(call, now).is_some_and(|until| until > ends) => refuse(Reason::Pause, min_wait.at),
            _ => refuse(min_wait.reason, min_wait.at),
        }
    }

    /// Returns the refusal of a call if too many wait already.
    pub(super) fn full(&mut self, now: Moment) -> Option<Refusal> {
        if self.waiting < self.policy.queue.max_waiting {
            return None;
        }
        let retry_at = self.dropped_requests.drop_one(now);
        Some(Refusal { reason: Reason::QueueFull, retry_at, waited: std::time::Duration::ZERO, key: None })
    }

    /// Reads an arrival. A class that does not exist is the default class.
    fn read(&self, arrival: &Arrival<'_>, now: Moment) -> Call {
        let class = usize::from(arrival.class.0);
        let class = if class < self.policy.classes.len() { class } else { self.default_class() };
        let policy = &self.policy.classes[class];
        let forgetful = policy.lane == Lane::Exempt || policy.backoff.strategy == Strategy::Off;
        let alone = policy.lane != Lane::Exempt && self.policy.one_at_a_time && arrival.write;
        Call {
            class,
            serial: self.serials[class],
            flow: arrival.flow.id,
            credential: arrival.credential,
            key: arrival.key.filter(|_| !forgetful || alone),
            write: arrival.write,
            group: arrival.group,
            lasts: Lasts::new(arrival.long_running, arrival.lists_first),
            patient: arrival.patient,
            arrived: now,
            half_time: arrival.timeout.map_or(Moment::MAX, |timeout| now + timeout / 2),
        }
    }

    fn at_key(&mut self, call: &Call, now: Moment) -> KeyStage {
        let Some(key) = &call.key else { return KeyStage::On(Entry::default()) };
        let (alone, id) = (self.goes_alone(call), KeyId::from(key));
        let busy = alone && self.writes.contains(&id.written());
        let Some(view) = self.keys().view(key, now) else {
            let stays = busy || alone && self.held_calls.get(&id).is_some_and(|held| held.holds_anyone());
            return if stays { self.behind_a_write(call, now) } else { KeyStage::On(Entry::default()) };
        };
        let (backoff, ends) = (self.class(call).backoff, self.ends(call));
        let hold_ends = (now + backoff.hold).min(ends);
        let pay = self.reckons_on_arrival(call).then(|| Self::demand(call, true));
        let pay = pay.and_then(|demand| self.resources.retry_bucket(&demand, now));
        let token_at = pay.map_or(now, |bucket| self.resources.buckets.ready_at(bucket, now));
        let (earliest, reason) = match view.state.ready_at.max(now) {
            ready_at if token_at > ready_at => (token_at, Reason::RetryBucket),
            ready_at => (ready_at, Reason::Backoff),
        };
        let refuse = |reason, retry_at| {
            KeyStage::Refuse(Refusal { reason, retry_at, waited: std::time::Duration::ZERO, key: Some(view.state) })
        };
        let held_before = self.held_calls.get(&id).is_some_and(|held| held.holds_anyone());
        let tried = view.trial != 0 || held_before;
        if !tried && !busy && earliest <= now {
            return KeyStage::On(Entry { retry: Some(view.state), pay });
        }
        if earliest > hold_ends && !call.patient {
            let hurried = earliest <= now + backoff.hold && earliest <= now + self.policy.queue.max_wait;
            return refuse(if hurried { Reason::Deadline } else { reason }, earliest);
        }
        if hold_ends <= now {
            if busy && !tried {
                return refuse(Reason::OneAtATime, earliest.max(now));
            }
            let after_failure = now + backoff.delay_of(key, view.state.failures.saturating_add(1));
            return refuse(Reason::Trial, after_failure.max(earliest));
        }
        let reason = match (tried, busy) {
            (true, _) => Reason::Trial,
            (false, true) => Reason::OneAtATime,
            (false, false) => reason,
        };
        KeyStage::Hold { pay, reason }
    }

    /// Decides to hold or to refuse a write while another write of its healthy key is on its way.
    fn behind_a_write(&self, call: &Call, now: Moment) -> KeyStage {
        let hold_ends = (now + self.class(call).backoff.hold).min(self.ends(call));
        if hold_ends > now {
            return KeyStage::Hold { pay: None, reason: Reason::OneAtATime };
        }
        // The end of that write is unknown, so the earliest useful moment is now.
        let waited = std::time::Duration::ZERO;
        KeyStage::Refuse(Refusal { reason: Reason::OneAtATime, retry_at: now, waited, key: None })
    }

    /// True if a retry token is reserved when the call arrives instead of taken when it leaves.
    fn reckons_on_arrival(&self, call: &Call) -> bool {
        let metered = call.lasts != Lasts::Long || self.class(call).meter_long_running;
        metered && self.policy.queue.combine == Combine::MaxOf
    }

    fn hold_on_arrival(
        &mut self,
        call: Call,
        arrival: &Arrival<'_>,
        pay: Option<BucketId>,
        reason: Reason,
        now: Moment,
    ) -> Verdict {
        if let Some(refusal) = self.paused_in_vain(&call, now).or_else(|| self.full(now)) {
            return Verdict::Refuse(refusal);
        }
        let (ends, hold_ends) = (self.ends(&call), now + self.class(&call).backoff.hold);
        let key_grant = KeyGrant { paid: self.pay(pay, now), ..KeyGrant::default() };
        let mut waiter = Waiter::new(call, key_grant, ends, hold_ends);
        waiter.held_for = Some(reason);
        let index = self.waiters.insert(waiter);
        self.waiters.keep_flow_name(index, Some(arrival.flow.name.to_string().into()));
        let ticket = self.waiters.ticket(index);
        self.start_waiting(index);
        self.hold(index, false);
        self.dispatch(now);
        Verdict::Wait(ticket)
    }

    fn at_queue(&mut self, call: Call, arrival: &Arrival<'_>, way: Entry, now: Moment) -> Verdict {
        let demand = Self::demand(&call, way.retry.is_some());
        let needs = self.resources.requirements(&self.policy, &demand, now);
        let blocked = self.resources.blocked(&needs, call.class, now);
        // The order of queues matters only if any call waits.
        if blocked.is_none() && self.scheduler.waiting() == 0 {
            return Verdict::Admit(self.admit(call, needs, way, now));
        }
        self.join_or_refuse(call, arrival, way, (needs, blocked), now)
    }

    /// Queues the call or refuses it. Apart, so that a call that need not wait has no more to carry
    /// than it uses.
    #[inline(never)]
    fn join_or_refuse(
        &mut self,
        call: Call,
        arrival: &Arrival<'_>,
        way: Entry,
        (needs, blocked): (Requirements, Option<Block>),
        now: Moment,
    ) -> Verdict {
        let id = self.queue_key(&Self::demand(&call, way.retry.is_some()));
        let alone = self.scheduler.find(&id).is_none();
        let block = match blocked {
            None if alone && !self.behind => return Verdict::Admit(self.admit_past(call, needs, way, now)),
            block => block.map_or(Reason::Bucket, |block| block.reason),
        };
        self.resources.note_short(&needs, now);
        let (mut ends, hold_ends) = (self.ends(&call), now + self.class(&call).backoff.hold);
        // A retry is not held for its tokens, however soon they come: where many keys fail under
        // one worker the bucket is always empty, and holding each retry until the next token would
        // leave the worker no time for anything else. Only tokens reckoned on arrival are held for.
        let token_by = if self.reckons_on_arrival(&call) { hold_ends } else { now };
        // During a reload's move the calls before it are not known yet: it is asked when it is placed.
        let in_vain = if self.moving.is_some() { None } else { self.in_vain(&call, &id, &needs, token_by, now) };
        let refusal = in_vain.or_else(|| self.full(now));
        if let Some(refusal) = refusal {
            let key = way.retry.filter(|_| refusal.reason.concerns_key());
            return Verdict::Refuse(Refusal { key, ..refusal });
        }
        if ends <= now && self.resources.blocked_but_for_room(&needs, call.class, now).is_none() {
            // A connection being made is not a limit: otherwise a gate that never holds calls would
            // never make one, or would refuse the first call.
            ends = call.half_time.min(now + CONNECTING);
        }
        if ends <= now {
            let retry_at = blocked.map(|block| block.until).filter(|until| *until < Moment::MAX).unwrap_or(now);
            return Verdict::Refuse(Refusal { reason: block, retry_at, waited: std::time::Duration::ZERO, key: None });
        }
        if self.moving.is_some() {
            let key_grant = self.begin_key_grant(&call, way, now);
            let index = self.waiters.insert(Waiter::new(call, key_grant, ends, hold_ends));
            self.start_waiting(index);
            self.come_late(index, arrival.flow.name.to_string().into());
            return Verdict::Wait(self.waiters.ticket(index));
        }
        let name = || Some(arrival.flow.name.to_string().into());
        let queue = self.scheduler.open(id, &needs, name, &mut self.resources);
        if alone {
            self.scheduler.note_stopped(queue, now, block);
        }
        let key_grant = self.begin_key_grant(&call, way, now);
        let index = self.waiters.insert(Waiter::new(call, key_grant, ends, hold_ends));
        self.start_waiting(index);
        self.stand_in(queue, index, false, now);
        Verdict::Wait(self.waiters.ticket(index))
    }

    /// Admits a call past waiting calls, some of which may wait for what it takes.
    fn admit_past(&mut self, call: Call, needs: Requirements, way: Entry, now: Moment) -> Permit {
        let taken = if self.expired_holds.is_empty() { None } else { Some(needs.charges.clone()) };
        let permit = self.admit(call, needs, way, now);
        if let Some(taken) = taken {
            self.refuse_expired_holds(&taken, now);
            self.dispatch_if_dirty(now);
        }
        permit
    }

    /// Admits a call that need not wait: everything that waits is stopped by something that does
    /// not stop this call.
    fn admit(&mut self, call: Call, needs: Requirements, way: Entry, now: Moment) -> Permit {
        let key_grant = self.begin_key_grant(&call, way, now);
        self.sequence += 1;
        let number = self.resources.take(&needs, call.class, Turn::at_once(now));
        let left = self.table.failures();
        let grant = Grant { needs: Some(needs), number, left, key_grant, sequence: self.sequence, waited: None };
        self.dispatch_if_dirty(now);
        Permit::new(call, grant)
    }

    #[inline]
    fn begin_key_grant(&mut self, call: &Call, way: Entry, now: Moment) -> KeyGrant {
        if way.retry.is_none() && !self.policy.one_at_a_time {
            return KeyGrant::default();
        }
        self.take_key(call, way, now)
    }

    /// Gives a call its key grant: the trial, the place of the one write, a reserved retry token.
    #[inline(never)]
    fn take_key(&mut self, call: &Call, way: Entry, now: Moment) -> KeyGrant {
        let key = call.key.as_ref().filter(|_| way.retry.is_some());
        let trial = key.map_or(0, |key| self.table.begin_trial(KeyId::from(key)));
        KeyGrant { trial, paid: self.pay(way.pay, now), alone: self.begin_write(call) }
    }

    fn pay(&mut self, bucket: Option<BucketId>, now: Moment) -> Option<(BucketId, u64, Moment)> {
        let bucket = bucket?;
        let (at, number) = self.resources.buckets.reserve(bucket, now);
        Some((bucket, number, at))
    }
}

/// The longest a call waits for a connection at a gate that never holds calls. A failed dial ends
/// the wait sooner.
const CONNECTING: std::time::Duration = std::time::Duration::from_secs(10);
