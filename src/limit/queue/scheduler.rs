//! The scheduler decides whose turn it is: lanes by rank, the classes of a lane in turn, the flows
//! of a class in turn, the calls of a queue in order.
//!
//! Queues with the same requirements form a queue group, and the queue groups of a class that
//! differ only in buckets and slots of their own form a shape group. Shared resources are checked
//! once per shape group, a queue group's own only when its turn comes, and a queue group that is
//! stopped by its own is set aside until that changes. So a turn costs the number of classes and
//! shape groups, not the number of queues or calls.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use std::collections::{BTreeSet, HashMap};

use slab::Slab;

use super::{
    group::{Mode, Queue, QueueGroup, QueueKey},
    lengths::QueueLengths,
    shape_group::ShapeGroup,
    waiter::{By, List, State, Waiters},
    walk::LOOKED_AT_ONCE,
};
use crate::{
    limit::{
        policy::{Lane, Policy},
        refusal::Reason,
        resources::{Resources, demand::Requirements},
    },
    moment::Moment,
};

/// Every queue of a gate, in the order in which they get their turns.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) classes: Vec<ClassTurns>,
    /// The classes in which any call waits, by lane.
    pub(crate) active: [BTreeSet<usize>; 3],
    /// The turns that other lanes have had since this one had a turn, while any call waited in it.
    pub(crate) passed: [u32; 3],
    pub(crate) queue_groups: Slab<QueueGroup>,
    by_needs: HashMap<(usize, Mode, Requirements), u32>,
    /// The queue group of a class and mode that needs no resource of its own; there is at most one.
    unsplit: HashMap<(usize, Mode), u32>,
    pub(crate) queues: Slab<Queue>,
    by_id: HashMap<QueueKey, u32>,
    /// The queue groups set aside until their own bucket has a token, ordered by that moment.
    pub(crate) parked: BTreeSet<(Moment, u32)>,
    /// The number of turns given so far.
    pub(crate) clock: u64,
    /// Calls in queues, and those on their way there from the queues of old limits.
    pub(crate) waiting: usize,
}

#[derive(Debug)]
pub(crate) struct ClassTurns {
    lane: usize,
    pub(crate) stamp: u64,
    pub(crate) waiting: usize,
    pub(crate) shape_groups: Vec<ShapeGroup>,
}

/// A turn that can be taken.
#[derive(Clone, Copy, Debug)]
struct Turn {
    class: usize,
    queue: u32,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// The head of this queue may leave.
    Turn(u32),
    /// So many had to be looked at that the rest is for another time.
    NotYetKnown,
    /// No head of a queue may leave.
    Nobody,
}

// === impl Scheduler ===

impl Scheduler {
    pub(crate) fn new(policy: &Policy) -> Self {
        let class = |lane| ClassTurns { lane: rank(lane), stamp: 0, waiting: 0, shape_groups: Vec::new() };
        Self {
            classes: policy.classes.iter().map(|policy| class(policy.lane)).collect(),
            active: Default::default(),
            passed: [0; 3],
            queue_groups: Slab::new(),
            by_needs: HashMap::new(),
            unsplit: HashMap::new(),
            queues: Slab::new(),
            by_id: HashMap::new(),
            parked: BTreeSet::new(),
            clock: 0,
            waiting: 0,
        }
    }

    /// Calls in queues, and those that are on their way there from the queues of old limits.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// True if no queue is left, and nothing that belongs to one.
    pub(crate) fn is_empty(&self) -> bool {
        let queue_groups = self
            .queue_groups
            .iter()
            .all(|(_, queue_group)| queue_group.queues.is_empty() && !queue_group.needs.have_own());
        queue_groups && self.queues.is_empty() && self.by_id.is_empty() && self.parked.is_empty()
    }

    pub(crate) fn find(&self, id: &QueueKey) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    pub(crate) fn queue(&self, queue: u32) -> Option<&Queue> {
        self.queues.get(queue as usize)
    }

