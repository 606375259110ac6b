//! Estimates: how many waiting calls could be sent, and how long a call must wait at least.
//!
//! The minimum wait of a call is the time to its turn if no call ahead of it hangs up, no further
//! call joins, and slots and room become free at once (P8). It is a lower bound, never a guess: a
//! call ahead that might be stopped by something else is not counted. Where all calls of a class
//! have the same requirements, it is exact except for one turn of each other flow.

#![expect(clippy::indexing_slicing, reason = "lanes are numbered from zero to the number of lanes with queues")]

use std::collections::HashMap;
use std::time::Duration;

use super::{PASSED, QueueGroup, Scheduler, ShapeGroup};
use crate::key::Group;
use crate::moment::Moment;
use crate::quota::CallQuota;
use crate::{BucketId, ClassId, Pauses, QueueKey, Reason, Requirements, Resources, WaiterIndex, Want};

/// The earliest moment for sending a call, and the reason for its wait until then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinWait {
    pub(crate) at: Moment,
    pub(crate) reason: Reason,
    /// For a retry, the earliest moment of its tokens, from the retry bucket and the gate's bucket.
    pub(crate) retry_at: Option<Moment>,
}

/// Counts of the waiting calls of a class or a lane, for the estimate of another call.
#[derive(Clone, Copy, Debug, Default)]
struct OtherCalls {
    all: usize,
    /// How many of the calls could be sent whenever the estimated call could.
    first: usize,
    /// How many of the calls counted in `first` take a token of the bucket in question.
    metered: usize,
}

/// The call whose wait is estimated.
struct EstimatedCall<'a> {
    needs: &'a Requirements,
    pauses: &'a Pauses,
    now: Moment,
    /// The end of the last pause of the call.
    pauses_end: Moment,
}

// === impl EstimatedCall ===

