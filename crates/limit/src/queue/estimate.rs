//! Estimates: which calls could leave and when, and the minimum wait of a call.
//!
//! The minimum wait is what must pass before a call's turn if no call before it leaves, no further
//! call joins, and slots and room come free at once (P8). It is a lower bound, never a guess: calls
//! that might be stopped by something that does not stop this one are not counted. Where all calls
//! of a class have the same requirements, it is exact except for one turn of each other flow.

#![expect(clippy::indexing_slicing, reason = "lanes are numbered from zero to the number of lanes with queues")]

use std::collections::HashMap;

use super::{PASSED, QueueGroup, QueueKey, Scheduler, ShapeGroup};
use crate::key::Group;
use crate::moment::Moment;
use crate::resources::Bucket;
use crate::{BucketId, ClassId, Pauses, Reason, Requirements, Resources, WaiterIndex};

/// The earliest moment at which a call could leave, and the reason it would wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinWait {
    pub(crate) at: Moment,
    pub(crate) reason: Reason,
    /// For a retry, the moment at which it could have its tokens of the retry bucket and of the
    /// gate's, if these meter it.
    pub(crate) retry_at: Option<Moment>,
}

/// The calls of a class or a lane that would have their turns first.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    /// All calls that wait there.
    all: usize,
    /// The calls that leave whenever this one could, and take a token of the bucket in question.
    metered: usize,
}

/// A call whose wait is estimated, and the moment at which its pauses are over.
struct Ask<'a> {
    needs: &'a Requirements,
    pauses: &'a Pauses,
    now: Moment,
    over: Moment,
}

/// The turns that come before that of a call whose wait is estimated.
struct Before {
    /// Those of its own queue group, from this moment on.
    own: usize,
    over: Moment,
    /// All of them, from this moment on.
    before: usize,
    gate_over: Moment,
    /// The present, for a trial.
    retry: Option<Moment>,
}

// === impl MinWait ===

impl MinWait {
    /// Includes the wait for a token of one bucket. `ready_after` returns the moment from which
    /// there is one once so many others have had theirs.
    #[inline]
    fn include(&mut self, turns: &Before, reason: Reason, ready_after: impl Fn(usize, Moment) -> Moment) {
        if let Some(now) = turns.retry {
            // Its tokens, whatever else holds it.
            self.retry_at = self.retry_at.max(Some(ready_after(turns.before, now)));
        }
        let at = ready_after(turns.own, turns.over).max(ready_after(turns.before, turns.gate_over));
        if at > self.at {
            self.at = at;
            self.reason = reason;
        }
    }
}

// === impl Ask ===

