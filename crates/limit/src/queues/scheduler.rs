//! The order of turns: lanes by rank, the classes of a lane in turn, the flows of a class in turn,
//! the calls of a queue in order.
//!
//! Queues with the same requirements form a queue group, and the queue groups of a class that
//! differ only in buckets and slots of their own form a shape group. Shared resources are checked
//! once per shape group; a queue group's own are checked when its turn comes. A queue group stopped
//! by its own resources is parked until they change. So a turn costs as much as there are classes
//! and shape groups, whatever the number of queues and calls.

#![expect(clippy::indexing_slicing, reason = "lanes and shape groups are indexed by numbers below their counts")]

use std::collections::{BTreeSet, HashMap};

use super::{
    LOOKED_AT_ONCE, List, ListKind, Queue, QueueGroup, QueueGroups, QueueLengths, ShapeGroup, TurnLimit, WaiterState,
    Waiters,
};
use crate::moment::Moment;
use crate::policy::Cost;
use crate::{
    Arena, ClassId, ClassPolicy, GroupIndex, KeyId, Lane, Mode, OfQueue, PerClass, Policy, QueueIndex, QueueKey,
    Requirements, Resources, WaiterIndex,
};

/// The queues of a gate, and the order of their turns.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    pub(crate) classes: PerClass<ClassTurns>,
    /// The classes with waiting calls, by lane.
    pub(crate) active: [BTreeSet<ClassId>; 3],
    /// For each lane with waiting calls, how many calls of other lanes have been sent since the
    /// lane's last call.
    pub(crate) passed: [u32; 3],
    pub(crate) queue_groups: QueueGroups,
    by_needs: HashMap<(ClassId, Mode, Requirements), GroupIndex>,
    pub(crate) queues: Arena<OfQueue, Queue>,
    by_id: HashMap<QueueKey, QueueIndex>,
    /// The parked queue groups (stopped by a bucket per flow or credential), by the moment of the
    /// bucket's next token.
    pub(crate) parked: BTreeSet<(Moment, GroupIndex)>,
    /// Set while all parked queue groups must be checked again.
    pub(crate) recheck_parked: bool,
    /// The number of turns given so far, to put turns in order.
    pub(crate) clock: u64,
    /// The number of calls in queues, counting those still to be moved there after a reload.
    pub(crate) waiting: usize,
}

/// The turns of one class: its queues and the order among them.
#[derive(Debug, Default)]
pub(crate) struct ClassTurns {
    pub(crate) lane: usize,
    pub(crate) stamp: u64,
    pub(crate) waiting: usize,
    pub(crate) shape_groups: Vec<ShapeGroup>,
    pub(crate) cost: Cost,
}

/// The next task for waiting calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DueWork {
    /// The first call of this queue may be sent.
    Turn(QueueIndex),
    /// The calls waiting for this key must be reviewed.
    Key(KeyId),
    /// This call has waited as long as its class allows.
    WaitOver(WaiterIndex),
    /// Too many queue groups had to be checked, so the search continues in the next step.
    Unknown,
}

// === impl Scheduler ===

impl Scheduler {
    pub(crate) fn new(policy: &Policy) -> Self {
        let turns =
            |class: &ClassPolicy| ClassTurns { lane: rank(class.lane), cost: class.cost, ..ClassTurns::default() };
        Self { classes: policy.per_class(turns), ..Self::default() }
    }

    /// Returns true if there is no queue, and nothing is kept for one.
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

    /// Returns the queue with this identity, and makes it if there is none.
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

