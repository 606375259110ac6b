//! What a response means for its key.

use std::time::Duration;

/// What a response means for its key (DESIGN.md, "Outcomes").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The caller left after less than 1 s upstream, or nothing was learned.
    Abandoned,
    /// Counts against the key.
    Failure,
    /// Neither counts nor forgets.
    Neutral,
    /// Forgets the key.
    Success,
    /// Counts as a failure, and nothing of the key leaves before `after` has passed.
    Throttled {
        /// The upstream's own Retry-After.
        after: Duration,
    },
}

/// An outcome with what the refusals it may cause will say about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What it means for the key.
    pub outcome: Outcome,
    /// The status; `None` when the call was sent and then lost.
    pub status: Option<u16>,
    /// The object is gone (a DELETE succeeded, or it is not found): every key of it is forgotten.
    pub object_gone: bool,
}