    pub(crate) fn group_of(&self, queue: u32) -> Option<&QueueGroup> {
        self.queue(queue).and_then(|queue| self.queue_groups.get(queue.queue_group as usize))
    }

    /// Returns the queue with this key and makes it if there is none.
    pub(crate) fn open(
        &mut self,
        id: QueueKey,
        needs: &Requirements,
        name: impl FnOnce() -> Option<Box<str>>,
        resources: &mut Resources,
    ) -> u32 {
        if let Some(queue) = self.find(&id) {
            return queue;
        }
        let queue_group = self.open_group(&id, needs, resources);
        self.clock += 1;
        let queue = Queue { id, list: List::default(), len: 0, stamp: self.clock, queue_group, name: name() };
        let queue = u32::try_from(self.queues.insert(queue)).unwrap_or(u32::MAX);
        self.by_id.insert(id, queue);
        queue
    }

    /// Puts a waiter at the end of a queue or, if it comes back, where its sequence places it.
    pub(crate) fn join(&mut self, queue: u32, index: u32, returns: bool, waiters: &mut Waiters) {
        let mut next = None;
        if returns {
            let sequence = |index: u32| waiters.get(index).map_or(0, |waiter| waiter.sequence);
            let mine = sequence(index);
            next = self.queue(queue).and_then(|queue| queue.list.first());
            while let Some(other) = next.filter(|other| sequence(*other) < mine) {
                next = List::after(waiters, By::Queue, other);
            }
        }
        self.join_before(queue, index, next, waiters);
    }

    /// Puts a waiter in a queue before another, or at its end.
    pub(crate) fn join_before(&mut self, queue: u32, index: u32, next: Option<u32>, waiters: &mut Waiters) {
        let Some(found) = self.queues.get_mut(queue as usize) else { return };
        found.list.insert_before(waiters, By::Queue, index, next);
        if let Some(waiter) = waiters.get_mut(index) {
            waiter.state = State::Queued(queue);
        }
        found.len += 1;
        let (len, stamp, queue_group) = (found.len, found.stamp, found.queue_group);
        if len == 1 {
            self.relist(queue_group, |queue_group| _ = queue_group.queues.insert((stamp, queue)));
        }
        self.count(queue_group, |queue_lengths| queue_lengths.grew_to(len as usize), true);
    }

    /// Takes a waiter out of its queue. An empty queue is removed.
    pub(crate) fn part(&mut self, queue: u32, index: u32, waiters: &mut Waiters, resources: &mut Resources) {
        let Some(found) = self.queues.get_mut(queue as usize) else { return };
        found.list.remove(waiters, By::Queue, index);
        let (len, stamp, queue_group) = (found.len, found.stamp, found.queue_group);
        found.len = found.len.saturating_sub(1);
        self.count(queue_group, |queue_lengths| queue_lengths.shrank_from(len as usize), false);
        if len == 1 {
            self.relist(queue_group, |queue_group| _ = queue_group.queues.remove(&(stamp, queue)));
            let id = self.queues.remove(queue as usize).id;
            self.by_id.remove(&id);
            self.close_group(queue_group, resources);
        }
    }

    /// Returns the queue whose head may leave now, by all rules of order. Queue groups that are
    /// stopped by resources of their own are set aside.
    pub(crate) fn next(&mut self, resources: &Resources, now: Moment) -> Next {
        if self.waiting == 0 {
            return Next::Nobody;
        }
        // All of them before anyone's turn: who of them is first is not a matter of whose token came first.
        if self.unpark_due(now) {
            return Next::NotYetKnown;
        }
        let mut looks = LOOKED_AT_ONCE;
        let mut order = [0, 1, 2];
        // A lower lane that has been passed often enough comes first, the one passed longest before
        // the other.
        order.sort_by_key(|lane| std::cmp::Reverse(if self.passed[*lane] >= PASSED { self.passed[*lane] } else { 0 }));
        let turn = order.into_iter().find_map(|lane| self.candidate(lane, resources, &mut looks, now));
        match turn {
            _ if looks == 0 => Next::NotYetKnown,
            Some(turn) => Next::Turn(turn.queue),
            None => Next::Nobody,
        }
    }

