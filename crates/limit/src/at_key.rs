//! The state of a call's key, as it concerns the call.

use super::{BucketId, KeyState, Reason};
use crate::moment::Moment;

/// The state of a call's key, and what would hold the call there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtKey {
    /// The state of the key, if it is failing.
    pub(crate) state: Option<KeyState>,
    /// Set if another call of the failing key is the trial, or comes before this call.
    pub(crate) tried: bool,
    /// Set if another write of the key is past the stage, or comes before this call.
    pub(crate) busy: bool,
    /// The end of the delay, or the moment of the reserved retry token if that is later.
    pub(crate) earliest: Moment,
    /// The reason for that moment.
    pub(crate) later: Reason,
    /// The retry bucket for the token reserved on arrival (`max_of`).
    pub(crate) reserve: Option<BucketId>,
}

// === impl AtKey ===

impl AtKey {
    /// Makes the state of a failing key.
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

    /// Makes the state of a healthy key, perhaps busy with another write.
    #[inline]
    pub(crate) fn healthy(busy: bool, now: Moment) -> Self {
        Self { state: None, tried: false, busy, earliest: now, later: Reason::OneAtATime, reserve: None }
    }

    /// Returns true if the key does not hold the call.
    #[inline]
    pub(crate) fn passes(&self, now: Moment) -> bool {
        !self.tried && !self.busy && self.earliest <= now
    }

    /// Returns why the key holds the call.
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
