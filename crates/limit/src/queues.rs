//! The queues and the calls that wait in them or for their keys, and a reload's move from the old
//! queues to the new.

mod estimate;
mod group;
mod lengths;
mod regroup;
mod scheduler;
mod shape_group;
mod stops;
mod timers;
mod waiter;
mod waiting;
mod waiting_bytes;
mod walk;
mod work;

pub(crate) use self::estimate::MinWait;
pub(crate) use self::group::{Queue, QueueGroup, QueueGroups};
pub(crate) use self::lengths::QueueLengths;
pub(crate) use self::regroup::{LateCall, Move, MoveStep};
pub(crate) use self::scheduler::{ClassTurns, DueWork, PASSED, Scheduler};
pub(crate) use self::shape_group::{ShapeGroup, TurnLimit};
pub(crate) use self::timers::Timers;
pub(crate) use self::waiter::{KeyList, List, ListKind, Waiter, WaiterState, Waiters};
pub(crate) use self::waiting_bytes::WaitingBytes;
pub(crate) use self::walk::{LOOKED_AT_ONCE, STEPS, Step, Sweep, SweepNews, WaiterWalk};
pub(crate) use self::work::Work;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::moment::Moment;
use crate::{
    BucketId, Claim, Grant, GroupIndex, KeyGrant, KeyId, Permit, Policy, QueueIndex, QueueKey, Reason, Requirements,
    Resources, Rules, Spread, Ticket, WaiterIndex,
};

/// Every waiting call, and the queues.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    scheduler: Scheduler,
    waiters: Waiters,
    timers: Timers,
    /// The waiting calls of each key.
    by_key: HashMap<KeyId, KeyCalls, Spread>,
    count: usize,
    bytes: WaitingBytes,
    /// The sequence of the last call to enter a queue.
    sequence: u64,
    /// A reload whose calls are on their way to their new queues.
    moving: Option<Box<Move>>,
}

/// The waiting calls of one key.
#[derive(Debug, Default)]
struct KeyCalls {
    /// The held calls, in order.
    held: List,
    /// The calls past the key: in a queue, or granted and not claimed.
    passed: List,
}

/// The place of a call: its queue, its requirements there, and what stops it.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    pub(crate) id: QueueKey,
    pub(crate) needs: Requirements,
    /// `None` if nothing is known to stop it, or the queue knows already.
    pub(crate) stopped: Option<Reason>,
}

/// The grants taken back from a call.
#[derive(Debug)]
pub(crate) struct Withdrawal {
    pub(crate) key: Option<KeyId>,
    pub(crate) key_grant: KeyGrant,
    /// Its grant, if its turn had come.
    pub(crate) grant: Option<Box<Grant>>,
}

// === impl Queues ===

