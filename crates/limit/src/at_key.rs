//! What a call's key says about the call, and what would hold it there.

use super::{BucketId, KeyState, Reason};
use crate::moment::Moment;

/// What a call's key says about it, and what would hold it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtKey {
    /// The state of the key, if it is failing.
    pub(crate) state: Option<KeyState>,
    /// True if another call of the failing key is the trial, or comes before this one.
    pub(crate) tried: bool,
    /// True if another write of the key is on its way, or comes before this one.
    pub(crate) busy: bool,
    /// The moment at which the delay is over, and the retry token there that is reserved on
    /// arrival.
    pub(crate) earliest: Moment,
    /// The one of the two that comes later.
    pub(crate) later: Reason,
    /// The retry bucket in which it reserves a token (`max_of`).
    pub(crate) reserve: Option<BucketId>,
}

// === impl AtKey ===

impl AtKey {
    /// A call whose key is failing.
    #[inline]
    pub(crate) fn failing(state: KeyState, tried: bool, busy: bool, token_at: Option<Moment>, now: Moment) -> Self {
        let ready_at = state.ready_at.max(now);
        let of_backoff =
            Self { state: Some(state), tried, busy, earliest: ready_at, later: Reason::Backoff, reserve: None };
        match token_at.filter(|token_at| *token_at > ready_at) {
            Some(earliest) => Self { earliest, later: Reason::RetryBucket, ..of_backoff },
            None => of_backoff,
        }
    }

    /// A call whose key is healthy, and perhaps busy with another write.
    #[inline]
    pub(crate) fn healthy(busy: bool, now: Moment) -> Self {
        Self { state: None, tried: false, busy, earliest: now, later: Reason::OneAtATime, reserve: None }
    }

    /// True if its key does not hold the call.
    #[inline]
    pub(crate) fn passes(&self, now: Moment) -> bool {
        !self.tried && !self.busy && self.earliest <= now
    }

    /// Returns the reason for which its key holds the call.
    pub(crate) fn reason(&self) -> Reason {
        if self.tried {
            Reason::Trial
        } else if self.busy {
            Reason::OneAtATime
        } else {
            self.later
        }
    }
}