    /// Puts a call in a queue, in the order of entry numbers: nearly always last, or first if the
    /// call returns.
    pub(crate) fn join(&mut self, queue: QueueIndex, index: WaiterIndex, waiters: &mut Waiters) {
        let Some(found) = self.queues.get_mut(queue) else { return };
        let sequence = |index: WaiterIndex| waiters.get(index).map_or(0, |waiter| waiter.sequence);
        let mine = sequence(index);
        let mut next = None;
        if found.list.last.is_some_and(|last| sequence(last) > mine) {
            next = found.list.first.filter(|first| sequence(*first) > mine);
            let mut before = found.list.last.filter(|_| next.is_none());
            while let Some(other) = before.filter(|other| sequence(*other) > mine) {
                next = before;
                before = List::before(waiters, ListKind::Queue, other);
            }
        }
        found.list.insert_before(waiters, ListKind::Queue, index, next);
        if let Some(waiter) = waiters.get_mut(index) {
            waiter.state = WaiterState::Queued(queue);
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

    /// Takes a call out of its queue. An empty queue is removed.
    pub(crate) fn part(
        &mut self,
        queue: QueueIndex,
        index: WaiterIndex,
        waiters: &mut Waiters,
        resources: &mut Resources,
    ) {
        let Some(found) = self.queues.get_mut(queue) else { return };
        found.list.remove(waiters, ListKind::Queue, index);
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

    /// Returns the queue with the next turn, by all rules of order. Queue groups stopped by a
    /// bucket or slots of their own are set aside (parked).
    pub(crate) fn next(&mut self, resources: &Resources, now: Moment) -> Option<DueWork> {
        if self.waiting == 0 {
            return None;
        }
        // All of them come before the next turn: the order of queues does not depend on whose token
        // came first.
        if self.unpark_due(now) {
            return Some(DueWork::Unknown);
        }
        let mut looks = LOOKED_AT_ONCE;
        let mut order = [0, 1, 2];
        // A lower lane that has been passed often enough comes first, the one passed longest before
        // the other.
        order.sort_by_key(|lane| std::cmp::Reverse(if self.passed[*lane] >= PASSED { self.passed[*lane] } else { 0 }));
        let turn = order.into_iter().find_map(|lane| self.candidate(lane, resources, &mut looks, now));
        if looks == 0 { Some(DueWork::Unknown) } else { turn.map(DueWork::Turn) }
    }

    /// Records the turn of a queue: the queue, its class and its lane are now last among their peers.
    /// A call that costs as much as three of the class's cheapest calls lets the other
    /// queues have three turns. Call this before the call leaves the queue.
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

    /// Returns how many extra turns other queues of the group get before this queue's next, because
    /// its call was expensive.
    fn turns_owed(&self, queue: QueueIndex, cost: u16) -> u64 {
        let Some((found, group)) = self.queue(queue).zip(self.group_of(queue)) else { return 0 };
        let least = self.classes.get(found.id.class).map_or(1, |class| class.cost.least.max(1));
        u64::from((cost / least).saturating_sub(1)) * (group.queues.len() as u64).saturating_sub(1)
    }

    /// Makes a parked queue group take part in turns again, because its own bucket or slots may
    /// have become free.
    pub(crate) fn unpark(&mut self, queue_group: GroupIndex) {
        if let Some(until) = self.queue_groups.get(queue_group).and_then(|queue_group| queue_group.parked) {
            self.parked.remove(&(until, queue_group));
            self.relist(queue_group, |queue_group| queue_group.parked = None);
        }
    }

    /// Makes a few parked queue groups take part in turns again if their time has come. Returns
    /// false if there were none.
    fn unpark_due(&mut self, now: Moment) -> bool {
        let before = self.parked.len();
        for _ in 0..LOOKED_AT_ONCE {
            let due = self.parked.first().filter(|(until, _)| self.recheck_parked || *until <= now);
            let Some(&(_, queue_group)) = due else { break };
            self.unpark(queue_group);
        }
        self.recheck_parked &= !self.parked.is_empty();
        self.parked.len() < before
    }

    /// Returns the queue group of a class for calls without buckets or slots of their own (per flow
    /// or credential).
    pub(crate) fn unsplit_group(&self, class: ClassId, mode: Mode) -> Option<&QueueGroup> {
        self.unsplit_of(self.classes.get(class)?.shape_group(mode)?)
    }

    /// Returns the queue group of a shape group for calls without buckets or slots of their own
    /// (per flow or credential).
    pub(crate) fn unsplit_of(&self, shape_group: &ShapeGroup) -> Option<&QueueGroup> {
        self.queue_groups.get(shape_group.unsplit?)
    }

    /// Returns the queue of a lane with the next turn, if any call of the lane may be sent.
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
                let limit = TurnLimit { stamp: first.map_or(u64::MAX, |(stamp, _)| stamp), class };
                let groups = &mut self.queue_groups;
                let parked = &mut self.parked;
                first = shape_group.first(limit, groups, resources, parked, looks, now).or(first);
            }
            best = first.map(|(_, queue)| (turns.stamp, queue)).or(best);
        }
        best.map(|(_, queue)| queue)
    }

