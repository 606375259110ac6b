//! The numbers and names of a limiter for the status page, at one moment and without side effects.

mod frozen;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use super::Limiter;
use crate::key::{Group, Key};
use crate::moment::Moment;
use crate::{
    Bucket, BucketPolicy, ClassId, ClassTurns, KeyState, Lane, Owner, Queue, QueueIndex, Reason, SharedId, Slots,
};

pub use self::frozen::{Changes, FreezeWalk, FrozenKey, FrozenLimiter, FrozenPart};
pub use crate::resources::{FrozenPause, Gap, Levels, PauseView, SharedView, TokenTally};

/// The state of a limiter at one moment, for the status page.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The number of waiting calls, in queues or waiting for their keys.
    pub waiting: usize,
    /// The bytes of bodies and large heads of waiting calls.
    pub waiting_bytes: usize,
    /// The number of failing keys.
    pub failing_keys: usize,
    /// The number of failing keys with a call testing them, queued or upstream.
    pub trials: usize,
    /// The gate's buckets. If there is one per flow or credential, only the first few.
    pub buckets: Vec<BucketView>,
    /// The buckets for retries.
    pub retry_buckets: Vec<BucketView>,
    /// The calls in flight at the gate, and their limit.
    pub slots: SlotView,
    /// How many more calls the connections of each group can take; below zero if more are open than
    /// there should be.
    pub rooms: [(Group, i64); 3],
    /// The pauses in force; at most a hundred.
    pub pauses: Vec<PauseView>,
    /// The quotas dropped so far because too many had a pause.
    pub dropped_quotas: u64,
    /// The number of keys with a write queued or in flight, where writes of a key go one at a time.
    pub writes: usize,
    /// The classes, indexed by [`ClassId`].
    pub classes: Vec<ClassView>,
    /// The buckets shared with other gates.
    pub shared: Vec<SharedView>,
    /// The longest queues, the longest first; at most a hundred.
    pub queues: Vec<QueueView>,
}

/// A class at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassView {
    /// The name of the class.
    pub name: Arc<str>,
    /// The priority of the class.
    pub lane: Lane,
    /// The buckets of the class. If there is one per flow or credential, only the first few.
    pub buckets: Vec<BucketView>,
    /// The calls of the class in flight, and their limit.
    pub slots: SlotView,
    /// The number of calls in the queues of the class.
    pub waiting: usize,
}

/// A bucket at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketView {
    /// The rate in tokens per second, as it will be if one more call takes a token now.
    pub rate: f64,
    /// The rate in tokens per second when the upstream throttles nothing.
    pub full_rate: f64,
    /// The most tokens the bucket can hold now: fewer while throttling by the upstream slows its
    /// rate.
    pub burst: u32,
    /// The number of tokens now; below zero if some are reserved.
    pub level: f64,
    /// The identity of the shared bucket behind this one, if other gates share it.
    pub shared: Option<SharedId>,
}

/// A bucket that a call takes tokens from.
#[derive(Clone, Debug, PartialEq)]
pub struct CallBucket {
    /// The class of the bucket; `None` for the gate's.
    pub class: Option<Arc<str>>,
    /// The bucket's state.
    pub bucket: BucketView,
}

/// Calls in flight and their limit, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// The number of calls in flight.
    pub used: u32,
    /// The most calls in flight, per gate, flow or credential; `None` for no limit.
    pub max: Option<u32>,
}

/// A queue at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// The class of the queue's calls.
    pub class: ClassId,
    /// The readable name of the queue's flow; empty if unknown.
    pub flow: String,
    /// True if the queue's calls test failing keys.
    pub retry: bool,
    /// The number of calls in the queue.
    pub waiting: usize,
    /// How long the first call has waited.
    pub oldest: Duration,
    /// The reason why the first call waits, as far as it is known.
    pub reason: Reason,
}

/// A search for the longest queues, at most a hundred of them.
#[derive(Clone, Debug, Default)]
pub struct LongestQueues {
    found: BinaryHeap<Reverse<(u32, QueueIndex)>>,
    next: usize,
}

// === impl Limiter ===

impl Limiter {
    /// Returns everything for the status page. It looks at every queue at once:
    /// [`Limiter::overview`] with [`LongestQueues`] does the same a little at a time.
    pub fn snapshot(&self, now: Moment) -> Snapshot {
        let mut longest = LongestQueues::default();
        while self.look_at_queues(&mut longest) {}
        Snapshot { queues: self.queue_views(&longest, now), ..self.overview(now) }
    }

    /// Returns everything for the status page except the queues.
    pub fn overview(&self, now: Moment) -> Snapshot {
        let now = self.latest(now);
        let room = |group| (group, self.parts.resources.room(group));
        let buckets = |owner| self.parts.resources.buckets.view(owner, SHOWN, |bucket| BucketView::of(bucket, now));
        let class = |(id, turns): (ClassId, &ClassTurns)| {
            let policy = self.parts.rules.policy().class(id);
            ClassView {
                name: Arc::clone(&policy.name),
                lane: policy.lane,
                buckets: buckets(Owner::Class(id)),
                slots: SlotView::of(self.parts.resources.class_slots.of(id)),
                waiting: turns.waiting + self.parts.queues.unmoved_of(id),
            }
        };
        Snapshot {
            waiting: self.waiting(),
            waiting_bytes: self.parts.queues.waiting_bytes(),
            failing_keys: self.parts.stage.table().failing(now),
            trials: self.parts.stage.table().trials_out(),
            buckets: buckets(Owner::Gate),
            retry_buckets: buckets(Owner::Retries),
            slots: SlotView::of(&self.parts.resources.gate_slots),
            rooms: [room(Group::Exempt), room(Group::Short), room(Group::LongRunning)],
            pauses: self.pauses(now),
            dropped_quotas: self.parts.resources.pauses.dropped(),
            writes: self.parts.stage.writes(),
            classes: self.parts.queues.scheduler().classes.iter().map(class).collect(),
            shared: self.shared(now),
            queues: Vec::new(),
        }
    }

