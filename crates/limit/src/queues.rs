//! The queues with the calls that wait in them or for their keys, and a reload's move from the old
//! queues to the new.

use std::time::Duration;

use super::{
    BucketId, Claim, ClassId, Move, Permit, QueueIndex, QueueKey, Requirements, Resources, Rules, Scheduler, State,
    Ticket, Waiter, WaiterIndex, Waiting, Work,
};
use crate::moment::Moment;

/// Every waiting call, and the queues.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) scheduler: Scheduler,
    pub(crate) waiting: Waiting,
    /// A reload whose waiters are on their way to their new queues.
    pub(crate) moving: Option<Box<Move>>,
}

/// A call's place: its queue, and what it requires there.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) id: QueueKey,
    pub(crate) needs: Requirements,
}

// === impl Queues ===

impl Queues {
    pub(crate) fn new(scheduler: Scheduler) -> Self {
        Self { scheduler, waiting: Waiting::default(), moving: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.scheduler.is_empty() && self.moving.is_none()
    }

    /// Adds a call to its key's held calls: at the end, or before all others. The key becomes
    /// dirty.
    pub(crate) fn hold(&mut self, index: WaiterIndex, first: bool, rules: &Rules, work: &mut Work) {
        let key = self.waiting.hold(index, first);
        self.set_timer(index, rules);
        work.dirty_keys.extend(key);
    }

    /// Puts a waiter in a queue: at its end, or where it was if it returns.
    pub(crate) fn join(&mut self, queue: QueueIndex, index: WaiterIndex, returns: bool, rules: &Rules, now: Moment) {
        self.waiting.enter(index, returns, now);
        self.scheduler.join(queue, index, returns, &mut self.waiting.waiters);
        self.waiting.note_passed(index);
        self.set_timer(index, rules);
    }

    /// Puts a waiter at the end of its queue, and notes what stops it there.
    pub(crate) fn queue_up(
        &mut self,
        index: WaiterIndex,
        place: Place,
        name: Option<Box<str>>,
        rules: &Rules,
        resources: &mut Resources,
        now: Moment,
    ) {
        let Place { id, needs } = place;
        let queue = self.scheduler.open(id, &needs, || name, resources);
        if let Some(block) = resources.blocked(&needs, id.class, now) {
            self.scheduler.note_stopped(queue, now, block.reason);
        }
        self.join(queue, index, false, rules, now);
    }

    /// Keeps a call that came during a move and may not go at once. It queues when all before it
    /// have moved.
    pub(crate) fn await_move(&mut self, index: WaiterIndex, name: Box<str>, rules: &Rules) {
        self.waiting.note_passed(index);
        let ticket = self.waiting.ticket(index);
        if let Some(moving) = &mut self.moving {
            moving.late.push_back((ticket, name));
        }
        self.set_timer(index, rules);
    }

    /// Sets a waiter's timer to the end of its present wait, be it for its key or in a queue.
    pub(crate) fn set_timer(&mut self, index: WaiterIndex, rules: &Rules) {
        let Some(waiter) = self.waiting.get(index) else { return };
        let for_key = match waiter.state {
            State::Held => true,
            State::Queued(queue) => self.retry_tokens(queue, rules).is_some_and(|mut tokens| tokens.next().is_some()),
            State::Granted(_) | State::Refused(_) | State::Unconnected => return,
        };
        let at = if for_key { waiter.ends.min(waiter.hold_ends) } else { waiter.ends };
        self.waiting.set_timer(index, at);
    }

    /// Returns the buckets for whose tokens the calls of a queue are held no longer than their keys
    /// may hold them. `None` if it is no queue of retries, or retries are not metered.
    pub(crate) fn retry_tokens(&self, queue: QueueIndex, rules: &Rules) -> Option<impl Iterator<Item = BucketId>> {
        rules.policy().retry_bucket?;
        let queue_group = self.scheduler.group_of(queue).filter(|queue_group| queue_group.mode.retry)?;
        Some(queue_group.needs.charges.of_retry())
    }

    /// True if the calls of a queue are retries whose bucket is open.
    pub(crate) fn is_open(&self, queue: QueueIndex, resources: &Resources) -> bool {
        let group = self.scheduler.group_of(queue);
        group.is_some_and(|queue_group| resources.retries_are_open(&queue_group.needs.charges))
    }

    /// Lets a retry whose `hold` is over wait on for a while.
    pub(crate) fn look_again(&mut self, index: WaiterIndex, rules: &Rules, now: Moment) {
        if let Some(waiter) = self.waiting.get_mut(index) {
            waiter.hold_ends = now + STILL_OPEN;
            self.set_timer(index, rules);
        }
    }

    /// Ends a waiter's wait with a verdict that can now be claimed.
    pub(crate) fn conclude(&mut self, index: WaiterIndex, state: State, work: &mut Work) {
        if let Some(waiter) = self.waiting.get_mut(index) {
            waiter.state = state;
            work.events.push_back(self.waiting.ticket(index));
        }
    }

    /// Returns the next waiting call whose answer may have changed.
    pub(crate) fn next_event(&self, work: &mut Work) -> Option<Ticket> {
        let is_news = |ticket: &Ticket| self.waiting.find(*ticket).is_some_and(|waiter| !waiter.is_waiting());
        std::iter::from_fn(|| work.events.pop_front()).find(is_news)
    }

    /// Takes the verdict of a waiting call.
    pub(crate) fn take_verdict(&mut self, ticket: Ticket) -> Claim {
        match self.waiting.find(ticket).map(Waiter::is_waiting) {
            None => return Claim::Unconnected,
            Some(true) => return Claim::Waiting,
            Some(false) => self.waiting.leave_key(ticket.index),
        }
        let Some(waiter) = self.waiting.waiters.remove(ticket.index) else { return Claim::Unconnected };
        match waiter.state {
            State::Granted(grant) => Claim::Permit(Permit::new(waiter.call, *grant)),
            State::Refused(refusal) => Claim::Refused(*refusal),
            State::Held | State::Queued(_) | State::Unconnected => Claim::Unconnected,
        }
    }

    /// Records that a retry's `hold` ended while a token was there.
    pub(crate) fn note_expired_hold(&mut self, index: WaiterIndex, work: &mut Work) {
        let expired_holds = &mut work.expired_holds;
        if expired_holds.len() > 2 * self.waiting.waiters.store.len() + 16 {
            expired_holds.retain(|ticket| self.waiting.find(*ticket).is_some_and(Waiter::is_waiting));
        }
        expired_holds.push(self.waiting.ticket(index));
    }

    /// Returns the number of calls that wait in the old queues of a class.
    pub(crate) fn unmoved(&self, class: ClassId) -> usize {
        let old = self.moving.as_ref().and_then(|moving| {
            let origin = moving.origins.get(class).copied().flatten()?;
            moving.old.classes.get(origin)
        });
        old.map_or(0, |class| class.waiting)
    }
}

/// The time after which a retry that waits in an open bucket looks if it is still open.
const STILL_OPEN: Duration = Duration::from_millis(100);
