//! Whose turn it is: lanes by rank, classes of a lane in turn, flows of a class in turn, a queue in order.
//!
//! Queues that need the same things form a bundle, and the bundles of a class that differ only in buckets and slots of their own stand
//! behind one door. What is shared is looked at once per door, what is a bundle's own only when its turn comes, and a bundle that is
//! stopped by it is set aside until that changes. So a turn costs the number of classes and doors, not the number of queues or calls.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use std::collections::{BTreeSet, HashMap};

use slab::Slab;

use super::{
    doors::Door,
    needs::Needs,
    policy::{Lane, Policy},
    queue::{Bundle, Mode, Queue, QueueId},
    supply::Supply,
    sweep::LOOKED_AT_ONCE,
    verdict::Reason,
    waiter::{By, List, State, Waiters},
};
use crate::moment::Moment;

/// Every queue of a gate, in the order in which they get their turns.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) classes: Vec<ClassTurns>,
    /// Classes in which somebody waits, by lane.
    pub(super) active: [BTreeSet<usize>; 3],
    /// Turns that others have had since the lane had one while somebody waited in it.
    pub(super) passed: [u32; 3],
    pub(super) bundles: Slab<Bundle>,
    by_needs: HashMap<(usize, Mode, Needs), u32>,
    /// The bundle of a class and mode that needs nothing of its own; there is at most one.
    plain: HashMap<(usize, Mode), u32>,
    pub(super) queues: Slab<Queue>,
    by_id: HashMap<QueueId, u32>,
    /// Bundles set aside until their own bucket has a token, by when that is.
    pub(super) parked: BTreeSet<(Moment, u32)>,
    /// Turns given so far.
    pub(super) clock: u64,
    /// Calls in queues, and those on their way there from the queues of old limits.
    pub(super) waiting: usize,
}

/// The turns of one class.
#[derive(Debug)]
pub(super) struct ClassTurns {
    lane: usize,
    pub(super) stamp: u64,
    pub(super) waiting: usize,
    pub(super) doors: Vec<Door>,
}

/// A turn that can be taken.
#[derive(Clone, Copy, Debug)]
struct Turn {
    class: usize,
    queue: u32,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// The head of this queue may leave.
    Turn(u32),
    /// So many had to be looked at that the rest is for another time.
    NotYetKnown,
    /// No head of a queue may leave.
    Nobody,
}

// === impl Lanes ===

impl Lanes {
    pub(super) fn new(policy: &Policy) -> Self {
        let class = |lane| ClassTurns { lane: rank(lane), stamp: 0, waiting: 0, doors: Vec::new() };
        Self {
            classes: policy.classes.iter().map(|policy| class(policy.lane)).collect(),
            active: Default::default(),
            passed: [0; 3],
            bundles: Slab::new(),
            by_needs: HashMap::new(),
            plain: HashMap::new(),
            queues: Slab::new(),
            by_id: HashMap::new(),
            parked: BTreeSet::new(),
            clock: 0,
            waiting: 0,
        }
    }

    /// Calls in queues, and those that are on their way there from the queues of old limits.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Whether no queue is left, and nothing that belongs to one.
    pub(super) fn is_empty(&self) -> bool {
        let bundles = self.bundles.iter().all(|(_, bundle)| bundle.queues.is_empty() && !bundle.needs.have_own());
        bundles && self.queues.is_empty() && self.by_id.is_empty() && self.parked.is_empty()
    }

    pub(super) fn find(&self, id: &QueueId) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    pub(super) fn queue(&self, queue: u32) -> Option<&Queue> {
        self.queues.get(queue as usize)
    }

    pub(super) fn bundle_of(&self, queue: u32) -> Option<&Bundle> {
        self.queue(queue).and_then(|queue| self.bundles.get(queue.bundle as usize))
    }

    /// The queue with this identity, made if need be.
    pub(super) fn open(
        &mut self,
        id: QueueId,
        needs: &Needs,
        name: impl FnOnce() -> Option<Box<str>>,
        supply: &mut Supply,
    ) -> u32 {
        if let Some(queue) = self.find(&id) {
            return queue;
        }
        let bundle = self.open_bundle(&id, needs, supply);
        self.clock += 1;
        let queue = Queue { id, list: List::default(), len: 0, stamp: self.clock, bundle, name: name() };
        let queue = u32::try_from(self.queues.insert(queue)).unwrap_or(u32::MAX);
        self.by_id.insert(id, queue);
        queue
    }

