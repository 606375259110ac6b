//! The facts about a call, the key of its queue, and its grant.

use std::time::Duration;

use super::{BucketId, ClassId, Demand, KeyId, Lasts, Reason, Requirements};
use crate::key::{Group, Key};
use crate::moment::Moment;
use crate::quota::CallQuota;

/// The limiter's facts about a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallFacts {
    pub(super) demand: Demand,
    /// The number of its class that stays the same over a reload.
    pub(super) serial: u32,
    pub(super) key: Option<Key>,
    pub(super) write: bool,
    /// Set if it is never refused on arrival.
    pub(super) patient: bool,
    pub(super) arrived: Moment,
    /// Half of the client's own deadline: the gate uses up no more of it. `Moment::MAX` if there is
    /// none.
    pub(super) half_time: Moment,
}

/// The key of a queue: calls with different keys may be stopped for different reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) class: ClassId,
    pub(crate) flow: u64,
    pub(crate) mode: Mode,
    /// Zero unless its limits are split by credential.
    pub(crate) credential: u64,
    pub(crate) quota: CallQuota,
}

/// The facts behind a call's requirements, besides its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mode {
    pub(crate) group: Group,
    pub(crate) lasts: Lasts,
    /// True for the trial of a failing key.
    pub(crate) retry: bool,
}

/// The grant of a call: everything it takes along.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// `None` for exempt calls.
    pub(super) needs: Option<Requirements>,
    /// The number of the take.
    pub(super) number: u64,
    /// The number of failures recorded when the call left.
    pub(super) left: u64,
    pub(super) key_grant: KeyGrant,
    /// The call's number in the order of its queue, in case it returns.
    pub(super) sequence: u64,
    pub(super) waited: Option<(Reason, Duration)>,
}

/// The key stage's part of a grant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyGrant {
    /// The number of its trial; 0 for calls of healthy keys.
    pub(super) trial: u32,
    /// The retry token reserved on arrival (`max_of`).
    pub(super) reserved: Option<Reservation>,
    /// Set if the call is the one write of its key, where writes go one at a time.
    pub(super) alone: bool,
}

/// A token reserved ahead of its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(super) bucket: BucketId,
    /// The number of the take.
    pub(super) number: u64,
    /// The moment the token is there.
    pub(super) at: Moment,
}

// === impl CallFacts ===

impl CallFacts {
    pub(super) fn key_id(&self) -> Option<KeyId> {
        self.key.as_ref().map(KeyId::from)
    }
}

// === impl Grant ===

impl Grant {
    /// Returns the buckets of the tokens taken.
    pub(super) fn buckets(&self) -> impl Iterator<Item = BucketId> {
        self.needs.iter().flat_map(|needs| needs.charges.iter().map(|charge| charge.bucket))
    }
}

// === impl KeyGrant ===

impl KeyGrant {
    /// Makes a grant of only a reserved token.
    pub(super) fn of(reserved: Option<Reservation>) -> Self {
        Self { reserved, ..Self::default() }
    }
}
