//! The tokens, slots and connection room a call needs before it is sent. They are plain values, so
//! that the call's receipt can keep them.

use std::num::NonZeroU32;

use crate::key::Group;
use crate::moment::Moment;
use crate::quota::CallQuota;
use crate::{ClassId, Reason};

/// The properties of a call needed to determine its requirements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) class: ClassId,
    pub(crate) flow: u64,
    pub(crate) credential: u64,
    pub(crate) quota: CallQuota,
    pub(crate) group: Group,
    pub(crate) lasts: Lasts,
    /// The cost of the call in tokens, before the bounds of its class: a reload may change these.
    pub(crate) cost: u16,
}

/// The identity of a bucket. It is not used again after the bucket is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BucketId {
    /// The index of the bucket, with a bit set if other gates share it.
    pub(crate) index: u32,
    /// A number that tells buckets with the same index apart. Never zero, so that an `Option` of it
    /// takes no more memory.
    pub(crate) serial: NonZeroU32,
}

/// The tokens a call takes from one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Charge {
    pub(crate) bucket: BucketId,
    /// The reason to report if the call waits for this bucket.
    pub(crate) reason: Reason,
    /// True if the bucket is one per flow or credential, so that other queues may continue when it
    /// is empty.
    pub(crate) own: bool,
    /// The number of tokens taken so far.
    pub(crate) taken: u16,
}

/// The buckets a call takes tokens from, in their order as reasons of a wait. Four fit without
/// allocation, enough for all except long chains of classes within classes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Charges {
    first: [Option<Charge>; 4],
    more: Vec<Charge>,
}

/// How a call in flight is counted against the limit of the gate or of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum SlotShare {
    /// The call is not counted.
    #[default]
    None,
    /// The call is counted among all calls.
    Whole,
    /// The call is counted for its flow or credential. `era` tells counts from before and after a
    /// reload apart.
    Split { who: u64, era: u32 },
    /// The call is counted together with all flows or credentials without a count of their own.
    /// `era` tells counts from before and after a reload apart.
    Rest { era: u32 },
}

/// The tokens, slots and connection room a call needs before it is sent. All of it is taken
/// together or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Requirements {
    pub(crate) group: Group,
    /// Where the call is counted: among the gate's calls in flight and among its class's.
    pub(crate) shares: [SlotShare; 2],
    pub(crate) charges: Charges,
    /// The upstream quota of the call. Pauses of this quota stop the call.
    pub(crate) quota: CallQuota,
}

/// How long a call lasts, and how it begins. In one byte: a waiting call has no room for two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lasts {
    /// The call lasts to the end of its response.
    Shortly,
    /// The call lasts until one side ends it, such as a watch.
    Long,
    /// The call lasts until one side ends it, and begins with a list.
    LongAfterList,
}

/// The time of a call's turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) now: Moment,
    /// The time when the call's tokens count as taken: `now`, or earlier if the driver was late.
    pub(crate) at: Moment,
    /// The moment the call had all it needed; `None` if it did not wait.
    pub(crate) there_since: Option<Moment>,
}

/// An obstacle to sending a call now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) reason: Reason,
    /// The earliest end of the obstacle; `Moment::MAX` if time alone does not end it.
    pub(crate) until: Moment,
    /// True if only queues with the same buckets and slots are stopped, and not the whole class.
    pub(crate) own: bool,
}

// === impl BucketId ===

impl BucketId {
    /// The bit of an index for a shared bucket.
    pub(crate) const SHARED: u32 = 1 << 31;

    #[inline]
    pub(crate) fn place(self) -> usize {
        (self.index & !Self::SHARED) as usize
    }

    /// Returns true if other gates share the bucket.
    pub(crate) fn is_shared(self) -> bool {
        self.index & Self::SHARED != 0
    }
}

// === impl Block ===

impl Block {
    pub(crate) const fn slot(own: bool) -> Self {
        Self { reason: Reason::Slot, until: Moment::MAX, own }
    }
}

// === impl Charges ===

impl Charges {
    #[inline]
    pub(crate) fn push(&mut self, bucket: BucketId, reason: Reason, own: bool) {
        let charge = Charge { bucket, reason, own, taken: 0 };
        match self.first.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(charge),
            None => self.more.push(charge),
        }
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Charge> {
        self.first.iter().map_while(Option::as_ref).chain(&self.more)
    }

    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Charge> {
        self.first.iter_mut().map_while(Option::as_mut).chain(&mut self.more)
    }

    /// Returns true if every bucket here is also among `others`.
    pub(crate) fn are_among(&self, others: &Self) -> bool {
        self.iter().all(|charge| others.iter().any(|other| other.bucket == charge.bucket))
    }

    #[inline]
    pub(crate) fn contains(&self, bucket: BucketId) -> bool {
        self.iter().any(|charge| charge.bucket == bucket)
    }

    /// Returns the retry bucket and the gate's bucket. A retry waits for their tokens no longer
    /// than `backoff.hold`.
    #[inline]
    pub(crate) fn of_retry(&self) -> impl Iterator<Item = BucketId> {
        self.iter().filter(|charge| charge.reason.is_of_retry()).map(|charge| charge.bucket)
    }
}

// === impl SlotShare ===

impl SlotShare {
    /// Returns true if the call is counted by flow or credential.
    pub(crate) fn is_own(self) -> bool {
        matches!(self, Self::Split { .. } | Self::Rest { .. })
    }
}

// === impl Lasts ===

impl Lasts {
    pub(crate) fn new(long_running: bool, lists_first: bool) -> Self {
        match (long_running, lists_first) {
            (false, _) => Self::Shortly,
            (true, false) => Self::Long,
            (true, true) => Self::LongAfterList,
        }
    }
}

// === impl Requirements ===

impl Requirements {
    /// Returns true if these needs are part of `others`: the same connection group, and only
    /// buckets in `others`.
    pub(crate) fn are_among(&self, others: &Self) -> bool {
        self.group == others.group && self.charges.are_among(&others.charges)
    }

    /// Returns true if some of these needs are specific to a flow or credential. Then the call's
    /// queue may stop while other queues of its class continue.
    pub(crate) fn have_own(&self) -> bool {
        !self.quota.is_of_class()
            || self.charges.iter().any(|charge| charge.own)
            || self.shares.iter().any(|share| share.is_own())
    }
}
