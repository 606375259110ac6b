//! The move of waiting calls from the queues of the old limits to those of the new, after a reload.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

use super::{LOOKED_AT_ONCE, ListKind, QueuePlace, Queues, Scheduler, Step, Waiter, WaiterState, WaiterWalk, Waiters};
use crate::moment::Moment;
use crate::{
    CallFacts, ClassId, Origins, Policy, QueueIndex, QueueKey, Requirements, Resources, Rules, Ticket, WaiterIndex,
};

/// The progress of moving all waiting calls to new queues after a reload.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) old: Scheduler,
    /// For each new class, the old class of the same name.
    pub(crate) origins: Origins,
    /// The old queues found so far, ordered by when their first calls entered.
    heads: BinaryHeap<Reverse<(u64, QueueIndex)>>,
    /// The index of the next old queue to look at.
    next_queue: usize,
    /// The calls arrived during the move, in order.
    pub(crate) late: VecDeque<LateCall>,
    /// The progress through the calls waiting for their keys.
    walk: WaiterWalk,
}

/// A call that arrived while waiting calls were moved to new queues.
#[derive(Debug)]
pub(crate) struct LateCall {
    pub(crate) ticket: Ticket,
    pub(crate) flow_name: Box<str>,
}

/// One step of moving the waiting calls to new queues.
#[derive(Debug)]
pub(crate) enum MoveStep {
    /// Move this waiting call to its new queue.
    Carry(WaiterIndex),
    /// Put this call, which arrived during the move, in a queue.
    Place(LateCall),
    /// The step only looked for calls to move.
    Search,
}

/// The turn order and the flow name of an old queue, to be kept by the new queue.
#[derive(Debug)]
pub(crate) struct OldQueue {
    stamp: u64,
    name: Option<Box<str>>,
}

// === impl Move ===

impl Move {
    pub(crate) fn new(old: Scheduler, origins: Origins, waiters: &Waiters) -> Self {
        let heads = BinaryHeap::new();
        let late = VecDeque::new();
        Self { old, origins, heads, next_queue: 0, late, walk: WaiterWalk::over(waiters) }
    }

    /// Returns the next step of a move after a reload; `None` at its end. First the queued calls
    /// move in their order, then the calls that arrived meanwhile, then the calls waiting for their
    /// keys.
    pub(crate) fn next(&mut self, waiters: &Waiters) -> Option<MoveStep> {
        let places = self.old.queues.capacity();
        if self.next_queue < places {
            self.find_heads(places.min(self.next_queue + LOOKED_AT_ONCE), waiters);
            return Some(MoveStep::Search);
        }
        if let Some(index) = self.first(waiters) {
            return Some(MoveStep::Carry(index));
        }
        if let Some(late) = self.late.pop_front() {
            return Some(MoveStep::Place(late));
        }
        match self.walk.step(waiters, |waiter| waiter.era != waiters.era) {
            Step::At(index) => Some(MoveStep::Carry(index)),
            Step::On => Some(MoveStep::Search),
            Step::Over => None,
        }
    }

    /// Looks up the first calls of the next few old queues.
    fn find_heads(&mut self, end: usize, waiters: &Waiters) {
        for place in self.next_queue..end {
            let index = QueueIndex::at(place);
            let first = self.old.queue(index).and_then(|queue| waiters.get(queue.list.first?));
            self.heads.extend(first.map(|first| Reverse((first.sequence, index))));
        }
        self.next_queue = end;
    }

    /// Returns the first call to have entered any of the old queues.
    fn first(&mut self, waiters: &Waiters) -> Option<WaiterIndex> {
        loop {
            let mut head = self.heads.peek_mut()?;
            let Reverse((sequence, queue)) = *head;
            let first = self.old.queue(queue).and_then(|queue| queue.list.first);
            match first.and_then(|first| Some((first, waiters.get(first)?.sequence))) {
                None => _ = PeekMut::pop(head),
                Some((index, found)) if found == sequence => return Some(index),
                // The call before it has moved, or left.
                Some((_, found)) => *head = Reverse((found, queue)),
            }
        }
    }
}

// === impl Queues ===

impl Queues {
    #[inline]
    pub(crate) fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// Begins to move all waiting calls to the queues of a new policy.
    pub(crate) fn begin_move(&mut self, policy: &Policy, origins: Origins) {
        let old = std::mem::replace(&mut self.scheduler, Scheduler::new(policy));
        self.scheduler.inherit(&old, &origins);
        // One more than there are: no call leaves past the others before all have moved.
        self.scheduler.waiting = old.waiting + 1;
        self.waiters.era = self.waiters.era.wrapping_add(1);
        self.moving = Some(Box::new(Move::new(old, origins, &self.waiters)));
    }