    /// Returns the buckets for calls of a class by this flow and credential, the gate's first.
    pub fn buckets_of(&self, class: ClassId, flow: u64, credential: u64, now: Moment) -> Vec<CallBucket> {
        let now = self.latest(now);
        let policy = self.parts.rules.policy();
        let Some(limits) = policy.classes.get(usize::from(class.0)) else { return Vec::new() };
        let of_gate = Some(Owner::Gate).filter(|_| !limits.own_bucket_only);
        let owners = of_gate.into_iter().chain(policy.within(class).map(Owner::Class));
        let bucket = |owner| {
            let of = |bucket: &Bucket| BucketView::of(bucket, now);
            let bucket = self.parts.resources.buckets.view_one(owner, flow, credential, of)?;
            let class = if let Owner::Class(id) = owner { Some(Arc::clone(&policy.class(id).name)) } else { None };
            Some(CallBucket { class, bucket })
        };
        owners.filter_map(bucket).filter(|_| limits.lane != Lane::Exempt).collect()
    }

    /// Returns the state of every bucket shared with other gates.
    pub fn shared(&self, now: Moment) -> Vec<SharedView> {
        self.parts.resources.buckets.shared_views(self.latest(now))
    }

    /// Returns the pauses in force, at most a hundred.
    pub fn pauses(&self, now: Moment) -> Vec<PauseView> {
        self.parts.resources.pauses.views(self.latest(now), SHOWN)
    }

    /// Returns the failing keys next to be tried, at most `most`, with their names.
    pub fn next_tried(&self, most: usize, now: Moment) -> Vec<(String, Key, KeyState)> {
        self.parts.stage.table().next_tried(most, self.latest(now))
    }

    /// Adds a few more queues to a search. Returns true if there may be more.
    pub fn look_at_queues(&self, longest: &mut LongestQueues) -> bool {
        let places = self.parts.queues.scheduler().queues.capacity();
        let end = places.min(longest.next + QUEUES_AT_ONCE);
        for place in longest.next..end {
            let index = QueueIndex::at(place);
            let Some(queue) = self.parts.queues.scheduler().queue(index) else { continue };
            if longest.found.len() < SHOWN {
                longest.found.push(Reverse((queue.len, index)));
            } else if let Some(mut shortest) = longest.found.peek_mut().filter(|shortest| shortest.0.0 < queue.len) {
                *shortest = Reverse((queue.len, index));
            }
        }
        longest.next = end;
        end < places
    }

    /// Returns the longest queues found by a search.
    pub fn queue_views(&self, longest: &LongestQueues, now: Moment) -> Vec<QueueView> {
        let now = self.latest(now);
        let found =
            longest.found.iter().filter_map(|Reverse((_, at))| Some((*at, self.parts.queues.scheduler().queue(*at)?)));
        let mut queues: Vec<_> = found.collect();
        queues.sort_unstable_by_key(|(_, queue)| Reverse(queue.len));
        let oldest = |queue: &Queue| Some(now - self.parts.queues.get(queue.list.first?)?.call.arrived);
        let view = |(at, queue): (QueueIndex, &Queue)| QueueView {
            class: queue.id.class,
            flow: queue.name.as_deref().unwrap_or_default().to_owned(),
            retry: queue.id.mode.retry,
            waiting: queue.len as usize,
            oldest: oldest(queue).unwrap_or_default(),
            reason: self.parts.queues.scheduler().stopped(at),
        };
        queues.into_iter().map(view).collect()
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// Removes the waiting calls, for a shadow gate: it only measures, and no call really waits
    /// there.
    #[must_use]
    pub fn of_shadow(self) -> Self {
        let classes = self.classes.into_iter().map(|class| ClassView { waiting: 0, ..class }).collect();
        Self { waiting: 0, waiting_bytes: 0, queues: Vec::new(), classes, ..self }
    }
}

// === impl BucketView ===

impl BucketView {
    fn of(bucket: &Bucket, now: Moment) -> Self {
        let (BucketPolicy { rate, burst, .. }, full_rate) = (bucket.next_policy(now), bucket.limits.rate);
        Self { rate, full_rate, burst: burst.get(), level: bucket.level(now), shared: bucket.limits.shared }
    }
}

// === impl SlotView ===

impl SlotView {
    fn of(slots: &Slots) -> Self {
        Self { used: slots.used, max: slots.limit.map(|limit| limit.max.get()) }
    }
}

/// The number of queues to look at before other tasks get a turn.
const QUEUES_AT_ONCE: usize = 1000;
/// The most entries of one kind on the status page: it is for reading.
const SHOWN: usize = 100;
