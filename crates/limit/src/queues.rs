//! The queues, the calls waiting in them or for their keys, and the move of waiting calls to new
//! queues after a reload.

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
    /// The number of the last call to enter a queue.
    sequence: u64,
    /// The calls still to be moved to their new queues after a reload.
    moving: Option<Box<Move>>,
}

/// The waiting calls of one key.
#[derive(Debug, Default)]
struct KeyCalls {
    /// The calls waiting for the key, in order.
    held: List,
    /// The calls not waiting for the key any more: they wait in a queue, or have an unclaimed
    /// permit.
    passed: List,
}

/// A call's queue, the resources the call needs, and the obstacle stopping it.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    pub(crate) id: QueueKey,
    pub(crate) needs: Requirements,
    /// The obstacle stopping the call; `None` if none is known, or if the queue's obstacle is
    /// recorded already.
    pub(crate) stopped: Option<Reason>,
}

/// The permissions and tokens of a call removed from its queue, or from waiting for its key.
#[derive(Debug)]
pub(crate) struct Withdrawal {
    pub(crate) key: Option<KeyId>,
    pub(crate) key_grant: KeyGrant,
    /// The tokens and slots the call had taken, if it was admitted.
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

    /// Returns true if no call waits and nothing remains of earlier waits.
    pub(crate) fn is_empty(&self) -> bool {
        let waits =
            self.count > 0 || self.waiters.store.len() > 0 || !self.by_key.is_empty() || !self.timers.is_empty();
        !waits && self.scheduler.is_empty() && self.moving.is_none()
    }

