//! What a call needs in order to leave: tokens, a slot, room on a connection. Plain values that fit in a receipt.

use std::num::NonZeroU32;

use super::verdict::Reason;
use crate::{api::Group, moment::Moment};

/// A bucket; stale once the bucket is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct BucketId {
    pub(super) index: u32,
    /// Never zero, so that an `Option` of it takes no more room.
    pub(super) serial: NonZeroU32,
}

/// One token of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Charge {
    pub(super) bucket: BucketId,
    /// Why a call waits that waits for it.
    pub(super) reason: Reason,
    /// The bucket is one of many (per flow or credential), so its being empty says nothing of other queues.
    pub(super) own: bool,
}

/// The tokens that a call takes, in the order in which reasons are named. Four fit without allocation, which is all but long `within` chains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Charges {
    first: [Option<Charge>; 4],
    more: Vec<Charge>,
}

/// A place among the slots of the gate or of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// It holds none.
    #[default]
    None,
    /// Among all.
    Whole,
    /// Among those of one flow or credential; `era` tells apart what the slots were split by.
    Split { who: u64, era: u32 },
    /// Among those of all flows or credentials past the limit.
    Rest { era: u32 },
}

/// Everything a call takes at the moment it leaves, together or not at all, and whose pause it heeds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Needs {
    pub(super) group: Group,
    /// Among the gate's slots, among the class's.
    pub(super) places: [Place; 2],
    pub(super) charges: Charges,
    /// Its credential, where pauses are told apart by it.
    pub(super) credential: Option<u64>,
}

/// How long a call goes on, and how it begins. One byte: a waiting call has no room for two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasts {
    /// To the end of its answer.
    Shortly,
    /// Until somebody ends it.
    Long,
    /// The same, and it begins with a list.
    LongAfterList,
}

/// Why a call cannot leave now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) reason: Reason,
    /// When it may be over; `Moment::MAX` when that is not a matter of time.
    pub(super) until: Moment,
    /// It stops this queue (and those that share its buckets and slots), not the others of its class.
    pub(super) own: bool,
}

// === impl Charges ===

impl Charges {
    #[inline]
    pub(super) fn push(&mut self, charge: Charge) {
        match self.first.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(charge),
            None => self.more.push(charge),
        }
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Charge> {
        self.first.iter().map_while(Option::as_ref).chain(&self.more)
    }

    /// Whether every bucket here is also among `others`.
    pub(super) fn are_among(&self, others: &Self) -> bool {
        self.iter().all(|charge| others.iter().any(|other| other.bucket == charge.bucket))
    }

    #[inline]
    pub(super) fn contains(&self, bucket: BucketId) -> bool {
        self.iter().any(|charge| charge.bucket == bucket)
    }

    /// The tokens for which a retry is held no longer than its key may hold it: the retry bucket's and the gate's.
    #[inline]
    pub(super) fn of_retry(&self) -> impl Iterator<Item = BucketId> {
        self.iter().filter(|charge| charge.reason.is_of_retry()).map(|charge| charge.bucket)
    }
}

// === impl Place ===

impl Place {
    /// Whether it is one of many.
    pub(super) fn is_own(self) -> bool {
        matches!(self, Self::Split { .. } | Self::Rest { .. })
    }
}

// === impl Lasts ===

impl Lasts {
    pub(super) fn new(long_running: bool, lists_first: bool) -> Self {
        match (long_running, lists_first) {
            (false, _) => Self::Shortly,
            (true, false) => Self::Long,
            (true, true) => Self::LongAfterList,
        }
    }
}

// === impl Needs ===

impl Needs {
    /// Whether anything here is one of many, so that the queue may stop while others of its class go on.
    pub(super) fn have_own(&self) -> bool {
        self.credential.is_some()
            || self.charges.iter().any(|charge| charge.own)
            || self.places.iter().any(|place| place.is_own())
    }
}
