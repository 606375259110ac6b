//! The door: a call arrives and goes, waits or is refused at once.
//!
//! Exempt first; then its key, which holds no place in a queue and no token; then its queue. Nobody is let in who is certain to wait in
//! vain (P8), and nobody past those who wait already (P5).

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use super::{
    buckets::Turn,
    limiter::{Limiter, Verdict},
    needs::{Block, BucketId, Lasts, Needs},
    permit::Permit,
    policy::{ClassPolicy, Combine, Lane, Strategy},
    queue::QueueId,
    supply::Asker,
    table::KeyId,
    verdict::{Arrival, KeyState, Reason, Refusal},
    waiter::{Call, Grant, Pass, Waiter},
};
use crate::moment::Moment;

/// What the key stage says of a call at the door.
enum AtKey {
    /// Its key does not fail, or it is the trial.
    On(Way),
    /// Its key holds it; `pay` is the retry bucket from which it has a token coming.
    Hold {
        pay: Option<BucketId>,
        reason: Reason,
    },
    Refuse(Refusal),
}

/// How a call comes to its queue.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// The state of its failing key, of which it is the trial.
    retry: Option<KeyState>,
    /// The retry bucket whose token it takes beforehand (`max_of`).
    pay: Option<BucketId>,
}

// === impl Limiter ===

impl Limiter {
    /// A call is at the door.
    pub fn arrive(&mut self, arrival: &Arrival<'_>, now: Moment) -> Verdict {
        let now = self.catch_up(now);
        let call = self.read(arrival, now);
        if self.bypassed || self.class(&call).lane == Lane::Exempt {
            return Verdict::Admit(Permit::new(call, self.exempt_grant()));
        }
        match self.at_key(&call, now) {
            AtKey::On(way) => self.at_queue(call, arrival, way, now),
            AtKey::Hold { pay, reason } => self.hold_at_door(call, arrival, pay, reason, now),
            AtKey::Refuse(refusal) => Verdict::Refuse(refusal),
        }
    }

    /// Lets a call by without asking any limit: it takes nothing, and nothing is remembered of it.
    pub fn let_by(&mut self, arrival: &Arrival<'_>, now: Moment) -> Permit {
        let now = self.catch_up(now);
        let call = Call { key: None, ..self.read(arrival, now) };
        Permit::new(call, self.exempt_grant())
    }

    /// What an exempt call leaves with: nothing.
    pub(super) fn exempt_grant(&mut self) -> Grant {
        let (left, number) = (self.table.failures(), self.supply.buckets.next_take());
        Grant { needs: None, number, left, pass: Pass::default(), sequence: 0, waited: None }
    }

    pub(super) fn class(&self, call: &Call) -> &ClassPolicy {
        &self.policy.classes[call.class]
    }

    pub(super) fn asker(call: &Call, retry: bool) -> Asker {
        let Call { class, flow, credential, group, lasts, .. } = *call;
        let (long_running, lists_first) = (lasts != Lasts::Shortly, lasts == Lasts::LongAfterList);
        Asker { class, flow, credential, group, long_running, lists_first, retry }
    }

    /// When the wait of a call ends in any case.
    pub(super) fn ends(&self, call: &Call) -> Moment {
        let longest = self.policy.queue.max_wait;
        call.half_time.min(call.arrived + longest)
    }

    /// Its queue, and what it needs there.
    pub(super) fn queue_of(&mut self, call: &Call, retry: bool, now: Moment) -> (QueueId, Needs) {
        let asker = Self::asker(call, retry);
        (self.queue_id(&asker), self.supply.needs(&self.policy, &asker, now))
    }

    fn queue_id(&self, asker: &Asker) -> QueueId {
        QueueId::new(asker, self.policy.splits_by_credential(asker.class))
    }

    /// The refusal of a call that is certain to wait in vain: a retry for its tokens beyond `token_by`, any call for all else beyond its end.
    pub(super) fn in_vain(
        &self,
        call: &Call,
        id: &QueueId,
        needs: &Needs,
        token_by: Moment,
        now: Moment,
    ) -> Option<Refusal> {
        if call.patient {
            return None;
        }
        let certain = self.lanes.certain(id, needs, &self.supply, now);
        let ends = self.ends(call);
        let refuse = |reason, retry_at| Some(Refusal { reason, retry_at, waited: now - call.arrived, key: None });
        match certain.retry_at.filter(|_| self.policy.retry_bucket.is_some()) {
            Some(at) if at > token_by.min(ends) => refuse(Reason::RetryBucket, at),
            _ if certain.at <= ends => None,
            // It could have waited that long, had its client not been in a hurry.
            _ if certain.at <= call.arrived + self.policy.queue.max_wait => refuse(Reason::Deadline, certain.at),
            _ if self.paused_until(call, now).is_some_and(|until| until > ends) => refuse(Reason::Pause, certain.at),
            _ => refuse(certain.reason, certain.at),
        }
    }