    /// Records that a queue has its turn: the queue, its class and its lane are now last among
    /// their peers. Call this before its head parts.
    pub(crate) fn had_turn(&mut self, queue: u32) {
        let Some(found) = self.queues.get_mut(queue as usize) else { return };
        self.clock += 1;
        let (old, new, queue_group, class) = (found.stamp, self.clock, found.queue_group, found.id.class());
        found.stamp = new;
        self.relist(queue_group, |queue_group| {
            queue_group.queues.remove(&(old, queue));
            queue_group.queues.insert((new, queue));
        });
        let Some(class) = self.classes.get_mut(class) else { return };
        class.stamp = new;
        let lane = class.lane;
        for other in 0..LANES {
            let waits = other != lane && other > 0 && !self.active[other].is_empty();
            self.passed[other] = if waits { self.passed[other].saturating_add(1) } else { 0 };
        }
    }

    /// Checks a queue group again, because its own bucket or slots may have become free.
    pub(crate) fn unpark(&mut self, queue_group: u32) {
        if let Some(until) = self.queue_groups.get(queue_group as usize).and_then(|queue_group| queue_group.parked) {
            self.parked.remove(&(until, queue_group));
            self.relist(queue_group, |queue_group| queue_group.parked = None);
        }
    }

    /// Returns the queue group of a class and mode that needs no resource of its own.
    pub(crate) fn unsplit_group(&self, class: usize, mode: Mode) -> Option<&QueueGroup> {
        self.unsplit.get(&(class, mode)).and_then(|queue_group| self.queue_groups.get(*queue_group as usize))
    }

    /// Returns the reason this queue was stopped last.
    pub(crate) fn stopped(&self, queue: u32) -> Reason {
        let Some(queue_group) = self.group_of(queue) else { return Reason::Bucket };
        let shape_group = self
            .classes
            .get(queue_group.class)
            .and_then(|class| class.shape_groups.iter().find(|shape_group| shape_group.mode == queue_group.mode));
        let latest = shape_group
            .map(|shape_group| shape_group.stopped)
            .filter(|shape_group| shape_group.0 > queue_group.stopped.0);
        latest.unwrap_or(queue_group.stopped).1
    }

    /// Records the reason that stops a queue which has not been checked yet.
    pub(crate) fn note_stopped(&mut self, queue: u32, now: Moment, reason: Reason) {
        let queue_group = self.queue(queue).map(|queue| queue.queue_group as usize);
        if let Some(queue_group) = queue_group.and_then(|queue_group| self.queue_groups.get_mut(queue_group)) {
            queue_group.stopped = (now, reason);
        }
    }

    /// The next turn of a lane, if anyone in it may leave.
    fn candidate(&mut self, lane: usize, resources: &Resources, looks: &mut usize, now: Moment) -> Option<Turn> {
        let mut best: Option<(u64, Turn)> = None;
        for &class in &self.active[lane] {
            let turns = &mut self.classes[class];
            if best.is_some_and(|(stamp, _)| stamp <= turns.stamp) {
                continue;
            }
            let mut first: Option<(u64, u32)> = None;
            for shape_group in &mut turns.shape_groups {
                let limit = first.map_or(u64::MAX, |(stamp, _)| stamp);
                if let Some(found) =
                    shape_group.first((limit, class), &mut self.queue_groups, resources, &mut self.parked, (looks, now))
                {
                    first = Some(found);
                }
            }
            if let Some((_, queue)) = first {
                best = Some((turns.stamp, Turn { class, queue }));
            }
        }
        debug_assert!(best.is_none_or(|(_, turn)| self.classes[turn.class].lane == lane), "a class is in its own lane");
        best.map(|(_, turn)| turn)
    }

