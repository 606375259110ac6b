//! The numbers and names that the status page shows of a limiter, taken at one moment without side
//! effects.

#![expect(
    clippy::indexing_slicing,
    reason = "classes and lanes are numbered by the policy that made both the number and the table"
)]

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use super::{
    limiter::Limiter,
    policy::{ClassId, ClassPolicy, Lane},
    queue::group::Queue,
    refusal::{KeyState, Reason},
    resources::{bucket::Bucket, buckets::Owner, slots::Slots},
};
use crate::{
    api::{Group, Key},
    moment::Moment,
};

pub use super::resources::pauses::{PauseView, Paused};

/// A limiter at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The number of calls that wait, in queues or for their keys.
    pub waiting: usize,
    /// The bytes of their bodies.
    pub waiting_bytes: usize,
    /// The number of keys that are failing.
    pub failing_keys: usize,
    /// The number of those whose trial is queued or upstream.
    pub trials: usize,
    /// The gate's buckets: one, or the first few of many.
    pub buckets: Vec<BucketView>,
    /// The retry buckets.
    pub retry_buckets: Vec<BucketView>,
    /// The gate's slots.
    pub slots: SlotView,
    /// The room on connections, by group; below zero if more streams are open than there should be.
    pub rooms: [(Group, i64); 3],
    /// The pauses in force that the upstream asked for; at most a hundred.
    pub pauses: Vec<PauseView>,
    /// The number of keys of which a write is past the key stage, where only one may be.
    pub writes: usize,
    /// The classes, by [`ClassId`].
    pub classes: Vec<ClassView>,
    /// The queues in which any call waits, longest first; at most a hundred.
    pub queues: Vec<QueueView>,
}

/// A class at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassView {
    /// Its name.
    pub name: Arc<str>,
    /// Its rank.
    pub lane: Lane,
    /// Its buckets: one, or the first few of many.
    pub buckets: Vec<BucketView>,
    /// Its slots.
    pub slots: SlotView,
    /// The number of calls in its queues.
    pub waiting: usize,
}

/// A bucket at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketView {
    /// Tokens per second now.
    pub rate: f64,
    /// Tokens per second when nothing slows it down.
    pub full_rate: f64,
    /// The most tokens now: fewer while its rate gives way.
    pub burst: u32,
    /// Tokens now; below zero if some are reserved.
    pub level: f64,
}

/// Slots at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// The number of calls in flight that hold one.
    pub used: u32,
    /// The most calls, per gate, flow or credential; `None` for no limit.
    pub max: Option<u32>,
}

/// A queue at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Its class.
    pub class: ClassId,
    /// Its flow's readable name; empty if that was not known.
    pub flow: String,
    /// True if it is the queue of retries.
    pub retry: bool,
    /// The number of calls in it.
    pub waiting: usize,
    /// The time its first call has waited.
    pub oldest: Duration,
    /// The reason it is stopped, as far as is known.
    pub reason: Reason,
}

/// The longest queues that a look at all of them has found so far; not more than a hundred.
#[derive(Clone, Debug, Default)]
pub struct LongestQueues {
    found: BinaryHeap<Reverse<(u32, u32)>>,
    next: usize,
}

// === impl LongestQueues ===

impl LongestQueues {
    fn offer(&mut self, len: u32, at: u32) {
        if self.found.len() < SHOWN {
            self.found.push(Reverse((len, at)));
        } else if let Some(mut shortest) = self.found.peek_mut().filter(|shortest| shortest.0.0 < len) {
            *shortest = Reverse((len, at));
        }
    }
}

// === impl Limiter ===

impl Limiter {
    /// What the status page shows, whole. No side effects. It looks at every queue: [`Limiter::overview`] and a [`LongestQueues`] take
    /// the same a little at a time.
    #[must_use]
    pub fn snapshot(&self, now: Moment) -> Snapshot {
        let mut longest = LongestQueues::default();
        while self.look_at_queues(&mut longest) {}
        Snapshot { queues: self.queue_views(&longest, now), ..self.overview(now) }
    }

