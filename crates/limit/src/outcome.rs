//! What a response means for later calls: for its key, and for the pauses it asks for.
//!
//! A refusal or a wait by the limiter itself has no outcome: it is neither success nor failure
//! (P4).

use std::time::Duration;

use crate::quota::{QuotaKind, ResourceId};

/// The meaning of a response for its key (docs/internals/design.md, "Outcomes").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Changes nothing: the client hung up less than 1 s after the call was sent, or the response
    /// says nothing about the key.
    Abandoned,
    /// Counts as a failure of the key, which starts or lengthens its backoff.
    Failure,
    /// Changes nothing: neither counts against the key nor forgets its failures.
    Neutral,
    /// Forgets the failures of the key.
    Success,
    /// Counts as a failure, and no call of the key is sent before `after` has passed.
    Throttled {
        /// The time from the upstream's Retry-After header.
        after: Duration,
    },
}

/// The outcome of a call, and what its response means beyond the call's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The meaning of the response for the call's key.
    pub outcome: Outcome,
    /// The response's HTTP status; `None` if the call was sent and no response came.
    pub status: Option<u16>,
    /// The failures to forget because the response shows that an object was removed.
    pub gone: Removal,
    /// True if the upstream turned the call away because it has too much to do (not for an error of
    /// its own or a PodDisruptionBudget). An adaptive bucket slows down for it.
    pub throttled: bool,
    /// A pause of other calls too, not only of the call's key, if the response asks for one.
    pub pause: Option<Pause>,
    /// The state of the call's quota, if the response reports it and has no Retry-After.
    pub quota: Option<QuotaReading>,
}

/// The failures to forget because a response shows that an object was removed. A wait asked for by
/// the upstream stays in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Removal {
    /// No failures: a read without a result says nothing about the write of a missing object.
    Nothing,
    /// The failures of the call's own key: it tried to change an object that is not there.
    Key,
    /// The failures of every key of the object: a DELETE has removed it, or found nothing to
    /// remove.
    Object,
}

/// A pause the upstream asks for, beyond the call's key. It applies to calls of the same holder
/// (credential or account) charged to the same resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The part of the API to pause.
    pub charged: Charged,
    /// The length of the pause, from the response head on.
    pub length: PauseLength,
}

/// The part of the upstream's API an answer or a pause applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charged {
    /// The whole API.
    All,
    /// The class of the call.
    Class,
    /// The resource the call was expected to be charged to, by its request or by earlier answers;
    /// the call's class if there is none.
    Predicted,
    /// The resource with this name in the upstream's responses.
    Named(ResourceId),
}

/// The state of a quota, as read from a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaReading {
    /// The resource.
    pub charged: Charged,
    /// The calls in the whole quota.
    pub limit: u64,
    /// The calls left in the quota.
    pub left: u64,
    /// The calls to leave to other users of the quota.
    pub kept: u64,
    /// The time until the quota is full again.
    pub resets_in: Duration,
    /// The way the quota becomes full again, if known in advance.
    pub kind: QuotaKind,
    /// True to spread the quota's calls evenly over the time to its reset.
    pub paces: bool,
}

/// The length of a pause, or of the wait of a single call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseLength {
    /// The length the upstream named.
    Known(Duration),
    /// No length from the upstream. The first pause lasts `first`, and each repetition twice as
    /// long, up to `most`, until a call of the quota succeeds.
    Growing {
        /// The length of the first pause.
        first: Duration,
        /// The greatest length of a pause.
        most: Duration,
    },
}

// === impl Outcome ===

impl Outcome {
    /// Returns true if the outcome counts as a failure of the key.
    pub const fn counts(self) -> bool {
        matches!(self, Self::Failure | Self::Throttled { .. })
    }
}

// === impl Answer ===

impl Answer {
    /// Creates an answer with an effect on the key of its call only.
    pub const fn new(outcome: Outcome, status: Option<u16>) -> Self {
        Self { outcome, status, gone: Removal::Nothing, throttled: false, pause: None, quota: None }
    }

    /// Returns the same answer without `gone`, for a call naming no single object.
    pub const fn of_no_object(self) -> Self {
        Self { gone: Removal::Nothing, ..self }
    }
}

// === impl QuotaReading ===

impl QuotaReading {
    /// True if nothing but the reserve is left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.left <= self.kept
    }
}

// === impl PauseLength ===

impl PauseLength {
    /// Returns the length of the first pause.
    pub fn first(self) -> Duration {
        match self {
            Self::Known(first) | Self::Growing { first, .. } => first,
        }
    }

    /// Returns the same pause length with every duration at most `cap`.
    pub fn capped(self, cap: Duration) -> Self {
        match self {
            Self::Known(length) => Self::Known(length.min(cap)),
            Self::Growing { first, most } => Self::Growing { first: first.min(cap), most: most.min(cap) },
        }
    }
}
