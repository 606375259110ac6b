//! A call as the limiter keeps it, and the grant with which it leaves.

use std::time::Duration;

use super::{BucketId, Demand, KeyId, Reason, Requirements};
use crate::key::Key;
use crate::moment::Moment;

/// The facts that the limiter keeps about a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(super) demand: Demand,
    /// Its class, by the number that stays the same over a reload.
    pub(super) serial: u32,
    pub(super) key: Option<Key>,
    /// True if the call changes something.
    pub(super) write: bool,
    /// True if it is never refused on arrival.
    pub(super) patient: bool,
    pub(super) arrived: Moment,
    /// The moment at which half of the client's own deadline is over: the gate uses up no more of
    /// it. `Moment::MAX` if the client has none.
    pub(super) half_time: Moment,
}

/// Everything that a call was given to leave with.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// `None` for exempt calls, which take nothing.
    pub(super) needs: Option<Requirements>,
    /// The number of the take.
    pub(super) number: u64,
    /// The number of failures recorded when the call left.
    pub(super) left: u64,
    pub(super) key_grant: KeyGrant,
    /// The call's number in the order of its queue, in case it comes back.
    pub(super) sequence: u64,
    pub(super) waited: Option<(Reason, Duration)>,
}

/// Everything that a call got at the key stage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyGrant {
    /// The number of its trial; 0 for calls of healthy keys.
    pub(super) trial: u32,
    /// The retry token reserved on arrival (`max_of`).
    pub(super) reserved: Option<Reserved>,
    /// True if the call is the one write of its key, where only one may be on its way.
    pub(super) alone: bool,
}

/// A token reserved ahead of its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved {
    pub(super) bucket: BucketId,
    /// The number of the take.
    pub(super) number: u64,
    /// The moment the token is there.
    pub(super) at: Moment,
}

// === impl Call ===

impl Call {
    pub(super) fn key_id(&self) -> Option<KeyId> {
        self.key.as_ref().map(KeyId::from)
    }
}

// === impl KeyGrant ===

impl KeyGrant {
    /// A grant of nothing but a reserved token.
    pub(super) fn of(reserved: Option<Reserved>) -> Self {
        Self { reserved, ..Self::default() }
    }
}