impl EstimatedCall<'_> {
    /// Returns when the last pause of a class ends.
    fn pauses_end_of(&self, class: ClassId) -> Moment {
        self.now.max(self.pauses.ends(class, CallQuota::default()).all())
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Returns how long a call must wait at least if it joins the end of this queue.
    pub(crate) fn min_wait(&self, id: &QueueKey, needs: &Requirements, resources: &Resources, now: Moment) -> MinWait {
        // Calls of its own queue group pause as long as it does, others perhaps only with the gate.
        let pauses_end = now.max(resources.pauses.ends(id.class, needs.quota).all());
        let gate_pause_ends = now.max(resources.pauses.gate_ends());
        let call = EstimatedCall { needs, pauses: &resources.pauses, now, pauses_end };
        let reason = if pauses_end > now { Reason::Pause } else { Reason::Slot };
        let mut min_wait = MinWait { at: pauses_end, reason, retry_at: None };
        let own_turns = self.own_group_turns(id, needs);
        let paced = resources.pauses.paced_after(own_turns, id.class, needs.quota, now);
        if paced > min_wait.at {
            min_wait = MinWait { at: paced, reason: Reason::Pause, ..min_wait };
        }
        let least = self.classes.get(id.class).map_or(1, |class| class.cost.least);
        for charge in needs.charges.iter() {
            let is_of_retry = id.mode.retry && charge.reason.is_of_retry();
            let Some(cell) = resources.buckets.get(charge.bucket) else { continue };
            // Tokens of an open bucket come with answers, at moments that are not known.
            if is_of_retry && cell.bucket.is_open() {
                continue;
            }
            // Calls of other classes cost at least one token each.
            let own = own_turns.saturating_mul(cell.bucket.least_taken(least));
            let all = own.saturating_add(self.others_before(id, &call, own_turns, charge.bucket));
            if is_of_retry {
                // Its tokens, whatever else holds it.
                min_wait.retry_at = min_wait.retry_at.max(Some(cell.ready_after(all, now, now)));
            }
            let at = cell.ready_after(own, pauses_end, now).max(cell.ready_after(all, gate_pause_ends, now));
            if at > min_wait.at {
                min_wait.at = at;
                min_wait.reason = charge.reason;
            }
        }
        min_wait
    }

    /// Returns when a waiting call may be sent at the earliest, if nothing else happens.
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

    /// Returns the number of waiting calls of a connection group with nothing but a connection
    /// missing.
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

    /// Counts the waiting calls of each shared bucket, without those under a pause. `ends` returns
    /// the end of a call's wait. With very many queue groups the number is too low; with many
    /// queues in one group the longest remaining wait is too short.
    pub(crate) fn waiting_for_shared(
        &self,
        pauses: &Pauses,
        slots: usize,
        ends: impl Fn(WaiterIndex) -> Option<Moment>,
        now: Moment,
    ) -> HashMap<BucketId, Want> {
        let mut waiting = HashMap::new();
        for queue_group in self.queue_groups.iter().take(GROUPS_COUNTED).filter(|group| group.waiting > 0) {
            let QueueGroup { needs, class, .. } = queue_group;
            if pauses.ends(*class, needs.quota).all() > now {
                continue;
            }
            let newest = queue_group.queues.iter().rev().take(QUEUES_LOOKED_AT);
            let newest = newest.filter_map(|(_, queue)| ends(self.queue(*queue)?.list.last?)).max();
            for charge in needs.charges.iter().filter(|charge| charge.bucket.is_shared()) {
                let want = waiting.entry(charge.bucket).or_insert_with(|| Want { slots, ..Want::default() });
                want.calls += queue_group.waiting;
                want.within = want.within.max(newest.map_or(Duration::ZERO, |newest| newest - now));
            }
        }
        waiting
    }

    /// Returns the shape groups (queue groups with different buckets or slots per flow or
    /// credential, and all else in common) of all classes with waiting calls.
    fn shape_groups(&self) -> impl Iterator<Item = (ClassId, &ShapeGroup)> {
        let classes = self.active.iter().flatten();
        classes.flat_map(|class| self.classes.of(*class).shape_groups.iter().map(|shape_group| (*class, shape_group)))
    }

    /// Returns the queue groups of a shape group not stopped by a bucket or slot per flow or
    /// credential.
    fn ready(&self, shape_group: &ShapeGroup) -> impl Iterator<Item = &QueueGroup> {
        shape_group.ready.iter().filter_map(|(_, queue_group)| self.queue_groups.get(*queue_group))
    }

    /// Returns the number of calls to be sent before this call, counting only queues with the same
    /// requirements.
    fn own_group_turns(&self, id: &QueueKey, needs: &Requirements) -> usize {
        // Queues whose calls cost more have fewer turns, which is not known before.
        let is_even = self.classes.get(id.class).is_none_or(|turns| turns.cost.least == turns.cost.most);
        if let Some(queue) = self.find(id).and_then(|queue| self.queue(queue)) {
            let group = self.queue_groups.get(queue.queue_group).filter(|_| is_even);
            let len = queue.len as usize;
            return group.map_or(len, |queue_group| queue_group.queue_lengths.within(len));
        }
        if needs.have_own() || !is_even {
            return 0;
        }
        // A new queue is behind one turn of every other.
        self.unsplit_group(id.class, id.mode).map_or(0, |queue_group| queue_group.queue_lengths.within(1))
    }

    /// Returns the number of tokens of a bucket taken by calls of other classes before the
    /// estimated call.
    fn others_before(&self, id: &QueueKey, call: &EstimatedCall<'_>, own: usize, bucket: BucketId) -> usize {
        let Some(mine) = self.classes.get(id.class) else { return 0 };
        let lane = mine.lane;
        // Between two turns of its class, every other class of the lane has one.
        let mut turns = own;
        let mut counted = 0_usize;
        for class in self.active[lane].iter().filter(|class| **class != id.class) {
            let others = self.others(*class, call, bucket);
            counted = counted.saturating_add(others.metered_in(own));
            turns = turns.saturating_add(others.first.min(own));
        }
        // Higher lanes go first except for every tenth turn, and of the nine in between a lower
        // lane may have one. Calls of lower lanes whose requirements differ from this one's have
        // their turns at any time, and those too count as passing it.
        let lower = self.active[lane + 1..].iter().flatten();
        let slips: usize = lower.map(|class| self.slips(*class, call)).sum();
        let mut higher = OtherCalls::default();
        for class in self.active[..lane].iter().flatten() {
            let others = self.others(*class, call, bucket);
            higher.all += others.all;
            higher.metered += others.metered;
        }
        let passed = self.passed[lane] as usize;
        let turns = turns.saturating_add(1).saturating_mul(PASSED as usize - 1).saturating_sub(passed + slips);
        counted.saturating_add(higher.metered_in(turns))
    }

    /// Returns how many calls of a class could be sent while the estimated call is stopped.
    fn slips(&self, class: ClassId, call: &EstimatedCall<'_>) -> usize {
        let turns = self.classes.of(class);
        if call.pauses_end_of(class) < call.pauses_end {
            return turns.waiting;
        }
        let unsplit = turns.shape_groups.iter().filter_map(|shape_group| self.unsplit_of(shape_group));
        let later = unsplit.filter(|queue_group| call.needs.are_among(&queue_group.needs));
        turns.waiting.saturating_sub(later.map(|queue_group| queue_group.waiting).sum())
    }

    /// Counts the waiting calls of a class, and how many of them wait for nothing but what the
    /// estimated call waits for too.
    fn others(&self, class: ClassId, call: &EstimatedCall<'_>, bucket: BucketId) -> OtherCalls {
        let turns = self.classes.of(class);
        let mut others = OtherCalls { all: turns.waiting, ..OtherCalls::default() };
        if call.pauses_end_of(class) > call.pauses_end {
            return others;
        }
        // Queue groups with resources of their own may be parked; at most one is without.
        let unsplit = turns.shape_groups.iter().filter_map(|shape_group| self.unsplit_of(shape_group));
        for queue_group in unsplit.filter(|queue_group| queue_group.needs.are_among(call.needs)) {
            others.first += queue_group.waiting;
            if queue_group.needs.charges.contains(bucket) {
                others.metered += queue_group.waiting;
            }
        }
        others
    }
}

// === impl OtherCalls ===

impl OtherCalls {
    /// Returns how many calls taking a token have been sent, at least, after so many turns of the
    /// class or lane.
    fn metered_in(self, turns: usize) -> usize {
        self.metered.min(turns.saturating_sub(self.all - self.metered.min(self.all)))
    }
}

/// The most queue groups to look at in each shape group. So many are enough to decide how many
/// connections to open.
const GROUPS_LOOKED_AT: usize = 100;
/// The most queue groups to count for a shared bucket.
const GROUPS_COUNTED: usize = 2000;
/// The most queues of a queue group to search for its newest call.
const QUEUES_LOOKED_AT: usize = 16;
