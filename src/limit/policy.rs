//! What the limiter enforces: numbers that cannot be wrong.
//!
//! `config` checks a file and builds one of these; nothing here needs checking again, which is why `Limiter::reconfigure` cannot fail.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use super::verdict::ClassId;
use crate::api::Scope;

/// All limits of one gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The manager-level bucket: every call that is not exempt.
    pub bucket: Option<BucketPolicy>,
    /// Only calls whose key is failing.
    pub retry_bucket: Option<BucketPolicy>,
    /// Limits of the waiting room.
    pub queue: QueuePolicy,
    /// Slots of the gate.
    pub in_flight: Option<InFlight>,
    /// Keys remembered at most; past it the key with least left to wait is dropped.
    pub max_keys: usize,
    /// What pauses when the upstream says wait. By credential, queues are split by it too.
    pub pause_scope: Scope,
    /// At most one write of a key is past the key stage, failing or not.
    pub one_at_a_time: bool,
    /// By [`ClassId`]; never empty.
    pub classes: Vec<ClassPolicy>,
}

/// What a class adds to the gate's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassPolicy {
    /// Its name in config, metrics and messages.
    pub name: Arc<str>,
    /// Its rank.
    pub lane: Lane,
    /// Its own bucket, on top of the gate's.
    pub bucket: Option<BucketPolicy>,
    /// Another class whose bucket is charged too (and, through it, that class's own `within`; never a cycle).
    pub within: Option<ClassId>,
    /// The gate's bucket is not charged.
    pub own_bucket_only: bool,
    /// How failing keys of this class wait.
    pub backoff: Backoff,
    /// Its own slots, on top of the gate's.
    pub in_flight: Option<InFlight>,
    /// Opening a long-running call costs one token.
    pub meter_long_running: bool,
}

/// Rank of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Never waits and never spends (P7).
    Exempt,
    /// Before `Normal`.
    High,
    /// The rest.
    Normal,
    /// After `Normal`.
    Low,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketPolicy {
    /// Tokens per second; finite, above zero, at most 10^9.
    pub rate: f64,
    /// Tokens it holds at most.
    pub burst: NonZeroU32,
    /// What it is split by.
    pub per: Per,
    /// Whether it starts empty: no free burst after a restart.
    pub starts_empty: bool,
    /// Whether its rate gives way to an upstream that throttles; `None` for never.
    pub adapt: Option<Adapt>,
}

/// How far a rate gives way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapt {
    /// Tokens per second at least; finite, above zero, at most the bucket's rate.
    pub floor: f64,
}

/// What a bucket or a set of slots is split by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// One per client credential.
    Credential,
    /// One per flow.
    Flow,
    /// One for the gate.
    Gate,
}

/// Slots: places among calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Calls in flight at most.
    pub max: NonZeroU32,
    /// What they are split by.
    pub per: Per,
}

/// How long the calls of a failing key wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The delay after the n-th consecutive failure.
    pub strategy: Strategy,
    /// How long the gate itself holds such a call before it refuses it.
    pub hold: Duration,
    /// A key is forgotten this long after its last failure.
    pub forget_after: Duration,
}

/// The delay after the n-th consecutive failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strategy {
    /// No memory of failures.
    Off,
    /// `min(base * 2^(n-1), max)`, plus up to `jitter` of it at random (client-go `ItemExponentialFailureRateLimiter`).
    Exponential {
        /// After the first failure.
        base: Duration,
        /// Never more.
        max: Duration,
        /// Fraction of the delay added at random; 0 for none.
        jitter: f64,
    },
    /// `fast` for the first `fast_attempts` failures, then `slow` (client-go `ItemFastSlowRateLimiter`).
    FastSlow {
        /// For the first failures.
        fast: Duration,
        /// From then on.
        slow: Duration,
        /// How many failures are fast.
        fast_attempts: u32,
    },
}

/// Limits of the waiting room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePolicy {
    /// A healthy call waits at most this long.
    pub max_wait: Duration,
    /// Calls waiting at most.
    pub max_waiting: usize,
    /// Bytes of bodies and of large heads held at most while their calls wait.
    pub max_waiting_bytes: usize,
    /// How backoff and the retry bucket are joined.
    pub combine: Combine,
}

/// How backoff and the retry bucket are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// First the backoff, then a token: the retry bucket's bound always holds.
    Sequential,
    /// The token is reckoned on arrival and the call leaves at the later of the two, as client-go's `MaxOfRateLimiter`.
    MaxOf,
}

// === impl Policy ===

impl Policy {
    /// Whether any bucket or slot that applies to a class is split by credential, so that its queues must be too.
    pub(super) fn splits_by_credential(&self, class: usize) -> bool {
        let bucket = |bucket: &Option<BucketPolicy>| bucket.is_some_and(|bucket| bucket.per == Per::Credential);
        let slots = |slots: &Option<InFlight>| slots.is_some_and(|slots| slots.per == Per::Credential);
        let pauses = self.pause_scope == Scope::Credential;
        if pauses || bucket(&self.bucket) || bucket(&self.retry_bucket) || slots(&self.in_flight) {
            return true;
        }
        let mut next = self.classes.get(class);
        if next.is_some_and(|class| slots(&class.in_flight)) {
            return true;
        }
        for _ in 0..self.classes.len() {
            let Some(class) = next else { return false };
            if bucket(&class.bucket) {
                return true;
            }
            next = class.within.and_then(|outer| self.classes.get(usize::from(outer.0)));
        }
        false
    }
}
