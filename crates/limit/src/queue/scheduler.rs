//! The scheduler decides whose turn it is: lanes by rank, the classes of a lane in turn, the flows
//! of a class in turn, the calls of a queue in order.
//!
//! Queues with the same requirements form a queue group, and the queue groups of a class that
//! differ only in buckets and slots of their own form a shape group. Shared resources are checked
//! once per shape group, a queue group's own only when its turn comes, and a queue group that is
//! stopped by its own is set aside until that changes. So a turn costs the number of classes and
//! shape groups, not the number of queues or calls.

#![expect(clippy::indexing_slicing, reason = "lanes are numbered from zero to the number of lanes with queues")]

use std::collections::{BTreeSet, HashMap};

use super::{
    By, LOOKED_AT_ONCE, Limit, List, Mode, Queue, QueueGroup, QueueGroups, QueueKey, QueueLengths, ShapeGroup, State,
    Waiters,
};
use crate::moment::Moment;
use crate::policy::Cost;
use crate::{
    ClassId, ClassPolicy, GroupIndex, Lane, OfQueue, PerClass, Policy, QueueIndex, Requirements, Resources, Store,
    WaiterIndex,
};

/// Every queue of a gate, in the order in which they get their turns.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    pub(crate) classes: PerClass<ClassTurns>,
    /// The classes in which any call waits, by lane.
    pub(crate) active: [BTreeSet<ClassId>; 3],
    /// The turns that other lanes have had since this one had a turn, while any call waited in it.
    pub(crate) passed: [u32; 3],
    pub(crate) queue_groups: QueueGroups,
    by_needs: HashMap<(ClassId, Mode, Requirements), GroupIndex>,
    /// The queue group of a class and mode that needs no resource of its own; there is at most one.
    unsplit: HashMap<(ClassId, Mode), GroupIndex>,
    pub(crate) queues: Store<OfQueue, Queue>,
    by_id: HashMap<QueueKey, QueueIndex>,
    /// The queue groups set aside until their own bucket has a token, ordered by that moment.
    pub(crate) parked: BTreeSet<(Moment, GroupIndex)>,
    /// The number of turns given so far.
    pub(crate) clock: u64,
    /// The calls in queues, and those on their way there from the queues of old limits.
    pub(crate) waiting: usize,
}

/// The turns of one class.
#[derive(Debug, Default)]
pub(crate) struct ClassTurns {
    pub(crate) lane: usize,
    pub(crate) stamp: u64,
    pub(crate) waiting: usize,
    pub(crate) shape_groups: Vec<ShapeGroup>,
    pub(crate) cost: Cost,
}

/// The turn that is next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// The head of this queue may leave.
    Turn(QueueIndex),
    /// So many queue groups had to be looked at that the rest is for another time.
    NotYetKnown,
    /// No head of a queue may leave.
    None,
}

// === impl Scheduler ===

impl Scheduler {
    pub(crate) fn new(policy: &Policy) -> Self {
        let turns =
            |class: &ClassPolicy| ClassTurns { lane: rank(class.lane), cost: class.cost, ..ClassTurns::default() };
        Self { classes: policy.per_class(turns), ..Self::default() }
    }

    /// True if no queue is left, and nothing that belongs to one.
    pub(crate) fn is_empty(&self) -> bool {
        let mut queue_groups = self.queue_groups.iter();
        queue_groups.all(|queue_group| queue_group.queues.is_empty() && !queue_group.needs.have_own())
            && self.queues.len() == 0
            && self.by_id.is_empty()
            && self.parked.is_empty()
    }

    pub(crate) fn find(&self, id: &QueueKey) -> Option<QueueIndex> {
        self.by_id.get(id).copied()
    }

    pub(crate) fn queue(&self, queue: QueueIndex) -> Option<&Queue> {
        self.queues.get(queue)
    }

    pub(crate) fn group_of(&self, queue: QueueIndex) -> Option<&QueueGroup> {
        self.queue(queue).and_then(|queue| self.queue_groups.get(queue.queue_group))
    }

    /// Returns the queue with this key and makes it if there is none.
    pub(crate) fn open(
        &mut self,
        id: QueueKey,
        needs: &Requirements,
        name: impl FnOnce() -> Option<Box<str>>,
        resources: &mut Resources,
    ) -> QueueIndex {
        if let Some(queue) = self.find(&id) {
            return queue;
        }
        let queue_group = self.open_group(&id, needs, resources);
        self.clock += 1;
        let queue = Queue { id, list: List::default(), len: 0, stamp: stamp(self.clock, 0), queue_group, name: name() };
        let queue = self.queues.insert(queue);
        self.by_id.insert(id, queue);
        queue
    }