    /// Returns true if no queue and no timer has anything to do, now or later.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.scheduler.waiting == 0 && self.timers.is_empty()
    }

    /// Counts waiting bytes in `sum`, so that all limiters with the same `sum` share one bound.
    pub(crate) fn share_bytes(&mut self, sum: Arc<AtomicUsize>) {
        self.bytes = WaitingBytes::sharing(sum);
    }

    /// Makes a call wait for its key: behind the calls already waiting for the key, or ahead of
    /// them if `first`. The key is marked for review in `work`.
    pub(crate) fn hold(&mut self, index: WaiterIndex, first: bool, rules: &Rules, work: &mut Work) {
        let key = self.join_key(index, KeyList::Held, first);
        self.set_timer(index, rules);
        work.dirty_keys.extend(key);
    }

    /// Puts a call in its queue: at the end, or where it was before. `name` returns the name of the
    /// call's flow, and is called only for a new queue.
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

    /// Puts a call back where it was in its queue, after [`Self::recall`].
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

    /// Ends a call's wait for its key, and returns the readable name of its flow. `trial` is the
    /// number of its trial, or 0; `alone` is set if it is the key's only write.
    pub(crate) fn pass_key(&mut self, index: WaiterIndex, trial: u32, alone: bool) -> Option<Box<str>> {
        self.leave_key(index);
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.key_grant.trial = trial;
            waiter.key_grant.alone = alone;
        }
        self.waiters.take_flow_name(index)
    }

    /// Takes the reserved retry token from a waiting call that no longer needs it.
    pub(crate) fn take_reservation(&mut self, index: WaiterIndex) -> KeyGrant {
        KeyGrant::of(self.waiters.get_mut(index).and_then(|waiter| waiter.key_grant.reserved.take()))
    }

    /// Sets a call's timer to the end of its present wait, be it for its key or in a queue.
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

    /// Returns the buckets a queue's retries take tokens from; a retry waits for these tokens for
    /// at most `hold`. `None` if the queue has no retries, or retries take no token.
    pub(crate) fn retry_tokens(&self, queue: QueueIndex, rules: &Rules) -> Option<impl Iterator<Item = BucketId>> {
        rules.policy().retry_bucket?;
        let queue_group = self.scheduler.group_of(queue).filter(|queue_group| queue_group.mode.retry)?;
        Some(queue_group.needs.charges.of_retry())
    }

    /// Returns true if a queue holds retries, and their bucket lets more through because retries
    /// succeed.
    pub(crate) fn is_open(&self, queue: QueueIndex, resources: &Resources) -> bool {
        let group = self.scheduler.group_of(queue);
        group.is_some_and(|queue_group| resources.retries_are_open(&queue_group.needs.charges))
    }

    /// Lets a retry wait a little longer than its `hold` (the longest wait for its key), before it
    /// is checked again.
    pub(crate) fn extend_hold(&mut self, index: WaiterIndex, rules: &Rules, now: Moment) {
        self.set_hold_end(index, now + STILL_OPEN, rules);
    }

    /// Sets the end of a call's longest allowed wait for its key (`hold`).
    pub(crate) fn set_hold_end(&mut self, index: WaiterIndex, at: Moment, rules: &Rules) {
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.hold_ends = at;
            self.set_timer(index, rules);
        }
    }

    /// Makes the scheduler check a queue group again, because the group's obstacle may be gone.
    pub(crate) fn unpark(&mut self, queue_group: GroupIndex) {
        self.scheduler.unpark(queue_group);
    }

    /// Makes the scheduler check every queue group again before it admits the next call.
    pub(crate) fn unpark_all(&mut self) {
        self.scheduler.recheck_parked = true;
    }

    /// Returns the next task due now: a turn, or a timer. A timer is removed.
    pub(crate) fn next_due(&mut self, resources: &Resources, now: Moment) -> Option<DueWork> {
        self.scheduler.next(resources, now).or_else(|| self.pop_timer(now))
    }

    /// Takes an admitted call from the head of its queue, and counts `cost` for the fairness
    /// between queues.
    pub(crate) fn take_head(&mut self, queue: QueueIndex, index: WaiterIndex, cost: u16, resources: &mut Resources) {
        self.scheduler.had_turn(queue, cost);
        self.scheduler.part(queue, index, &mut self.waiters, resources);
        self.count_out(index);
    }

    /// Copies the flow name from a call's queue into the call, because the queue may be removed
    /// before the call.
    pub(crate) fn keep_queue_name(&mut self, index: WaiterIndex) {
        if let Some(WaiterState::Queued(queue)) = self.get(index).map(|waiter| &waiter.state) {
            let name = self.scheduler.queue(*queue).and_then(|queue| queue.name.clone());
            self.waiters.keep_flow_name(index, name);
        }
    }

    /// Removes the key's permission from the record of a waiting call, and returns it.
    pub(crate) fn take_key_grant(&mut self, index: WaiterIndex) -> KeyGrant {
        self.waiters.get_mut(index).map(|waiter| std::mem::take(&mut waiter.key_grant)).unwrap_or_default()
    }

    /// Ends a call's wait with a result for the call's owner to claim.
    pub(crate) fn conclude(&mut self, index: WaiterIndex, state: WaiterState, work: &mut Work) {
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.state = state;
            work.events.push_back(self.ticket(index));
        }
    }

    /// Returns the next waiting call with a result to claim.
    pub(crate) fn next_event(&self, work: &mut Work) -> Option<Ticket> {
        let is_news = |ticket: &Ticket| self.find(*ticket).is_some_and(|waiter| !waiter.is_waiting());
        std::iter::from_fn(|| work.events.pop_front()).find(is_news)
    }

    /// Returns the result of a call's wait, once; [`Claim::Waiting`] while the call still waits.
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

    /// Removes a call from its queue, or from waiting for its key. Its record stays, without a
    /// result.
    pub(crate) fn withdraw(&mut self, index: WaiterIndex, resources: &mut Resources) -> Option<Withdrawal> {
        let withdrawn = self.recall(index, resources)?;
        self.count_out(index);
        self.leave_key(index);
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.state = WaiterState::Unconnected;
        }
        Some(withdrawn)
    }

    /// Removes a call from its queue, or revokes its unclaimed permit. The call still counts as
    /// waiting, but its new place is yet to be chosen.
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

    /// Makes a recalled call wait for its key again, ahead of all other calls of the key.
    pub(crate) fn hold_again(&mut self, index: WaiterIndex, hold_ends: Moment, rules: &Rules, work: &mut Work) {
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.hold_ends = hold_ends;
            waiter.held_for = Some(Reason::Backoff);
            waiter.sequence = 0;
        }
        self.leave_key(index);
        self.hold(index, true, rules, work);
    }

    /// Records a retry as waiting past its `hold`, while a token is available. It is refused once
    /// there is none.
    pub(crate) fn note_expired_hold(&mut self, index: WaiterIndex, work: &mut Work) {
        let expired_holds = &mut work.expired_holds;
        if expired_holds.len() > 2 * self.waiters.store.len() + 16 {
            expired_holds.retain(|ticket| self.find(*ticket).is_some_and(Waiter::is_waiting));
        }
        expired_holds.push(self.ticket(index));
    }
}

/// The interval between checks of a retry waiting past its `hold` while the retry bucket lets more
/// through.
const STILL_OPEN: Duration = Duration::from_millis(100);