    /// Puts a waiter at the end of a queue, or, when it comes back, where its sequence says.
    pub(super) fn join(&mut self, queue: u32, index: u32, returns: bool, waiters: &mut Waiters) {
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
    pub(super) fn join_before(&mut self, queue: u32, index: u32, next: Option<u32>, waiters: &mut Waiters) {
        let Some(found) = self.queues.get_mut(queue as usize) else { return };
        found.list.insert_before(waiters, By::Queue, index, next);
        if let Some(waiter) = waiters.get_mut(index) {
            waiter.state = State::Queued(queue);
        }
        found.len += 1;
        let (len, stamp, bundle) = (found.len, found.stamp, found.bundle);
        if len == 1 {
            self.relist(bundle, |bundle| _ = bundle.queues.insert((stamp, queue)));
        }
        self.count(bundle, |turns| turns.grew_to(len as usize), true);
    }

    /// Takes a waiter out of its queue. A queue that is empty is gone.
    pub(super) fn part(&mut self, queue: u32, index: u32, waiters: &mut Waiters, supply: &mut Supply) {
        let Some(found) = self.queues.get_mut(queue as usize) else { return };
        found.list.remove(waiters, By::Queue, index);
        let (len, stamp, bundle) = (found.len, found.stamp, found.bundle);
        found.len = found.len.saturating_sub(1);
        self.count(bundle, |turns| turns.shrank_from(len as usize), false);
        if len == 1 {
            self.relist(bundle, |bundle| _ = bundle.queues.remove(&(stamp, queue)));
            let id = self.queues.remove(queue as usize).id;
            self.by_id.remove(&id);
            self.close_bundle(bundle, supply);
        }
    }

    /// The queue whose head may leave now, by all rules of order. Bundles that are stopped by something of their own are set aside.
    pub(super) fn next(&mut self, supply: &Supply, now: Moment) -> Next {
        if self.waiting == 0 {
            return Next::Nobody;
        }
        // All of them before anyone's turn: who of them is first is not a matter of whose token came first.
        if self.unpark_due(now) {
            return Next::NotYetKnown;
        }
        let mut looks = LOOKED_AT_ONCE;
        let mut order = [0, 1, 2];
        // A lower lane that has been passed often enough comes first; the longest passed before the other.
        order.sort_by_key(|lane| std::cmp::Reverse(if self.passed[*lane] >= PASSED { self.passed[*lane] } else { 0 }));
        let turn = order.into_iter().find_map(|lane| self.candidate(lane, supply, &mut looks, now));
        match turn {
            _ if looks == 0 => Next::NotYetKnown,
            Some(turn) => Next::Turn(turn.queue),
            None => Next::Nobody,
        }
    }

    /// Notes that a queue has its turn: it, its class and its lane are now last among their like. Call before its head parts.
    pub(super) fn had_turn(&mut self, queue: u32) {
        let Some(found) = self.queues.get_mut(queue as usize) else { return };
        self.clock += 1;
        let (old, new, bundle, class) = (found.stamp, self.clock, found.bundle, found.id.class());
        found.stamp = new;
        self.relist(bundle, |bundle| {
            bundle.queues.remove(&(old, queue));
            bundle.queues.insert((new, queue));
        });
        let Some(class) = self.classes.get_mut(class) else { return };
        class.stamp = new;
        let lane = class.lane;
        for other in 0..LANES {
            let waits = other != lane && other > 0 && !self.active[other].is_empty();
            self.passed[other] = if waits { self.passed[other].saturating_add(1) } else { 0 };
        }
    }

    /// A bundle's own bucket or slots may have become free: it is looked at again.
    pub(super) fn unpark(&mut self, bundle: u32) {
        if let Some(until) = self.bundles.get(bundle as usize).and_then(|bundle| bundle.parked) {
            self.parked.remove(&(until, bundle));
            self.relist(bundle, |bundle| bundle.parked = None);
        }
    }

    /// The bundle of a class and mode that needs nothing of its own.
    pub(super) fn plain_bundle(&self, class: usize, mode: Mode) -> Option<&Bundle> {
        self.plain.get(&(class, mode)).and_then(|bundle| self.bundles.get(*bundle as usize))
    }

    /// What stopped this queue last.
    pub(super) fn stopped(&self, queue: u32) -> Reason {
        let Some(bundle) = self.bundle_of(queue) else { return Reason::Bucket };
        let door =
            self.classes.get(bundle.class).and_then(|class| class.doors.iter().find(|door| door.mode == bundle.mode));
        let latest = door.map(|door| door.stopped).filter(|door| door.0 > bundle.stopped.0);
        latest.unwrap_or(bundle.stopped).1
    }

    /// Notes what stops a queue that nobody has looked at yet.
    pub(super) fn note_stopped(&mut self, queue: u32, now: Moment, reason: Reason) {
        let bundle = self.queue(queue).map(|queue| queue.bundle as usize);
        if let Some(bundle) = bundle.and_then(|bundle| self.bundles.get_mut(bundle)) {
            bundle.stopped = (now, reason);
        }
    }

    /// The next turn of a lane, if anyone in it may leave.
    fn candidate(&mut self, lane: usize, supply: &Supply, looks: &mut usize, now: Moment) -> Option<Turn> {
        let mut best: Option<(u64, Turn)> = None;
        for &class in &self.active[lane] {
            let turns = &mut self.classes[class];
            if best.is_some_and(|(stamp, _)| stamp <= turns.stamp) {
                continue;
            }
            let mut first: Option<(u64, u32)> = None;
            for door in &mut turns.doors {
                let limit = first.map_or(u64::MAX, |(stamp, _)| stamp);
                if let Some(found) =
                    door.first((limit, class), &mut self.bundles, supply, &mut self.parked, (looks, now))
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

    /// Changes what decides a bundle's place at its door, and puts it where it then belongs.
    fn relist(&mut self, bundle: u32, change: impl FnOnce(&mut Bundle)) {
        let Some(found) = self.bundles.get_mut(bundle as usize) else { return };
        let place = |found: &Bundle| found.stamp().filter(|_| found.parked.is_none());
        let before = place(found);
        change(found);
        let (after, mode) = (place(found), found.mode);
        if before == after {
            return;
        }
        let doors = self.classes.get_mut(found.class).map(|class| &mut class.doors);
        let Some(door) = doors.and_then(|doors| doors.iter_mut().find(|door| door.mode == mode)) else { return };
        if let Some(stamp) = before {
            door.ready.remove(&(stamp, bundle));
        }
        if let Some(stamp) = after {
            door.ready.insert((stamp, bundle));
        }
    }

    /// Keeps count of who waits.
    fn count(&mut self, bundle: u32, turns: impl FnOnce(&mut super::turns::Turns), more: bool) {
        let Some(bundle) = self.bundles.get_mut(bundle as usize) else { return };
        let by = |count: usize| if more { count + 1 } else { count.saturating_sub(1) };
        turns(&mut bundle.turns);
        bundle.waiting = by(bundle.waiting);
        self.waiting = by(self.waiting);
        let Some(class) = self.classes.get_mut(bundle.class) else { return };
        class.waiting = by(class.waiting);
        if class.waiting == 0 {
            self.active[class.lane].remove(&bundle.class);
        } else if more && class.waiting == 1 {
            self.active[class.lane].insert(bundle.class);
        }
    }

    fn open_bundle(&mut self, id: &QueueId, needs: &Needs, supply: &mut Supply) -> u32 {
        let by_needs = (id.class(), id.mode, needs.clone());
        if let Some(bundle) = self.by_needs.get(&by_needs) {
            return *bundle;
        }
        let bundle = u32::try_from(self.bundles.insert(Bundle::new(id, needs.clone()))).unwrap_or(u32::MAX);
        self.by_needs.insert(by_needs, bundle);
        if !needs.have_own() {
            self.plain.insert((id.class(), id.mode), bundle);
        }
        supply.add_user(needs, id.class(), bundle);
        if let Some(class) = self.classes.get_mut(id.class())
            && !class.doors.iter().any(|door| door.mode == id.mode)
        {
            class.doors.push(Door { mode: id.mode, ready: BTreeSet::new(), stopped: (Moment::ZERO, Reason::Bucket) });
        }
        bundle
    }

    /// Drops a bundle without queues. The ones that need nothing of their own are few, and kept.
    fn close_bundle(&mut self, bundle: u32, supply: &mut Supply) {
        let Some(found) = self.bundles.get(bundle as usize) else { return };
        if !found.queues.is_empty() || !found.needs.have_own() {
            return;
        }
        let found = self.bundles.remove(bundle as usize);
        if let Some(until) = found.parked {
            self.parked.remove(&(until, bundle));
        }
        supply.remove_user(&found.needs, found.class, bundle);
        self.by_needs.remove(&(found.class, found.mode, found.needs));
    }
}

// === impl ClassTurns ===

impl ClassTurns {
    pub(super) fn lane(&self) -> usize {
        self.lane
    }
}

/// A waiting lower lane gets every tenth turn.
pub(super) const PASSED: u32 = 9;

/// Lanes with queues.
const LANES: usize = 3;

/// The exempt lane has no queue; a class that became exempt has its calls let go.
fn rank(lane: Lane) -> usize {
    match lane {
        Lane::Exempt | Lane::High => 0,
        Lane::Normal => 1,
        Lane::Low => 2,
    }
}