    /// Changes a queue group, and moves it to its new place in the order of its shape group.
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
        let shape_group = class.shape_group_mut(mode);
        if let Some(stamp) = before {
            shape_group.ready.remove(&(stamp, queue_group));
        }
        if let Some(stamp) = after {
            shape_group.ready.insert((stamp, queue_group));
        }
    }

    /// Updates the counts of waiting calls of a queue group.
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
        resources.add_user(needs, id.class, queue_group);
        if let Some(class) = self.classes.get_mut(id.class) {
            let shape_group = class.shape_group_mut(id.mode);
            if !needs.have_own() {
                shape_group.unsplit = Some(queue_group);
            }
        }
        queue_group
    }

    /// Drops a queue group without queues. Those without a bucket or slots of their own are few,
    /// and are kept.
    fn close_group(&mut self, queue_group: GroupIndex, resources: &mut Resources) {
        if !self.queue_groups.get(queue_group).is_some_and(|found| found.queues.is_empty()) {
            return;
        }
        self.unpark(queue_group);
        if !self.queue_groups.get(queue_group).is_some_and(|found| found.needs.have_own()) {
            return;
        }
        let Some(found) = self.queue_groups.remove(queue_group) else { return };
        resources.remove_user(&found.needs, found.class, queue_group);
        self.by_needs.remove(&(found.class, found.mode, found.needs));
    }
}

// === impl ClassTurns ===

impl ClassTurns {
    pub(crate) fn shape_group(&self, mode: Mode) -> Option<&ShapeGroup> {
        self.shape_groups.iter().find(|shape_group| shape_group.mode == mode)
    }

    /// Returns the shape group for calls of a mode, and makes it if there is none.
    fn shape_group_mut(&mut self, mode: Mode) -> &mut ShapeGroup {
        let place = self.shape_groups.iter().position(|shape_group| shape_group.mode == mode);
        let place = place.unwrap_or_else(|| {
            self.shape_groups.push(ShapeGroup::new(mode));
            self.shape_groups.len() - 1
        });
        &mut self.shape_groups[place]
    }
}

/// Returns the sort key of a queue's next turn: its last turn, delayed by the turns it owes to
/// other queues. On a tie the queue that owes less goes first. No two keys are equal, because no
/// two queues had the same turn.
fn stamp(turn: u64, owed: u64) -> u64 {
    (turn + owed) << OWED_BITS | owed.min((1 << OWED_BITS) - 1)
}

/// The bits of a sort key for the turns owed. Only a call that costs thousands of tokens owes more.
const OWED_BITS: u32 = 16;

/// The number of calls of other lanes before a waiting lower lane gets its turn: every tenth.
pub(crate) const PASSED: u32 = 9;

/// The number of lanes with queues: all but the exempt one.
const LANES: usize = 3;

/// Returns the index of a lane, the highest priority first. The exempt lane has no queue: a reload
/// releases its calls.
fn rank(lane: Lane) -> usize {
    match lane {
        Lane::Exempt | Lane::High => 0,
        Lane::Normal => 1,
        Lane::Low => 2,
    }
}