    /// Changes what decides a queue group's place in its shape group, and moves it to its new
    /// place.
    fn relist(&mut self, queue_group: u32, change: impl FnOnce(&mut QueueGroup)) {
        let Some(found) = self.queue_groups.get_mut(queue_group as usize) else { return };
        let place = |found: &QueueGroup| found.stamp().filter(|_| found.parked.is_none());
        let before = place(found);
        change(found);
        let (after, mode) = (place(found), found.mode);
        if before == after {
            return;
        }
        let shape_groups = self.classes.get_mut(found.class).map(|class| &mut class.shape_groups);
        let Some(shape_group) =
            shape_groups.and_then(|shape_groups| shape_groups.iter_mut().find(|shape_group| shape_group.mode == mode))
        else {
            return;
        };
        if let Some(stamp) = before {
            shape_group.ready.remove(&(stamp, queue_group));
        }
        if let Some(stamp) = after {
            shape_group.ready.insert((stamp, queue_group));
        }
    }

    /// Keeps the counts of waiting calls.
    fn count(&mut self, queue_group: u32, queue_lengths: impl FnOnce(&mut QueueLengths), more: bool) {
        let Some(queue_group) = self.queue_groups.get_mut(queue_group as usize) else { return };
        let by = |count: usize| if more { count + 1 } else { count.saturating_sub(1) };
        queue_lengths(&mut queue_group.queue_lengths);
        queue_group.waiting = by(queue_group.waiting);
        self.waiting = by(self.waiting);
        let Some(class) = self.classes.get_mut(queue_group.class) else { return };
        class.waiting = by(class.waiting);
        if class.waiting == 0 {
            self.active[class.lane].remove(&queue_group.class);
        } else if more && class.waiting == 1 {
            self.active[class.lane].insert(queue_group.class);
        }
    }

    fn open_group(&mut self, id: &QueueKey, needs: &Requirements, resources: &mut Resources) -> u32 {
        let by_needs = (id.class(), id.mode, needs.clone());
        if let Some(queue_group) = self.by_needs.get(&by_needs) {
            return *queue_group;
        }
        let queue_group =
            u32::try_from(self.queue_groups.insert(QueueGroup::new(id, needs.clone()))).unwrap_or(u32::MAX);
        self.by_needs.insert(by_needs, queue_group);
        if !needs.have_own() {
            self.unsplit.insert((id.class(), id.mode), queue_group);
        }
        resources.add_user(needs, id.class(), queue_group);
        if let Some(class) = self.classes.get_mut(id.class())
            && !class.shape_groups.iter().any(|shape_group| shape_group.mode == id.mode)
        {
            class.shape_groups.push(ShapeGroup::new(id.mode));
        }
        queue_group
    }

    /// Drops a queue group without queues. Those that need no resource of their own are few, and
    /// are kept.
    fn close_group(&mut self, queue_group: u32, resources: &mut Resources) {
        let Some(found) = self.queue_groups.get(queue_group as usize) else { return };
        if !found.queues.is_empty() || !found.needs.have_own() {
            return;
        }
        let found = self.queue_groups.remove(queue_group as usize);
        if let Some(until) = found.parked {
            self.parked.remove(&(until, queue_group));
        }
        resources.remove_user(&found.needs, found.class, queue_group);
        self.by_needs.remove(&(found.class, found.mode, found.needs));
    }
}

// === impl ClassTurns ===

impl ClassTurns {
    pub(crate) fn lane(&self) -> usize {
        self.lane
    }
}

/// A waiting lower lane gets every tenth turn.
pub(crate) const PASSED: u32 = 9;

/// The number of lanes with queues.
const LANES: usize = 3;

/// Returns the rank of a lane. The exempt lane has no queue: calls of a class that became exempt
/// are released.
fn rank(lane: Lane) -> usize {
    match lane {
        Lane::Exempt | Lane::High => 0,
        Lane::Normal => 1,
        Lane::Low => 2,
    }
}