impl Ask<'_> {
    /// Returns the moment at which the pauses of a class's calls are over.
    fn over_of(&self, class: ClassId) -> Moment {
        self.now.max(self.pauses.ends(class, None).shared)
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Returns the earliest moment at which a call that joined the end of this queue now could
    /// leave.
    pub(crate) fn min_wait(&self, id: &QueueKey, needs: &Requirements, resources: &Resources, now: Moment) -> MinWait {
        // Calls of its own queue group pause as long as it does, others perhaps only with the gate.
        let over = now.max(resources.pauses.ends(id.class, needs.credential).all());
        let ask = Ask { needs, pauses: &resources.pauses, now, over };
        let gate_over = now.max(resources.pauses.gate_ends());
        let reason = if over > now { Reason::Pause } else { Reason::Slot };
        let mut min_wait = MinWait { at: over, reason, retry_at: None };
        let own = self.own_group_turns(id, needs);
        let least = self.classes.get(id.class).map_or(1, |class| class.cost.least);
        for charge in needs.charges.iter() {
            let metered = |other: &Requirements| other.charges.contains(charge.bucket);
            let is_of_retry = id.mode.retry && charge.reason.is_of_retry();
            let own_bucket = resources.buckets.get(charge.bucket);
            // Tokens of an open bucket come with answers, at moments that are not known.
            if is_of_retry && own_bucket.is_some_and(Bucket::is_open) {
                continue;
            }
            // Calls of other classes cost at least one token each.
            let own_tokens = own.saturating_mul(own_bucket.map_or(1, |bucket| bucket.least_taken(least)));
            let before = own_tokens.saturating_add(self.others_before(id, &ask, own, metered));
            let turns = Before { own: own_tokens, over, before, gate_over, retry: is_of_retry.then_some(now) };
            if let Some(bucket) = own_bucket {
                min_wait.include(&turns, charge.reason, |tokens, from| bucket.ready_after(tokens, from, now));
            } else if let Some(shared) = resources.buckets.shared.get(charge.bucket) {
                min_wait.include(&turns, charge.reason, |tokens, from| shared.ready_after(tokens, from, now));
            }
        }
        min_wait
    }

    /// Returns the earliest moment at which a waiting call may be able to leave if nothing else
    /// happens.
    pub(crate) fn next_wakeup(&self, resources: &Resources, now: Moment) -> Option<Moment> {
        if self.waiting == 0 {
            return None;
        }
        let until = |(class, shape_group): (ClassId, &ShapeGroup)| {
            let has_room = resources.room(shape_group.mode.group) > 0;
            // Without room this still matters if nothing else blocks the call: then a connection is
            // wanted.
            let (looked_at, free) = if has_room { (1, now) } else { (GROUPS_LOOKED_AT, Moment::MAX) };
            let queue_groups = self.ready(shape_group).take(looked_at);
            let blocks = queue_groups.map(|queue_group| resources.blocked_but_for_room(&queue_group.needs, class, now));
            blocks.map(|block| block.map_or(free, |block| block.until)).min()
        };
        let parked = self.parked.first().map(|(until, _)| *until);
        self.shape_groups().filter_map(until).filter(|until| *until < Moment::MAX).chain(parked).min()
    }

    /// Returns the number of calls of a connection group that would leave if there were room.
    pub(crate) fn would_go(&self, group: Group, resources: &Resources, now: Moment) -> usize {
        if self.waiting == 0 {
            return 0;
        }
        let of_group = self.shape_groups().filter(|(_, shape_group)| shape_group.mode.group == group);
        let calls = of_group.flat_map(|(class, shape_group)| {
            self.ready(shape_group).take(GROUPS_LOOKED_AT).map(move |queue_group| {
                let needs = &queue_group.needs;
                match resources.blocked_but_for_room(needs, class, now) {
                    None => queue_group.waiting.min(resources.enough_for(needs, class, now)),
                    Some(_) => 0,
                }
            })
        });
        calls.fold(0, usize::saturating_add)
    }

    /// Returns the number of calls that wait for a token of each shared bucket, and for no pause,
    /// and the moment at which the wait of the newest of them ends, by `ends`. With very many queue
    /// groups the number is too low, with many queues in one the moment too early.
    pub(crate) fn waiting_for_shared(
        &self,
        pauses: &Pauses,
        ends: impl Fn(WaiterIndex) -> Option<Moment>,
        now: Moment,
    ) -> HashMap<BucketId, (usize, Moment)> {
        let mut waiting = HashMap::new();
        for queue_group in self.queue_groups.iter().take(GROUPS_COUNTED).filter(|group| group.waiting > 0) {
            let QueueGroup { needs, class, .. } = queue_group;
            if pauses.ends(*class, needs.credential).all() > now {
                continue;
            }
            let newest = queue_group.queues.iter().rev().take(QUEUES_LOOKED_AT);
            let newest = newest.filter_map(|(_, queue)| ends(self.queue(*queue)?.list.last?)).max();
            for charge in needs.charges.iter().filter(|charge| charge.bucket.is_shared()) {
                let (calls, end) = waiting.entry(charge.bucket).or_insert((0_usize, now));
                *calls += queue_group.waiting;
                *end = newest.map_or(*end, |newest| newest.max(*end));
            }
        }
        waiting
    }

    /// Returns the shape groups of all classes in which any call waits.
    fn shape_groups(&self) -> impl Iterator<Item = (ClassId, &ShapeGroup)> {
        let classes = self.active.iter().flatten();
        classes.flat_map(|class| self.classes.of(*class).shape_groups.iter().map(|shape_group| (*class, shape_group)))
    }

    /// Returns the queue groups of a shape group that are not set aside, in their order.
    fn ready(&self, shape_group: &ShapeGroup) -> impl Iterator<Item = &QueueGroup> {
        shape_group.ready.iter().filter_map(|(_, queue_group)| self.queue_groups.get(*queue_group))
    }

    /// Returns the turns that the call's own queue group gives before it is its turn.
    fn own_group_turns(&self, id: &QueueKey, needs: &Requirements) -> usize {
        if let Some((queue, queue_group)) =
            self.find(id).and_then(|queue| Some((self.queue(queue)?, self.group_of(queue)?)))
        {
            // Queues whose calls cost more have fewer turns, which is not known before.
            let is_even = self.has_one_cost(id.class);
            return if is_even { queue_group.queue_lengths.within(queue.len as usize) } else { queue.len as usize };
        }
        if needs.have_own() || !self.has_one_cost(id.class) {
            return 0;
        }
        // A new queue is behind one turn of every other.
        self.unsplit_group(id.class, id.mode).map_or(0, |queue_group| queue_group.queue_lengths.within(1))
    }

    /// True if all calls of a class cost the same.
    fn has_one_cost(&self, class: ClassId) -> bool {
        self.classes.get(class).is_none_or(|turns| turns.cost.least == turns.cost.most)
    }

    /// Returns the turns that calls of other classes have before it, counting those that `metered`
    /// accepts.
    fn others_before(
        &self,
        id: &QueueKey,
        ask: &Ask<'_>,
        own: usize,
        metered: impl Fn(&Requirements) -> bool,
    ) -> usize {
        let Some(mine) = self.classes.get(id.class) else { return 0 };
        let lane = mine.lane;
        // Between two turns of its class, every other class of the lane has one.
        let beside = self.active[lane].iter().copied().filter(|class| *class != id.class);
        let mut turns = own;
        let mut counted = 0_usize;
        for class in beside {
            let others = self.others(class, ask, &metered);
            counted = counted.saturating_add(others.in_turns(own));
            let any = self.others(class, ask, &|_| true);
            turns = turns.saturating_add(any.metered.min(own));
        }
        // Higher lanes go first except for every tenth turn, and of the nine in between a lower
        // lane may have one. Calls of lower lanes whose requirements differ from this one's have
        // their turns at any time, and those too count as passing it.
        let lower = self.active[lane + 1..].iter().flatten();
        let slips: usize = lower.map(|class| self.slips(*class, ask)).sum();
        let mut higher = Others::default();
        for class in self.active[..lane].iter().flatten() {
            let others = self.others(*class, ask, &metered);
            higher = Others { all: higher.all + others.all, metered: higher.metered + others.metered };
        }
        let passed = self.passed[lane] as usize;
        let turns = turns.saturating_add(1).saturating_mul(PASSED as usize - 1).saturating_sub(passed + slips);
        counted.saturating_add(higher.in_turns(turns))
    }

    /// Returns the number of calls of a class that may leave while one with these requirements may
    /// not.
    fn slips(&self, class: ClassId, ask: &Ask<'_>) -> usize {
        let turns = self.classes.of(class);
        if ask.over_of(class) < ask.over {
            return turns.waiting;
        }
        let needs = ask.needs;
        let goes_later = |other: &Requirements| other.group == needs.group && needs.charges.are_among(&other.charges);
        let unsplit = turns.shape_groups.iter().filter_map(|shape_group| self.unsplit_group(class, shape_group.mode));
        let later: usize =
            unsplit.filter(|queue_group| goes_later(&queue_group.needs)).map(|queue_group| queue_group.waiting).sum();
        turns.waiting.saturating_sub(later)
    }

    /// Returns the calls of a class that leave whenever a call with these requirements could.
    fn others(&self, class: ClassId, ask: &Ask<'_>, metered: &impl Fn(&Requirements) -> bool) -> Others {
        let turns = self.classes.of(class);
        let mut others = Others { all: turns.waiting, metered: 0 };
        if ask.over_of(class) > ask.over {
            return others;
        }
        let needs = ask.needs;
        let goes_first =
            |needs_of: &Requirements| needs_of.group == needs.group && needs_of.charges.are_among(&needs.charges);
        for shape_group in &turns.shape_groups {
            // Queue groups with resources of their own may be set aside; at most one is without.
            let unsplit = self
                .unsplit_group(class, shape_group.mode)
                .filter(|queue_group| goes_first(&queue_group.needs) && metered(&queue_group.needs));
            others.metered += unsplit.map_or(0, |queue_group| queue_group.waiting);
        }
        others
    }
}

// === impl Others ===

impl Others {
    /// Returns how many of the metered calls have left when the class or lane has had this many
    /// turns (fewer only if none of them is left).
    fn in_turns(self, turns: usize) -> usize {
        self.metered.min(turns.saturating_sub(self.all - self.metered.min(self.all)))
    }
}

/// The most queue groups looked at in each shape group: how many connections to dial does not
/// depend on the hundredth bucket.
const GROUPS_LOOKED_AT: usize = 100;
/// The most queue groups whose waiting calls are counted for a shared bucket.
const GROUPS_COUNTED: usize = 2000;
/// The most queues of a queue group in which the newest call is looked for.
const QUEUES_LOOKED_AT: usize = 16;
