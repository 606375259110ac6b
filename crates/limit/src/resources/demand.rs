//! The requirements of a call: tokens, slots and room on a connection. They are plain values, for
//! its receipt.

use std::num::NonZeroU32;

use crate::key::Group;
use crate::moment::Moment;
use crate::quota::CallQuota;
use crate::{ClassId, Reason};

/// The facts behind a call's requirements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) class: ClassId,
    pub(crate) flow: u64,
    pub(crate) credential: u64,
    pub(crate) quota: CallQuota,
    pub(crate) group: Group,
    pub(crate) lasts: Lasts,
    /// Its cost, before the bounds of its class: a reload may change these.
    pub(crate) cost: u16,
}

/// The id of a bucket, present or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BucketId {
    /// The place of the bucket, with a mark if other gates share it.
    pub(crate) index: u32,
    /// Never zero, so that an `Option` of it takes no more room.
    pub(crate) serial: NonZeroU32,
}

/// The tokens of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Charge {
    pub(crate) bucket: BucketId,
    /// The reason of a wait for this token.
    pub(crate) reason: Reason,
    /// True if the bucket is one of many (per flow or credential), so that its being empty says
    /// nothing about other queues.
    pub(crate) own: bool,
    /// The tokens taken so far.
    pub(crate) taken: u16,
}

/// The tokens of a call, in the order of reasons. Four fit without allocation, enough for all except
/// long `within` chains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Charges {
    first: [Option<Charge>; 4],
    more: Vec<Charge>,
}

/// A share of the slots of the gate or of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum SlotShare {
    /// It holds no slot.
    #[default]
    None,
    /// One of all slots.
    Whole,
    /// One of the slots of a flow or credential. `era` tells apart what the slots were split by.
    Split { who: u64, era: u32 },
    /// One of the slots shared by all flows or credentials past the limit.
    Rest { era: u32 },
}

/// The requirements of a call when it leaves, taken together or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Requirements {
    pub(crate) group: Group,
    /// Its share of the gate's slots and of the class's.
    pub(crate) shares: [SlotShare; 2],
    pub(crate) charges: Charges,
    /// Its quota, whose pauses stop it.
    pub(crate) quota: CallQuota,
}

/// The duration of a call, and how it begins. One byte: a waiting call has no room for two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lasts {
    /// It lasts to the end of its answer.
    Shortly,
    /// It lasts until one side ends it.
    Long,
    /// It lasts as long, and begins with a list.
    LongAfterList,
}

/// The times of a call's turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) now: Moment,
    /// The time for its tokens: `now`, or earlier if the driver was late.
    pub(crate) at: Moment,
    /// The time of the last of its requirements; `None` if it did not wait.
    pub(crate) there_since: Option<Moment>,
}

/// The reason a call cannot leave now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) reason: Reason,
    /// The earliest end; `Moment::MAX` if time alone does not end it.
    pub(crate) until: Moment,
    /// True if it does not stop all queues of its class, only those with the same buckets and slots.
    pub(crate) own: bool,
}

// === impl BucketId ===

impl BucketId {
    /// The mark of a shared bucket.
    pub(crate) const SHARED: u32 = 1 << 31;

    #[inline]
    pub(crate) fn place(self) -> usize {
        (self.index & !Self::SHARED) as usize
    }

    /// True if other gates share the bucket.
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

    /// True if every bucket here is also among `others`.
    pub(crate) fn are_among(&self, others: &Self) -> bool {
        self.iter().all(|charge| others.iter().any(|other| other.bucket == charge.bucket))
    }

    #[inline]
    pub(crate) fn contains(&self, bucket: BucketId) -> bool {
        self.iter().any(|charge| charge.bucket == bucket)
    }

    /// Returns the retry bucket and the gate's. A retry waits for their tokens no longer than its
    /// key may hold it.
    #[inline]
    pub(crate) fn of_retry(&self) -> impl Iterator<Item = BucketId> {
        self.iter().filter(|charge| charge.reason.is_of_retry()).map(|charge| charge.bucket)
    }
}

// === impl SlotShare ===

impl SlotShare {
    /// True if it is one of many.
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
    /// Returns true if a call with these requirements could leave whenever one with the others
    /// could.
    pub(crate) fn are_among(&self, others: &Self) -> bool {
        self.group == others.group && self.charges.are_among(&others.charges)
    }

    /// True if anything here is one of many, so that the queue may stop while others of its class
    /// continue.
    pub(crate) fn have_own(&self) -> bool {
        !self.quota.is_of_class()
            || self.charges.iter().any(|charge| charge.own)
            || self.shares.iter().any(|share| share.is_own())
    }
}
