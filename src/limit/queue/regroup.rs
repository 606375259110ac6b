//! Waiting calls on their way from the queues of the old limits to those of the new.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use super::{
    scheduler::Scheduler,
    waiter::Waiters,
    walk::{LOOKED_AT_ONCE, WaiterWalk},
};
use crate::limit::verdict::Ticket;

/// Waiters on their way from the queues of the old limits to those of the new.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) old: Scheduler,
    /// Which old class each new one was.
    pub(crate) origins: Vec<Option<usize>>,
    /// The old queues that were looked at, by when their first call entered.
    pub(crate) heads: BinaryHeap<Reverse<(u64, u32)>>,
    /// The first of those that were not.
    pub(crate) next_queue: usize,
    /// The calls that came meanwhile, in order.
    pub(crate) late: VecDeque<(Ticket, Box<str>)>,
    /// Over all calls that wait for their keys.
    pub(crate) walk: WaiterWalk,
}

// === impl Move ===

impl Move {
    /// Looks at a few more of the old queues; says whether there were any.
    pub(crate) fn look_at_queues(&mut self, waiters: &Waiters) -> bool {
        let places = self.old.queues.capacity();
        if self.next_queue >= places {
            return false;
        }
        for place in self.next_queue..places.min(self.next_queue + LOOKED_AT_ONCE) {
            if let (Some(queue), Ok(place)) = (self.old.queues.get(place), u32::try_from(place)) {
                let first = queue.list.first().and_then(|first| waiters.get(first));
                self.heads.extend(first.map(|first| Reverse((first.sequence, place))));
            }
        }
        self.next_queue += LOOKED_AT_ONCE;
        true
    }

    /// The call that entered first of all that have not moved.
    pub(crate) fn next(&mut self, waiters: &Waiters) -> Option<u32> {
        loop {
            let mut head = self.heads.peek_mut()?;
            let Reverse((sequence, queue)) = *head;
            let first = self.old.queue(queue).and_then(|queue| queue.list.first());
            match first.and_then(|first| Some((first, waiters.get(first)?.sequence))) {
                None => _ = std::collections::binary_heap::PeekMut::pop(head),
                Some((index, found)) if found == sequence => return Some(index),
                // The one before has moved, or left.
                Some((_, found)) => *head = Reverse((found, queue)),
            }
        }
    }
}
