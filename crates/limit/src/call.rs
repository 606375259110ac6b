//! A call as the limiter sees it, the identity of its queue, and the tokens, slots and permissions
//! it takes before it is sent.

use std::time::Duration;

use super::{BucketId, ClassId, Demand, KeyId, Lasts, Reason, Requirements};
use crate::key::{Group, Key};
use crate::moment::Moment;
use crate::quota::CallQuota;

/// A call as the limiter sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallFacts {
    pub(super) demand: Demand,
    /// The number of the call's class. Unlike the class's index, it stays the same when the
    /// configuration is reloaded.
    pub(super) serial: u32,
    pub(super) key: Option<Key>,
    pub(super) write: bool,
    /// Set if the call may always wait, and is never refused on arrival.
    pub(super) patient: bool,
    pub(super) arrived: Moment,
    /// The moment halfway to the client's own deadline. The gate makes no call wait beyond it.
    /// `Moment::MAX` without a deadline.
    pub(super) half_time: Moment,
}

/// The identity of a queue. Calls with equal identities need the same tokens, slots and
/// connections, so one queue holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) class: ClassId,
    pub(crate) flow: u64,
    pub(crate) mode: Mode,
    /// The client's credential as a hash; zero if the class has no limit per credential.
    pub(crate) credential: u64,
    pub(crate) quota: CallQuota,
}

/// The properties of a call, besides its class, determining the tokens, slots and connections it
/// needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mode {
    pub(crate) group: Group,
    pub(crate) lasts: Lasts,
    /// True for the one call testing a failing key.
    pub(crate) retry: bool,
}

/// The tokens, slots, connection room and key permission of an admitted call.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// What the call took; `None` for exempt calls, which take nothing.
    pub(super) needs: Option<Requirements>,
    /// A number for the call's tokens, to refund exactly these.
    pub(super) number: u64,
    /// The number of failures the limiter had recorded when the call was admitted. If the call's
    /// key has failed since, the call's outcome is stale.
    pub(super) left: u64,
    pub(super) key_grant: KeyGrant,
    /// The call's number in the order of its queue, to return it to the same place.
    pub(super) sequence: u64,
    pub(super) waited: Option<(Reason, Duration)>,
}

/// The permission a call gets from its key before it enters a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyGrant {
    /// The number of the trial, if this call is the one testing a failing key; otherwise 0.
    pub(super) trial: u32,
    /// The retry token reserved when the call arrived (`combine = "max_of"`).
    pub(super) reserved: Option<Reservation>,
    /// Set if only one write of the key may be in progress, and this call is that write.
    pub(super) alone: bool,
}

/// A retry token reserved for a call before the bucket has the token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(super) bucket: BucketId,
    /// The number identifying the token, to refund it.
    pub(super) number: u64,
    /// The moment the bucket has the token.
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
    /// Returns the buckets the call took tokens from.
    pub(super) fn buckets(&self) -> impl Iterator<Item = BucketId> {
        self.needs.iter().flat_map(|needs| needs.charges.iter().map(|charge| charge.bucket))
    }
}

// === impl KeyGrant ===

impl KeyGrant {
    /// Makes a grant holding only a reserved retry token.
    pub(super) fn of(reserved: Option<Reservation>) -> Self {
        Self { reserved, ..Self::default() }
    }
}