    /// Puts an arriving call aside during a move, until all calls before it have moved.
    pub(crate) fn await_move(&mut self, index: WaiterIndex, flow_name: Box<str>, rules: &Rules) {
        self.note_passed(index);
        let ticket = self.ticket(index);
        if let Some(moving) = &mut self.moving {
            moving.late.push_back(LateCall { ticket, flow_name });
        }
        self.set_timer(index, rules);
    }

    /// Returns the next step of a move; `None` when it is over.
    pub(crate) fn next_move(&mut self) -> Option<MoveStep> {
        let step = self.moving.as_mut()?.next(&self.waiters);
        if step.is_none() {
            self.moving = None;
            self.scheduler.waiting = self.scheduler.waiting.saturating_sub(1);
        }
        step
    }

    /// Returns a waiting call, if it has not been moved yet after a reload.
    pub(crate) fn unmoved(&self, index: WaiterIndex) -> Option<&Waiter> {
        self.moving.as_ref()?;
        self.get(index).filter(|waiter| waiter.era != self.waiters.era)
    }

    /// Applies the new limits to a call, and takes the call out of its old queue. Returns the order
    /// and the name of this queue, if there was one.
    pub(crate) fn renew(&mut self, index: WaiterIndex, call: CallFacts, ends: Moment) -> Option<OldQueue> {
        let era = self.waiters.era;
        let waiter = self.waiters.get_mut(index)?;
        waiter.call = call;
        waiter.ends = ends;
        waiter.era = era;
        let WaiterState::Queued(queue) = waiter.state else { return None };
        waiter.state = WaiterState::Held;
        self.scheduler.waiting = self.scheduler.waiting.saturating_sub(1);
        self.moving.as_mut()?.old.take_out(queue, index, &mut self.waiters)
    }

    /// Moves a call from its old queue to the new one.
    pub(crate) fn move_over(
        &mut self,
        index: WaiterIndex,
        place: &QueuePlace,
        old: OldQueue,
        resources: &mut Resources,
    ) {
        let queue = self.scheduler.open_at(place.id, &place.needs, old, resources);
        self.scheduler.join(queue, index, &mut self.waiters);
    }

    /// Lets a waiting call continue without a key, because its new class remembers no failures.
    pub(crate) fn forget_key(&mut self, index: WaiterIndex) {
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.call.key = None;
        }
    }

    /// Returns the number of calls of a class still in old queues.
    pub(crate) fn unmoved_of(&self, class: ClassId) -> usize {
        let old = self.moving.as_ref().and_then(|moving| {
            let origin = moving.origins.get(class).copied().flatten()?;
            moving.old.classes.get(origin)
        });
        old.map_or(0, |class| class.waiting)
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Takes a call out of an old queue.
    pub(crate) fn take_out(
        &mut self,
        queue: QueueIndex,
        index: WaiterIndex,
        waiters: &mut Waiters,
    ) -> Option<OldQueue> {
        let found = self.queues.get_mut(queue)?;
        found.list.remove(waiters, ListKind::Queue, index);
        found.len = found.len.saturating_sub(1);
        let stamp = found.stamp;
        let class = found.id.class;
        let queue_group = found.queue_group;
        let is_empty = found.len == 0;
        if let Some(class) = self.classes.get_mut(class) {
            class.waiting = class.waiting.saturating_sub(1);
        }
        if !is_empty {
            return Some(OldQueue { stamp, name: found.name.clone() });
        }
        if let Some(found) = self.queue_groups.get_mut(queue_group) {
            found.queues.remove(&(stamp, queue));
            if found.queues.is_empty() {
                // Removing all of them at the end would take too long.
                self.queue_groups.remove(queue_group);
            }
        }
        Some(OldQueue { stamp, name: self.queues.remove(queue)?.name })
    }

    /// Returns the queue with this identity. If the queue is new, it gets the turn order and the
    /// flow name of the old one.
    pub(crate) fn open_at(
        &mut self,
        id: QueueKey,
        needs: &Requirements,
        old: OldQueue,
        resources: &mut Resources,
    ) -> QueueIndex {
        let is_new = self.find(&id).is_none();
        let queue = self.open(id, needs, || old.name, resources);
        if let Some(found) = self.queues.get_mut(queue).filter(|_| is_new) {
            found.stamp = old.stamp;
        }
        queue
    }

    /// Takes over the order of turns from the old queues. `origins` has the old class of each new
    /// one.
    pub(crate) fn inherit(&mut self, old: &Self, origins: &Origins) {
        self.clock = old.clock;
        self.passed = old.passed;
        let stamps = origins.map(|origin| origin.and_then(|origin| old.classes.get(origin)).map(|old| old.stamp));
        for (turns, (_, stamp)) in self.classes.values_mut().zip(stamps.iter()) {
            turns.stamp = stamp.unwrap_or(old.clock);
        }
    }
}