    /// Puts a waiter at the end of a queue or, if it comes back, where its sequence places it.
    pub(crate) fn join(&mut self, queue: QueueIndex, index: WaiterIndex, returns: bool, waiters: &mut Waiters) {
        let mut next = None;
        if returns {
            let sequence = |index: WaiterIndex| waiters.get(index).map_or(0, |waiter| waiter.sequence);
            let mine = sequence(index);
            next = self.queue(queue).and_then(|queue| queue.list.first);
            while let Some(other) = next.filter(|other| sequence(*other) < mine) {
                next = List::after(waiters, By::Queue, other);
            }
        }
        self.join_before(queue, index, next, waiters);
    }

    /// Puts a waiter in a queue before another, or at its end.
    pub(crate) fn join_before(
        &mut self,
        queue: QueueIndex,
        index: WaiterIndex,
        next: Option<WaiterIndex>,
        waiters: &mut Waiters,
    ) {
        let Some(found) = self.queues.get_mut(queue) else { return };
        found.list.insert_before(waiters, By::Queue, index, next);
        if let Some(waiter) = waiters.get_mut(index) {
            waiter.state = State::Queued(queue);
        }
        found.len += 1;
        let len = found.len;
        let stamp = found.stamp;
        let queue_group = found.queue_group;
        if len == 1 {
            self.relist(queue_group, |queue_group| _ = queue_group.queues.insert((stamp, queue)));
        }
        self.count(queue_group, |queue_lengths| queue_lengths.grew_to(len as usize), true);
    }

    /// Takes a waiter out of its queue. An empty queue is removed.
    pub(crate) fn part(
        &mut self,
        queue: QueueIndex,
        index: WaiterIndex,
        waiters: &mut Waiters,
        resources: &mut Resources,
    ) {
        let Some(found) = self.queues.get_mut(queue) else { return };
        found.list.remove(waiters, By::Queue, index);
        let len = found.len;
        let stamp = found.stamp;
        let queue_group = found.queue_group;
        found.len = found.len.saturating_sub(1);
        self.count(queue_group, |queue_lengths| queue_lengths.shrank_from(len as usize), false);
        if len == 1 {
            self.relist(queue_group, |queue_group| _ = queue_group.queues.remove(&(stamp, queue)));
            let queue = self.queues.remove(queue);
            queue.map(|queue| self.by_id.remove(&queue.id));
            self.close_group(queue_group, resources);
        }
    }