    /// The refusal when too many wait already.
    pub(super) fn full(&mut self, now: Moment) -> Option<Refusal> {
        if self.waiting < self.policy.queue.max_waiting {
            return None;
        }
        let retry_at = self.drops.drop_one(now);
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

    fn at_key(&mut self, call: &Call, now: Moment) -> AtKey {
        let Some(key) = &call.key else { return AtKey::On(Way::default()) };
        let (alone, id) = (self.goes_alone(call), KeyId::from(key));
        let busy = alone && self.writes.contains(&id.written());
        let Some(view) = self.keys().view(key, now) else {
            let stays = busy || alone && self.lines.get(&id).is_some_and(|line| line.holds_anyone());
            return if stays { self.behind_a_write(call, now) } else { AtKey::On(Way::default()) };
        };
        let (backoff, ends) = (self.class(call).backoff, self.ends(call));
        let hold_ends = (now + backoff.hold).min(ends);
        let pay = self.reckons_on_arrival(call).then(|| Self::asker(call, true));
        let pay = pay.and_then(|asker| self.supply.retry_bucket(&asker, now));
        let token_at = pay.map_or(now, |bucket| self.supply.buckets.ready_at(bucket, now));
        let (earliest, reason) = match view.state.ready_at.max(now) {
            ready_at if token_at > ready_at => (token_at, Reason::RetryBucket),
            ready_at => (ready_at, Reason::Backoff),
        };
        let refuse = |reason, retry_at| {
            AtKey::Refuse(Refusal { reason, retry_at, waited: std::time::Duration::ZERO, key: Some(view.state) })
        };
        let held_before = self.lines.get(&id).is_some_and(|line| line.holds_anyone());
        let tried = view.trial != 0 || held_before;
        if !tried && !busy && earliest <= now {
            return AtKey::On(Way { retry: Some(view.state), pay });
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
        AtKey::Hold { pay, reason }
    }

    /// What a write is told while another of its healthy key is on its way.
    fn behind_a_write(&self, call: &Call, now: Moment) -> AtKey {
        let hold_ends = (now + self.class(call).backoff.hold).min(self.ends(call));
        if hold_ends > now {
            return AtKey::Hold { pay: None, reason: Reason::OneAtATime };
        }
        // Nobody knows when that write is over: at once, for all that is certain.
        let waited = std::time::Duration::ZERO;
        AtKey::Refuse(Refusal { reason: Reason::OneAtATime, retry_at: now, waited, key: None })
    }

    /// Whether a retry token is reckoned when the call arrives, and not taken when it leaves.
    fn reckons_on_arrival(&self, call: &Call) -> bool {
        let metered = call.lasts != Lasts::Long || self.class(call).meter_long_running;
        metered && self.policy.queue.combine == Combine::MaxOf
    }

    fn hold_at_door(
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
        let pass = Pass { paid: self.pay(pay, now), ..Pass::default() };
        let mut waiter = Waiter::new(call, pass, ends, hold_ends);
        waiter.held_for = Some(reason);
        let index = self.waiters.insert(waiter);
        self.waiters.keep_flow_name(index, Some(arrival.flow.name.to_string().into()));
        let ticket = self.waiters.ticket(index);
        self.start_waiting(index);
        self.hold(index, false);
        self.run(now);
        Verdict::Wait(ticket)
    }

    fn at_queue(&mut self, call: Call, arrival: &Arrival<'_>, way: Way, now: Moment) -> Verdict {
        let asker = Self::asker(&call, way.retry.is_some());
        let needs = self.supply.needs(&self.policy, &asker, now);
        let blocked = self.supply.blocked(&needs, call.class, now);
        // Whose queue it would be is asked only where there is any.
        if blocked.is_none() && self.lanes.waiting() == 0 {
            return Verdict::Admit(self.admit(call, needs, way, now));
        }
        self.join_or_refuse(call, arrival, way, (needs, blocked), now)
    }

    /// Apart, so that a call that need not wait has no more to carry than it uses.
    #[inline(never)]
    fn join_or_refuse(
        &mut self,
        call: Call,
        arrival: &Arrival<'_>,
        way: Way,
        (needs, blocked): (Needs, Option<Block>),
        now: Moment,
    ) -> Verdict {
        let id = self.queue_id(&Self::asker(&call, way.retry.is_some()));
        let alone = self.lanes.find(&id).is_none();
        let block = match blocked {
            None if alone && !self.behind => return Verdict::Admit(self.admit_past(call, needs, way, now)),
            block => block.map_or(Reason::Bucket, |block| block.reason),
        };
        self.supply.note_short(&needs, now);
        let (mut ends, hold_ends) = (self.ends(&call), now + self.class(&call).backoff.hold);
        // A retry is not held for its tokens, however soon they come: where many keys fail under one worker the bucket is empty all the
        // time, and holding each until the next token would leave the worker time for nothing else. What reckons them on arrival holds.
        let token_by = if self.reckons_on_arrival(&call) { hold_ends } else { now };
        // During a move nobody knows yet who is before it: it is asked when it is placed.
        let in_vain = if self.moving.is_some() { None } else { self.in_vain(&call, &id, &needs, token_by, now) };
        let refusal = in_vain.or_else(|| self.full(now));
        if let Some(refusal) = refusal {
            let key = way.retry.filter(|_| refusal.reason.concerns_key());
            return Verdict::Refuse(Refusal { key, ..refusal });
        }
        if ends <= now && self.supply.blocked_but_for_room(&needs, call.class, now).is_none() {
            // A connection being made is no limit: a gate that never holds would never make one, or refuse whoever comes first.
            ends = call.half_time.min(now + CONNECTING);
        }
        if ends <= now {
            let retry_at = blocked.map(|block| block.until).filter(|until| *until < Moment::MAX).unwrap_or(now);
            return Verdict::Refuse(Refusal { reason: block, retry_at, waited: std::time::Duration::ZERO, key: None });
        }
        if self.moving.is_some() {
            let pass = self.begin_pass(&call, way, now);
            let index = self.waiters.insert(Waiter::new(call, pass, ends, hold_ends));
            self.start_waiting(index);
            self.come_late(index, arrival.flow.name.to_string().into());
            return Verdict::Wait(self.waiters.ticket(index));
        }
        let name = || Some(arrival.flow.name.to_string().into());
        let queue = self.lanes.open(id, &needs, name, &mut self.supply);
        if alone {
            self.lanes.note_stopped(queue, now, block);
        }
        let pass = self.begin_pass(&call, way, now);
        let index = self.waiters.insert(Waiter::new(call, pass, ends, hold_ends));
        self.start_waiting(index);
        self.stand_in(queue, index, false, now);
        Verdict::Wait(self.waiters.ticket(index))
    }

    /// Lets a call go past those who wait, of whom some may wait for what it takes.
    fn admit_past(&mut self, call: Call, needs: Needs, way: Way, now: Moment) -> Permit {
        let taken = if self.overdue.is_empty() { None } else { Some(needs.charges.clone()) };
        let permit = self.admit(call, needs, way, now);
        if let Some(taken) = taken {
            self.refuse_overdue(&taken, now);
            self.run_if_stirred(now);
        }
        permit
    }

    /// Lets a call go that need not wait: all that waits is stopped by something that does not stop this one.
    fn admit(&mut self, call: Call, needs: Needs, way: Way, now: Moment) -> Permit {
        let pass = self.begin_pass(&call, way, now);
        self.sequence += 1;
        let number = self.supply.take(&needs, call.class, Turn::at_once(now));
        let left = self.table.failures();
        let grant = Grant { needs: Some(needs), number, left, pass, sequence: self.sequence, waited: None };
        self.run_if_stirred(now);
        Permit::new(call, grant)
    }

    #[inline]
    fn begin_pass(&mut self, call: &Call, way: Way, now: Moment) -> Pass {
        if way.retry.is_none() && !self.policy.one_at_a_time {
            return Pass::default();
        }
        self.take_key(call, way, now)
    }

    /// What a call has at the key stage: the trial, being the one write, a retry token.
    #[inline(never)]
    fn take_key(&mut self, call: &Call, way: Way, now: Moment) -> Pass {
        let key = call.key.as_ref().filter(|_| way.retry.is_some());
        let trial = key.map_or(0, |key| self.table.begin_trial(KeyId::from(key)));
        Pass { trial, paid: self.pay(way.pay, now), alone: self.begin_write(call) }
    }

    fn pay(&mut self, bucket: Option<BucketId>, now: Moment) -> Option<(BucketId, u64, Moment)> {
        let bucket = bucket?;
        let (at, number) = self.supply.buckets.reserve(bucket, now);
        Some((bucket, number, at))
    }
}

/// Where calls are never held: as long as a connection may take. A failed one ends the wait before.
const CONNECTING: std::time::Duration = std::time::Duration::from_secs(10);