    /// The same without queues.
    #[must_use]
    pub fn overview(&self, now: Moment) -> Snapshot {
        let now = self.now.max(now);
        let room = |group| (group, self.resources.room(group));
        let class = |(index, policy): (usize, &ClassPolicy)| ClassView {
            name: Arc::clone(&policy.name),
            lane: policy.lane,
            buckets: self.bucket_views(Owner::Class(index), now),
            slots: slot_view(&self.resources.class_slots[index]),
            waiting: self.scheduler.classes[index].waiting + self.unmoved(index),
        };
        Snapshot {
            waiting: self.waiting,
            waiting_bytes: self.waiting_bytes.get(),
            failing_keys: self.table.failing(now),
            trials: self.table.trials_out(),
            buckets: self.bucket_views(Owner::Gate, now),
            retry_buckets: self.bucket_views(Owner::Retries, now),
            slots: slot_view(&self.resources.gate_slots),
            rooms: [room(Group::Exempt), room(Group::Short), room(Group::LongRunning)],
            pauses: self.pauses(now),
            writes: self.writes.len(),
            classes: self.policy.classes.iter().enumerate().map(class).collect(),
            queues: Vec::new(),
        }
    }

    /// Pauses in force; not more than a hundred.
    #[must_use]
    pub fn pauses(&self, now: Moment) -> Vec<PauseView> {
        self.resources.pauses.views(self.now.max(now), SHOWN)
    }

    /// The failing keys that may be tried first, by name; not more than `most`.
    #[must_use]
    pub fn next_tried(&self, most: usize, now: Moment) -> Vec<(String, Key, KeyState)> {
        self.table.next_tried(most, self.now.max(now))
    }

    /// Looks at a few more queues; says whether there may be more.
    pub fn look_at_queues(&self, longest: &mut LongestQueues) -> bool {
        let places = self.scheduler.queues.capacity();
        let end = places.min(longest.next + QUEUES_AT_ONCE);
        for place in longest.next..end {
            let found = u32::try_from(place).ok().and_then(|at| Some((at, self.scheduler.queue(at)?)));
            if let Some((at, queue)) = found {
                longest.offer(queue.len, at);
            }
        }
        longest.next = end;
        end < places
    }

    fn bucket_views(&self, owner: Owner, now: Moment) -> Vec<BucketView> {
        let Some(family) = self.resources.buckets.family(owner) else { return Vec::new() };
        let ids = family.ids();
        let buckets = ids.iter().take(SHOWN).filter_map(|id| self.resources.buckets.get(*id));
        let view = |bucket: &Bucket| {
            let (rate, full_rate) = bucket.rates();
            BucketView { rate, full_rate, burst: bucket.burst(), level: bucket.level(now) }
        };
        let mut views: Vec<_> = buckets.map(view).collect();
        if views.is_empty() {
            // Not used yet, so shown as it starts.
            let (rate, burst) = (family.policy().rate, family.policy().burst.get());
            let level = if family.policy().starts_empty { 0.0 } else { f64::from(burst) };
            views.push(BucketView { rate, full_rate: rate, burst, level });
        }
        views
    }

    /// The queues that were found to be longest.
    #[must_use]
    pub fn queue_views(&self, longest: &LongestQueues, now: Moment) -> Vec<QueueView> {
        let now = self.now.max(now);
        let found = longest.found.iter().filter_map(|Reverse((_, at))| Some((*at, self.scheduler.queue(*at)?)));
        let mut queues: Vec<_> = found.collect();
        queues.sort_unstable_by_key(|(_, queue)| Reverse(queue.len));
        let view = |(at, queue): (u32, &Queue)| QueueView {
            class: ClassId(u16::try_from(queue.id.class()).unwrap_or(u16::MAX)),
            flow: queue.name.as_deref().unwrap_or_default().to_owned(),
            retry: queue.id.mode.retry,
            waiting: queue.len as usize,
            oldest: queue
                .list
                .first()
                .and_then(|first| self.waiters.get(first))
                .map_or(Duration::ZERO, |w| now - w.call.arrived),
            reason: self.scheduler.stopped(at),
        };
        queues.into_iter().map(view).collect()
    }
}

fn slot_view(slots: &Slots) -> SlotView {
    SlotView { used: slots.used(), max: slots.limit().map(|limit| limit.max.get()) }
}

/// Queues of which the longest are found before others have their turn.
const QUEUES_AT_ONCE: usize = 1000;
/// A page is for reading.
const SHOWN: usize = 100;