impl Queues {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self { scheduler: Scheduler::new(policy), ..Self::default() }
    }

    #[inline]
    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Returns true if no call waits and nothing is left of any wait.
    pub(crate) fn is_empty(&self) -> bool {
        let waits =
            self.count > 0 || self.waiters.store.len() > 0 || !self.by_key.is_empty() || !self.timers.is_empty();
        !waits && self.scheduler.is_empty() && self.moving.is_none()
    }

    /// Returns true if neither a queue nor a timer has anything to do, now or later.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.scheduler.waiting == 0 && self.timers.is_empty()
    }

    /// Shares the bound on waiting bytes with every limiter of the same `sum`.
    pub(crate) fn share_bytes(&mut self, sum: Arc<AtomicUsize>) {
        self.bytes = WaitingBytes::sharing(sum);
    }

    /// Adds a call to its key's held calls: at the end, or before all others. The key becomes dirty.
    pub(crate) fn hold(&mut self, index: WaiterIndex, first: bool, rules: &Rules, work: &mut Work) {
        let key = self.join_key(index, KeyList::Held, first);
        self.set_timer(index, rules);
        work.dirty_keys.extend(key);
    }

    /// Puts a call in its queue: at the end, or where it was before. `name` returns the name of its
    /// flow, if the queue is new.
    pub(crate) fn join(
        &mut self,
        index: WaiterIndex,
        place: &QueuePlace,
        name: impl FnOnce() -> Option<Box<str>>,
        rules: &Rules,
        resources: &mut Resources,
        now: Moment,
    ) {
        self.enter(index, now);
        self.put(index, place, name, resources, now);
        self.note_passed(index);
        self.set_timer(index, rules);
    }

    /// Puts a recalled call back where it was in its queue.
    pub(crate) fn rejoin(
        &mut self,
        index: WaiterIndex,
        key_grant: KeyGrant,
        place: &QueuePlace,
        rules: &Rules,
        resources: &mut Resources,
        now: Moment,
    ) {
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.key_grant = key_grant;
        }
        self.put(index, place, || None, resources, now);
        self.set_timer(index, rules);
    }

    fn put(
        &mut self,
        index: WaiterIndex,
        place: &QueuePlace,
        name: impl FnOnce() -> Option<Box<str>>,
        resources: &mut Resources,
        now: Moment,
    ) {
        let queue = self.scheduler.open(place.id, &place.needs, name, resources);
        if let Some(reason) = place.stopped {
            self.scheduler.note_stopped(queue, now, reason);
        }
        self.scheduler.join(queue, index, &mut self.waiters);
    }

    /// Takes a call from its key's held calls, as the trial or the one write. Returns the name of
    /// its flow.
    pub(crate) fn pass_key(&mut self, index: WaiterIndex, trial: u32, alone: bool) -> Option<Box<str>> {
        self.leave_key(index);
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.key_grant.trial = trial;
            waiter.key_grant.alone = alone;
        }
        self.waiters.take_flow_name(index)
    }

    /// Takes the reserved token of a waiting call, as it is not needed any more.
    pub(crate) fn take_reservation(&mut self, index: WaiterIndex) -> KeyGrant {
        KeyGrant::of(self.waiters.get_mut(index).and_then(|waiter| waiter.key_grant.reserved.take()))
    }

    /// Sets a call's timer to the end of its present wait, for its key or in a queue.
    pub(crate) fn set_timer(&mut self, index: WaiterIndex, rules: &Rules) {
        let Some(waiter) = self.get(index) else { return };
        let for_key = match waiter.state {
            WaiterState::Held => true,
            WaiterState::Queued(queue) => {
                self.retry_tokens(queue, rules).is_some_and(|mut tokens| tokens.next().is_some())
            }
            WaiterState::Granted(_) | WaiterState::Refused(_) | WaiterState::Unconnected => return,
        };
        let at = if for_key { waiter.ends.min(waiter.hold_ends) } else { waiter.ends };
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        let before = std::mem::replace(&mut waiter.timer, at);
        self.timers.cancel_waiter(before, index);
        self.timers.set_waiter(at, index);
    }

    /// Returns the buckets with a limit of `hold` on the wait for their tokens. `None` if it is no
    /// queue of retries, or retries are not metered.
    pub(crate) fn retry_tokens(&self, queue: QueueIndex, rules: &Rules) -> Option<impl Iterator<Item = BucketId>> {
        rules.policy().retry_bucket?;
        let queue_group = self.scheduler.group_of(queue).filter(|queue_group| queue_group.mode.retry)?;
        Some(queue_group.needs.charges.of_retry())
    }

    /// Returns true if a queue's calls are retries with an open bucket.
    pub(crate) fn is_open(&self, queue: QueueIndex, resources: &Resources) -> bool {
        let group = self.scheduler.group_of(queue);
        group.is_some_and(|queue_group| resources.retries_are_open(&queue_group.needs.charges))
    }

    /// Extends the `hold` of a retry a little.
    pub(crate) fn extend_hold(&mut self, index: WaiterIndex, rules: &Rules, now: Moment) {
        self.set_hold_end(index, now + STILL_OPEN, rules);
    }

    /// Sets the moment at which a call's `hold` ends.
    pub(crate) fn set_hold_end(&mut self, index: WaiterIndex, at: Moment, rules: &Rules) {
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.hold_ends = at;
            self.set_timer(index, rules);
        }
    }

    /// Checks a queue group again, because what stopped it may be over.
    pub(crate) fn unpark(&mut self, queue_group: GroupIndex) {
        self.scheduler.unpark(queue_group);
    }

    /// Checks every queue group again before the next turn.
    pub(crate) fn unpark_all(&mut self) {
        self.scheduler.recheck_parked = true;
    }

    /// Returns what is due at this moment. A timer that was due is gone then.
    pub(crate) fn next_due(&mut self, resources: &Resources, now: Moment) -> Option<DueWork> {
        self.scheduler.next(resources, now).or_else(|| self.pop_timer(now))
    }

    /// Takes the first call out of a queue, for a turn of this cost.
    pub(crate) fn take_head(&mut self, queue: QueueIndex, index: WaiterIndex, cost: u16, resources: &mut Resources) {
        self.scheduler.had_turn(queue, cost);
        self.scheduler.part(queue, index, &mut self.waiters, resources);
        self.count_out(index);
    }

    /// Keeps the flow name of a queued call beyond its queue.
    pub(crate) fn keep_queue_name(&mut self, index: WaiterIndex) {
        if let Some(WaiterState::Queued(queue)) = self.get(index).map(|waiter| &waiter.state) {
            let name = self.scheduler.queue(*queue).and_then(|queue| queue.name.clone());
            self.waiters.keep_flow_name(index, name);
        }
    }

    /// Takes the key grant of a waiting call.
    pub(crate) fn take_key_grant(&mut self, index: WaiterIndex) -> KeyGrant {
        self.waiters.get_mut(index).map(|waiter| std::mem::take(&mut waiter.key_grant)).unwrap_or_default()
    }

    /// Ends a call's wait with a verdict to claim.
    pub(crate) fn conclude(&mut self, index: WaiterIndex, state: WaiterState, work: &mut Work) {
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.state = state;
            work.events.push_back(self.ticket(index));
        }
    }

    /// Returns the next waiting call with a verdict to claim.
    pub(crate) fn next_event(&self, work: &mut Work) -> Option<Ticket> {
        let is_news = |ticket: &Ticket| self.find(*ticket).is_some_and(|waiter| !waiter.is_waiting());
        std::iter::from_fn(|| work.events.pop_front()).find(is_news)
    }

    /// Takes the verdict of a waiting call.
    pub(crate) fn take_verdict(&mut self, ticket: Ticket) -> Claim {
        match self.find(ticket).map(Waiter::is_waiting) {
            None => return Claim::Unconnected,
            Some(true) => return Claim::Waiting,
            Some(false) => self.leave_key(ticket.index),
        }
        let Some(waiter) = self.waiters.remove(ticket.index) else { return Claim::Unconnected };
        match waiter.state {
            WaiterState::Granted(grant) => Claim::Permit(Permit::new(waiter.call, *grant)),
            WaiterState::Refused(refusal) => Claim::Refused(*refusal),
            WaiterState::Held | WaiterState::Queued(_) | WaiterState::Unconnected => Claim::Unconnected,
        }
    }

    /// Takes a call out of where it waits. Its record stays, without a verdict.
    pub(crate) fn withdraw(&mut self, index: WaiterIndex, resources: &mut Resources) -> Option<Withdrawal> {
        let withdrawn = self.recall(index, resources)?;
        self.count_out(index);
        self.leave_key(index);
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.state = WaiterState::Unconnected;
        }
        Some(withdrawn)
    }

    /// Takes a call out of its queue, or its unclaimed turn back. It waits then, and for nothing yet.
    pub(crate) fn recall(&mut self, index: WaiterIndex, resources: &mut Resources) -> Option<Withdrawal> {
        let waiter = self.waiters.get_mut(index)?;
        let key = waiter.call.key_id();
        let key_grant = std::mem::take(&mut waiter.key_grant);
        match std::mem::replace(&mut waiter.state, WaiterState::Held) {
            WaiterState::Held => {}
            WaiterState::Queued(queue) => self.scheduler.part(queue, index, &mut self.waiters, resources),
            WaiterState::Granted(grant) => {
                self.count_in(index);
                return Some(Withdrawal { key, key_grant: grant.key_grant, grant: Some(grant) });
            }
            over @ (WaiterState::Refused(_) | WaiterState::Unconnected) => {
                waiter.state = over;
                return None;
            }
        }
        Some(Withdrawal { key, key_grant, grant: None })
    }

    /// Lets a recalled call wait for its key again, before all others.
    pub(crate) fn hold_again(&mut self, index: WaiterIndex, hold_ends: Moment, rules: &Rules, work: &mut Work) {
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.hold_ends = hold_ends;
            waiter.held_for = Some(Reason::Backoff);
            waiter.sequence = 0;
        }
        self.leave_key(index);
        self.hold(index, true, rules, work);
    }

    /// Records the end of a retry's `hold` while a token is there.
    pub(crate) fn note_expired_hold(&mut self, index: WaiterIndex, work: &mut Work) {
        let expired_holds = &mut work.expired_holds;
        if expired_holds.len() > 2 * self.waiters.store.len() + 16 {
            expired_holds.retain(|ticket| self.find(*ticket).is_some_and(Waiter::is_waiting));
        }
        expired_holds.push(self.ticket(index));
    }
}

/// The interval between checks of a waiting retry's open bucket.
const STILL_OPEN: Duration = Duration::from_millis(100);
