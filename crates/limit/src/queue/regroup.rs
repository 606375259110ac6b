//! Waiting calls on their way from the queues of the old limits to those of the new.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::{By, LOOKED_AT_ONCE, List, QueueKey, Scheduler, WaiterWalk, Waiters};
use crate::{Origins, QueueIndex, Requirements, Resources, Ticket, WaiterIndex};

/// Waiters on their way from the queues of the old limits to those of the new.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) old: Scheduler,
    /// For each new class, the old one that it was.
    pub(crate) origins: Origins,
    /// The old queues that were looked at, in the order in which their first calls entered.
    heads: BinaryHeap<Reverse<(u64, QueueIndex)>>,
    /// The place of the first old queue that was not looked at.
    next_queue: usize,
    /// The calls that came meanwhile, in order.
    pub(crate) late: VecDeque<(Ticket, Box<str>)>,
    /// A walk over all calls that wait for their keys.
    pub(crate) walk: WaiterWalk,
}

/// A queue of the old limits, for the one that takes its place.
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

    /// Looks at a few more of the old queues. Returns false if there were none.
    pub(crate) fn look_at_queues(&mut self, waiters: &Waiters) -> bool {
        let places = self.old.queues.capacity();
        if self.next_queue >= places {
            return false;
        }
        for place in self.next_queue..places.min(self.next_queue + LOOKED_AT_ONCE) {
            let index = QueueIndex::at(place);
            let first = self.old.queue(index).and_then(|queue| waiters.get(queue.list.first?));
            self.heads.extend(first.map(|first| Reverse((first.sequence, index))));
        }
        self.next_queue += LOOKED_AT_ONCE;
        true
    }

    /// Returns the call that entered first of all that have not moved.
    pub(crate) fn next(&mut self, waiters: &Waiters) -> Option<WaiterIndex> {
        loop {
            let mut head = self.heads.peek_mut()?;
            let Reverse((sequence, queue)) = *head;
            let first = self.old.queue(queue).and_then(|queue| queue.list.first);
            match first.and_then(|first| Some((first, waiters.get(first)?.sequence))) {
                None => _ = std::collections::binary_heap::PeekMut::pop(head),
                Some((index, found)) if found == sequence => return Some(index),
                // The one before has moved, or left.
                Some((_, found)) => *head = Reverse((found, queue)),
            }
        }
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Takes a waiter out of a queue of old limits, of which nothing is used any more. Returns the
    /// queue's stamp and name.
    pub(crate) fn take_out(
        &mut self,
        queue: QueueIndex,
        index: WaiterIndex,
        waiters: &mut Waiters,
    ) -> Option<OldQueue> {
        let found = self.queues.get_mut(queue)?;
        found.list.remove(waiters, By::Queue, index);
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
                // It is removed now, because all of them at the end would be too many.
                self.queue_groups.remove(queue_group);
            }
        }
        Some(OldQueue { stamp, name: self.queues.remove(queue)?.name })
    }

    /// Puts a waiter where its sequence says, which is nearly always the end.
    pub(crate) fn join_in_order(&mut self, queue: QueueIndex, index: WaiterIndex, waiters: &mut Waiters) {
        let sequence = |index: WaiterIndex| waiters.get(index).map_or(0, |waiter| waiter.sequence);
        let mine = sequence(index);
        let list = self.queue(queue).map(|queue| queue.list).unwrap_or_default();
        let mut next = None;
        let mut before = list.last;
        while let Some(other) = before.filter(|other| sequence(*other) > mine) {
            next = before;
            before = List::before(waiters, By::Queue, other);
        }
        self.join_before(queue, index, next, waiters);
    }

    /// Returns the queue with this key, made if need be with a stamp it had before a reload.
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

    /// Takes over the order of turns from before a reload. `origins` gives for each class which old
    /// one it was.
    pub(crate) fn inherit(&mut self, old: &Self, origins: &Origins) {
        self.clock = old.clock;
        self.passed = old.passed;
        let stamps = origins.map(|origin| origin.and_then(|origin| old.classes.get(origin)).map(|old| old.stamp));
        for (turns, (_, stamp)) in self.classes.values_mut().zip(stamps.iter()) {
            turns.stamp = stamp.unwrap_or(old.clock);
        }
    }
}
