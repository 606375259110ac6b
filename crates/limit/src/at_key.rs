//! The failure state of a call's key, and whether it makes the call wait.

use super::{BucketId, KeyState, Reason};
use crate::moment::Moment;

/// The failure state of a call's key, and whether it makes the call wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtKey {
    /// The failures of the key; `None` if its last call did not fail.
    pub(crate) state: Option<KeyState>,
    /// Set if another call is testing the failing key (the trial), or waits for the key ahead of
    /// this call.
    pub(crate) tried: bool,
    /// Set if another write of the same key is queued or in flight, or waits ahead of this call.
    pub(crate) busy: bool,
    /// The earliest moment for the call to continue: the end of the key's backoff, or the moment of
    /// the call's retry token if that is later.
    pub(crate) earliest: Moment,
    /// The reason for waiting until `earliest`: the backoff or the retry token.
    pub(crate) later: Reason,
    /// The retry bucket to reserve a token from when the call arrives (`combine = "max_of"`).
    pub(crate) reserve: Option<BucketId>,
}

// === impl AtKey ===

impl AtKey {
    /// Makes the value for a failing key. `tried` and `busy` are as in the fields; `token_at` is
    /// the moment at which the call can have a retry token.
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

    /// Makes the state of a healthy key. `busy` is set if another write of it is in
    /// progress.
    #[inline]
    pub(crate) fn healthy(busy: bool, now: Moment) -> Self {
        Self { state: None, tried: false, busy, earliest: now, later: Reason::OneAtATime, reserve: None }
    }

    /// Returns true if the key does not make the call wait.
    #[inline]
    pub(crate) fn passes(&self, now: Moment) -> bool {
        !self.tried && !self.busy && self.earliest <= now
    }

    /// Returns why the key makes the call wait.
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
