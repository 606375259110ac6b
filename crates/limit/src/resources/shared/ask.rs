//! The question of a member to the store, and what comes back.

use std::sync::Arc;
use std::time::Duration;

use crate::policy::Per;
use crate::{BucketId, BucketPolicy, SharedPolicy};

/// The numbers of a shared bucket that follow from its configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedLimits {
    /// Microseconds per token: a whole number of quarters, which a double holds exactly at any
    /// time of this century.
    pub period: f64,
    /// The most tokens that the store holds.
    pub burst: f64,
    /// The time for which a token may be spent.
    pub lease: Duration,
    /// The time ahead for which tokens are promised.
    pub horizon: Duration,
    /// The share of a shortage that this member gets, beside the others' weights.
    pub weight: u32,
}

/// The member and the ask to which an answer belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AskId {
    pub(super) bucket: BucketId,
    pub(super) number: u64,
}

/// One of the many that a shared bucket is split into: a shared bucket of its own, which is the
/// same in every gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketPart {
    /// The unit that the bucket is split by.
    pub per: Per,
    /// The origin that the gate's calls go to, as a number; zero for a gate of one upstream.
    pub origin: u64,
    /// The account, action or credential, as a number; `None` for all that are not told apart.
    pub who: Option<u64>,
}

/// A member asks a shared bucket for tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The member and the number of the ask.
    pub asked: AskId,
    /// The shared bucket.
    pub shared: Arc<SharedPolicy>,
    /// The part of it, if it is split.
    pub part: Option<BucketPart>,
    /// The member: random, and new with each start.
    pub member: u64,
    /// The limits as this member knows them.
    pub limits: SharedLimits,
    /// The tokens that waiting calls need.
    pub need: u32,
    /// The tokens it takes beyond that while there is plenty.
    pub extra: u32,
    /// The tokens that it has received since it became a member.
    pub total: u64,
    /// The life of the bucket as it knows it; zero if it knows none.
    pub epoch: u64,
    /// The tokens it holds that are not available yet.
    pub ahead: u32,
    /// True if the store was away since the last answer.
    pub away: bool,
    /// The time that the newest waiting call has left.
    pub within: Duration,
    /// The time left of a pause that the upstream asked this member for, to be told to the others;
    /// zero to end the one that they know of.
    pub pause: Option<Duration>,
    /// The calls that are left of the upstream's quota, as its last answers said: the level never
    /// exceeds it. It only ever lowers.
    pub left: Option<u32>,
    /// True for the last ask of a member that leaves.
    pub leave: bool,
    /// Its way without the store, which the store is not told.
    pub alone: Fallback,
}

/// A gate's way without the store, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fallback {
    /// The rate at which the member goes on if no answer comes; zero if its calls wait.
    pub rate: f64,
    /// The calls that the gate has sent without this store since its last answer; with the first
    /// ask of a question, for all members of the gate.
    pub sent: u64,
}

/// The answer to an [`Ask`]. It comes from outside and may say anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreAnswer {
    /// The number of tokens granted.
    pub granted: u32,
    /// Nanoseconds from the store's now to the first of them, or to the one that would have been
    /// first; below zero if it has been there for a while.
    pub first: i64,
    /// The time per token now in force: that of the strictest member.
    pub period: Duration,
    /// The tokens that were there before the grant; below zero if some are promised.
    pub level: f64,
    /// The life of the bucket.
    pub epoch: u64,
    /// The number of members.
    pub members: u32,
    /// The sum of the weights of the other members that have waiting calls.
    pub rivals: u32,
    /// The time left of a pause that a member told; zero if it is over or was lifted, `None` if
    /// nothing is known of any.
    pub pause: Option<Duration>,
}

/// The reason there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFailure {
    /// The store is not reachable, too slow or not ready.
    Unreachable,
    /// The store refuses, and will until a person changes something.
    Wrong,
}

// === impl AskId ===

impl AskId {
    /// Returns the bucket that was asked.
    pub(crate) fn bucket(self) -> BucketId {
        self.bucket
    }
}

impl Default for AskId {
    /// The ask of no member.
    fn default() -> Self {
        Self { bucket: BucketId { index: 0, serial: std::num::NonZeroU32::MIN }, number: 0 }
    }
}

// === impl SharedLimits ===

impl SharedLimits {
    /// Computes the numbers of a shared bucket.
    #[must_use]
    pub fn new(bucket: &BucketPolicy, shared: &SharedPolicy) -> Self {
        let burst = f64::from(bucket.burst.get());
        let lease = shared.lease.unwrap_or_else(|| Self::auto_lease(bucket));
        Self {
            period: (4e6 / bucket.rate).ceil().clamp(1.0, SLOWEST) / 4.0,
            burst: (burst - bucket.rate * lease.as_secs_f64()).max(1.0),
            lease,
            horizon: lease.min(HORIZON),
            weight: shared.weight.get(),
        }
    }

    /// Returns the lease that is chosen where none is configured: a quarter of the time in which
    /// the burst flows, so that leases cost a quarter of it; less where it cannot be taken from the
    /// burst.
    #[must_use]
    pub fn auto_lease(bucket: &BucketPolicy) -> Duration {
        let token = 1.0 / bucket.rate;
        let burst = f64::from(bucket.burst.get()) / bucket.rate;
        let seconds = (burst / 4.0).clamp(0.1, 2.0).max(token / 4.0);
        // A burst of one leaves nothing to take the lease from, and nothing to lend.
        let is_large = burst < token + seconds;
        let seconds = if is_large { seconds.min(SHORT) } else { seconds };
        Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST)
    }

    /// Returns the time per token.
    pub(super) fn token(&self) -> Duration {
        micros(self.period)
    }

    /// Returns the most calls that all members together send at one moment (P13).
    #[must_use]
    pub fn bound(&self) -> f64 {
        self.burst + self.lease.as_secs_f64() * 1e6 / self.period
    }
}

/// Returns so many microseconds as a duration.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, as is wanted")]
pub(super) fn micros(micros: f64) -> Duration {
    Duration::from_nanos((micros * 1e3) as u64)
}

/// The time ahead for which tokens are promised: with less there are more asks, with more a member
/// of little demand waits longer.
const HORIZON: Duration = Duration::from_millis(200);
/// The seconds of a lease that are chosen where the burst cannot make up for it: enough for an
/// answer.
const SHORT: f64 = 0.25;
/// The longest lease that is chosen.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
/// Quarters of a microsecond per token at the slowest: some years.
const SLOWEST: f64 = 1e15;
