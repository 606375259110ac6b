//! The meaning of a response for its key, and its pause.
//!
//! A refusal or a wait by the limiter itself never comes here: it is neither success nor failure
//! (P4).

use std::time::Duration;

use crate::quota::ResourceId;

/// The meaning of a response for its key (docs/internals/design.md, "Outcomes").
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
    /// Counts as a failure, and no call of the key leaves before `after` has passed.
    Throttled {
        /// The upstream's own Retry-After.
        after: Duration,
    },
}

/// An outcome, and its effects beyond the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The meaning for the key.
    pub outcome: Outcome,
    /// The status; `None` if the call was sent and then lost.
    pub status: Option<u16>,
    /// The failures to forget, beyond the outcome.
    pub gone: Removal,
    /// True if the upstream turned the call away because it has too much to do (not for an error of
    /// its own or a PodDisruptionBudget). An adaptive bucket slows down for it.
    pub throttled: bool,
    /// The pause of calls beyond the key.
    pub pause: Option<Pause>,
}

/// The failures to forget because an answer shows a removal. Times from the upstream stay in any
/// case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Removal {
    /// None. A read without a result says nothing about the write of a missing object.
    Nothing,
    /// Those of its own key: the write found nothing to write to.
    Key,
    /// Those of every key of the object: a DELETE has removed it, or found nothing to remove.
    Object,
}

/// A pause of calls beyond the key, as the upstream asks for it: of the call's holder, for what the
/// call was charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The resource without more.
    pub charged: Charged,
    /// Its length, from the response head on.
    pub length: PauseLength,
}

/// The resource that an answer speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charged {
    /// The whole API.
    All,
    /// The class of the call.
    Class,
    /// The resource of the call, as its request or earlier answers tell; else its class.
    Predicted,
    /// This one, in the upstream's word.
    Named(ResourceId),
}

/// The length of a pause, or of the wait of a single call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseLength {
    /// The upstream named it.
    Known(Duration),
    /// The upstream named none: `first`, then twice as long each time it happens again before a
    /// success of the quota, up to `most`.
    Growing {
        /// The first length.
        first: Duration,
        /// The longest.
        most: Duration,
    },
}

// === impl Outcome ===

impl Outcome {
    /// True if it counts against the key.
    pub const fn counts(self) -> bool {
        matches!(self, Self::Failure | Self::Throttled { .. })
    }
}

// === impl Answer ===

impl Answer {
    /// Creates an answer for the key of its call only.
    pub const fn new(outcome: Outcome, status: Option<u16>) -> Self {
        Self { outcome, status, gone: Removal::Nothing, throttled: false, pause: None }
    }

    /// Returns the same for a call of no single object: the end of an object says nothing about its
    /// key.
    pub const fn of_no_object(self) -> Self {
        Self { gone: Removal::Nothing, ..self }
    }
}

// === impl PauseLength ===

impl PauseLength {
    /// Returns the length at the first time.
    pub fn first(self) -> Duration {
        match self {
            Self::Known(first) | Self::Growing { first, .. } => first,
        }
    }

    /// Returns it with every length at most `cap`.
    pub fn capped(self, cap: Duration) -> Self {
        match self {
            Self::Known(length) => Self::Known(length.min(cap)),
            Self::Growing { first, most } => Self::Growing { first: first.min(cap), most: most.min(cap) },
        }
    }
}