    /// Returns the queue whose head may leave now, by all rules of order. Queue groups that are
    /// stopped by resources of their own are set aside.
    pub(crate) fn next(&mut self, resources: &Resources, now: Moment) -> Next {
        if self.waiting == 0 {
            return Next::None;
        }
        // All of them come before the next turn: the order of queues does not depend on whose token
        // came first.
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
            Some(queue) => Next::Turn(queue),
            None => Next::None,
        }
    }

    /// Records that a queue has its turn: the queue, its class and its lane are now last among
    /// their peers. A call that costs as much as several of the class's cheapest lets the other
    /// queues have as many turns. Call this before its head parts.
    pub(crate) fn had_turn(&mut self, queue: QueueIndex, cost: u16) {
        self.clock += 1;
        let turns = stamp(self.clock, self.turns_owed(queue, cost));
        let Some(found) = self.queues.get_mut(queue) else { return };
        let old = found.stamp;
        let new = self.clock;
        let queue_group = found.queue_group;
        let class = found.id.class;
        found.stamp = turns;
        self.relist(queue_group, |queue_group| {
            queue_group.queues.remove(&(old, queue));
            queue_group.queues.insert((turns, queue));
        });
        let Some(class) = self.classes.get_mut(class) else { return };
        class.stamp = new;
        let lane = class.lane;
        for other in 0..LANES {
            let waits = other != lane && other > 0 && !self.active[other].is_empty();
            self.passed[other] = if waits { self.passed[other].saturating_add(1) } else { 0 };
        }
    }

    /// Returns the turns beyond one that the other queues of the group have before it is this
    /// queue's again.
    fn turns_owed(&self, queue: QueueIndex, cost: u16) -> u64 {
        let Some((found, group)) = self.queue(queue).zip(self.group_of(queue)) else { return 0 };
        let least = self.classes.get(found.id.class).map_or(1, |class| class.cost.least.max(1));
        u64::from((cost / least).saturating_sub(1)) * (group.queues.len() as u64).saturating_sub(1)
    }

    /// Checks a queue group again, because its own bucket or slots may have become free.
    pub(crate) fn unpark(&mut self, queue_group: GroupIndex) {
        if let Some(until) = self.queue_groups.get(queue_group).and_then(|queue_group| queue_group.parked) {
            self.parked.remove(&(until, queue_group));
            self.relist(queue_group, |queue_group| queue_group.parked = None);
        }
    }

    /// Looks again at a few queue groups whose own token may be there now. Returns false if there
    /// were none.
    fn unpark_due(&mut self, now: Moment) -> bool {
        let before = self.parked.len();
        for _ in 0..LOOKED_AT_ONCE {
            let Some(&(_, queue_group)) = self.parked.first().filter(|(until, _)| *until <= now) else { break };
            self.unpark(queue_group);
        }
        self.parked.len() < before
    }

    /// Looks again at the next queue group that is set aside, whatever stopped it.
    pub(crate) fn unpark_after(&mut self, from: (Moment, GroupIndex)) -> Option<(Moment, GroupIndex)> {
        let next = *self.parked.range((std::ops::Bound::Excluded(from), std::ops::Bound::Unbounded)).next()?;
        self.unpark(next.1);
        Some(next)
    }

    /// Returns the queue group of a class and mode that needs no resource of its own.
    pub(crate) fn unsplit_group(&self, class: ClassId, mode: Mode) -> Option<&QueueGroup> {
        self.unsplit.get(&(class, mode)).and_then(|queue_group| self.queue_groups.get(*queue_group))
    }

    /// Returns the queue of a lane that has its next turn, if any call in the lane may leave.
    fn candidate(&mut self, lane: usize, resources: &Resources, looks: &mut usize, now: Moment) -> Option<QueueIndex> {
        let mut best: Option<(u64, QueueIndex)> = None;
        for &class in &self.active[lane] {
            let turns = self.classes.of_mut(class);
            debug_assert_eq!(turns.lane, lane, "a class is in its own lane");
            if best.is_some_and(|(stamp, _)| stamp <= turns.stamp) {
                continue;
            }
            let mut first: Option<(u64, QueueIndex)> = None;
            for shape_group in &mut turns.shape_groups {
                let limit = Limit { stamp: first.map_or(u64::MAX, |(stamp, _)| stamp), class };
                let groups = &mut self.queue_groups;
                let parked = &mut self.parked;
                first = shape_group.first(limit, groups, resources, parked, looks, now).or(first);
            }
            best = first.map(|(_, queue)| (turns.stamp, queue)).or(best);
        }
        best.map(|(_, queue)| queue)
    }

    /// Changes what decides a queue group's place in its shape group, and moves it to its new
    /// place.
    fn relist(&mut self, queue_group: GroupIndex, change: impl FnOnce(&mut QueueGroup)) {
        let Some(found) = self.queue_groups.get_mut(queue_group) else { return };
        let place = |found: &QueueGroup| found.stamp().filter(|_| found.parked.is_none());
        let before = place(found);
        change(found);
        let after = place(found);
        let mode = found.mode;
        if before == after {
            return;
        }
        let Some(class) = self.classes.get_mut(found.class) else { return };
        let Some(shape_group) = class.shape_groups.iter_mut().find(|group| group.mode == mode) else { return };
        if let Some(stamp) = before {
            shape_group.ready.remove(&(stamp, queue_group));
        }
        if let Some(stamp) = after {
            shape_group.ready.insert((stamp, queue_group));
        }
    }

    /// Keeps the counts of waiting calls.
    fn count(&mut self, queue_group: GroupIndex, queue_lengths: impl FnOnce(&mut QueueLengths), more: bool) {
        let Some(queue_group) = self.queue_groups.get_mut(queue_group) else { return };
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

    fn open_group(&mut self, id: &QueueKey, needs: &Requirements, resources: &mut Resources) -> GroupIndex {
        let by_needs = (id.class, id.mode, needs.clone());
        if let Some(queue_group) = self.by_needs.get(&by_needs) {
            return *queue_group;
        }
        let queue_group = self.queue_groups.insert(QueueGroup::new(id, needs.clone()));
        self.by_needs.insert(by_needs, queue_group);
        if !needs.have_own() {
            self.unsplit.insert((id.class, id.mode), queue_group);
        }
        resources.add_user(needs, id.class, queue_group);
        if let Some(class) = self.classes.get_mut(id.class)
            && !class.shape_groups.iter().any(|shape_group| shape_group.mode == id.mode)
        {
            class.shape_groups.push(ShapeGroup::new(id.mode));
        }
        queue_group
    }

    /// Drops a queue group without queues. Those that need no resource of their own are few, and
    /// are kept.
    fn close_group(&mut self, queue_group: GroupIndex, resources: &mut Resources) {
        let is_over = |found: &QueueGroup| found.queues.is_empty() && found.needs.have_own();
        if !self.queue_groups.get(queue_group).is_some_and(is_over) {
            return;
        }
        let Some(found) = self.queue_groups.remove(queue_group) else { return };
        if let Some(until) = found.parked {
            self.parked.remove(&(until, queue_group));
        }
        resources.remove_user(&found.needs, found.class, queue_group);
        self.by_needs.remove(&(found.class, found.mode, found.needs));
    }
}

/// Returns the stamp of a queue that had this turn, and owes the others so many more. Of two whose
/// turns come together, the one that owes less goes first: the other's are not yet over. No two
/// stamps are alike, as no two queues had the same turn.
fn stamp(turn: u64, owed: u64) -> u64 {
    (turn + owed) << OWED_BITS | owed.min((1 << OWED_BITS) - 1)
}

/// The bits of a stamp that say what is owed. More than they can say is owed only by a call that
/// costs as much as thousands.
const OWED_BITS: u32 = 16;

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
