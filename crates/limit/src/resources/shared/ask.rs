//! The request of a member to the store, and the answer.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::policy::Per;
use crate::quota::QuotaId;
use crate::{BucketId, BucketPolicy, SharedPolicy};

/// The numbers of a shared bucket, from its configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedLimits {
    /// Microseconds per token: a whole number of quarters, exact in a double at any time of this
    /// century.
    pub period: f64,
    /// The most tokens in the store.
    pub burst: f64,
    /// The validity of a token.
    pub lease: Duration,
    /// The time ahead of promised tokens.
    pub horizon: Duration,
    /// The share of this member in a shortage, beside the others' weights.
    pub weight: u32,
}

/// The member and the number of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AskId {
    pub(super) bucket: BucketId,
    pub(super) number: u64,
}

/// A part of a split shared bucket: a shared bucket of its own, the same in every gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketPart {
    /// The unit of the split.
    pub per: Per,
    /// The origin of the gate's upstream, as a number; zero for a gate of one upstream.
    pub origin: u64,
    /// The account, action or credential, as a number; `None` for the rest.
    pub who: Option<u64>,
}

/// A member's request for tokens of a shared bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The member and the number of the ask.
    pub asked: AskId,
    /// The shared bucket.
    pub shared: Arc<SharedPolicy>,
    /// The part of it, if it is split.
    pub part: Option<BucketPart>,
    /// The member's number: random, and new with each start.
    pub member: u64,
    /// The limits as this member has them.
    pub limits: SharedLimits,
    /// The tokens to grant.
    pub wish: Wish,
    /// The tokens received since it became a member.
    pub total: u64,
    /// The life of the bucket as it knows it; zero if it knows none.
    pub epoch: u64,
    /// The tokens it holds that are not available yet.
    pub ahead: u32,
    /// True if the store was away since the last answer.
    pub away: bool,
    /// An upstream's pause, for the others; one of no length ends all pauses that they know of.
    pub pause: Option<PauseNotice>,
    /// The rest of the upstream's quota, by its last answers. The level never exceeds it, and it
    /// only ever lowers the level.
    pub left: Option<u32>,
    /// True for the last ask of a member.
    pub leave: bool,
    /// The member's way without the store. It is not sent there.
    pub fallback: Fallback,
}

/// A pause of a quota, as gates tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseNotice {
    /// The quota.
    pub quota: QuotaId,
    /// The time left of it.
    pub left: Duration,
}

/// The wish of a member for tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The tokens for waiting calls.
    pub need: u32,
    /// The tokens beyond need, while there is plenty.
    pub extra: u32,
    /// The rest of the newest call's wait.
    pub within: Duration,
}

/// A gate's way without the store, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fallback {
    /// The member's rate if no answer comes; zero if its calls wait.
    pub rate: f64,
    /// The calls sent without this store since its last answer; with the first ask of a question,
    /// those of all members of the gate.
    pub sent: u64,
}

/// The answer to an [`Ask`]. It comes from outside and may say anything.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreAnswer {
    /// The number of tokens granted.
    pub granted: u32,
    /// Nanoseconds from the store's now to the first of them, or to the next if there are none;
    /// below zero if it has been there for a while.
    pub first: i64,
    /// The time per token now in force: that of the strictest member.
    pub period: Duration,
    /// The tokens before the grant; below zero if some are promised.
    pub level: f64,
    /// The life of the bucket.
    pub epoch: u64,
    /// The number of members.
    pub members: u32,
    /// The sum of the weights of other members with waiting calls.
    pub rivals: u32,
    /// The time left of a pause of everything; zero if it is over, or if pauses were lifted, `None`
    /// if there was none.
    pub pause: Option<Duration>,
    /// The pauses of other quotas.
    pub quotas: Vec<PauseNotice>,
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
    /// Returns the bucket of the member.
    pub(crate) fn bucket(self) -> BucketId {
        self.bucket
    }
}

// === impl Ask ===

impl Ask {
    /// Makes the first ask of a member without a gate, for no token.
    #[must_use]
    pub fn new(member: u64, limits: SharedLimits, shared: Arc<SharedPolicy>) -> Self {
        let bucket = BucketId { index: 0, serial: NonZeroU32::MIN };
        Self {
            asked: AskId { bucket, number: 0 },
            shared,
            part: None,
            member,
            limits,
            wish: Wish::default(),
            total: 0,
            epoch: 0,
            ahead: 0,
            away: false,
            pause: None,
            left: None,
            leave: false,
            fallback: Fallback::default(),
        }
    }
}

// === impl Wish ===

impl Wish {
    /// Returns the most tokens of an answer.
    #[must_use]
    pub const fn most(&self) -> u32 {
        self.need.saturating_add(self.extra)
    }
}

// === impl StoreAnswer ===

impl StoreAnswer {
    /// Returns the time from the store's now until the token after so many granted ones; zero if it
    /// is there.
    pub(super) fn until(&self, tokens: u32) -> Duration {
        let period = i64::try_from(self.period.as_nanos()).unwrap_or(i64::MAX);
        let nanos = self.first.saturating_add(period.saturating_mul(i64::from(tokens)));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    /// Returns the tokens after the grant.
    pub(super) fn rest(&self) -> f64 {
        self.level - f64::from(self.granted)
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

    /// Returns the automatic lease: a quarter of the burst's time, so that leases cost a quarter of
    /// the burst, and less where the burst is too small for that.
    fn auto_lease(bucket: &BucketPolicy) -> Duration {
        let token = 1.0 / bucket.rate;
        let burst = f64::from(bucket.burst.get()) / bucket.rate;
        let seconds = (burst / 4.0).clamp(0.1, 2.0).max(token / 4.0);
        // A burst of one leaves nothing to take the lease from, and nothing to lend.
        let is_large = burst < token + seconds;
        let seconds = if is_large { seconds.min(SHORT) } else { seconds };
        Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST)
    }

    /// Returns the most calls of all members together at one moment (P13).
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

/// The most quotas with a pause that a store keeps for a bucket; past it the one that ends first
/// goes.
pub const MOST_PAUSES: usize = 64;
/// The longest time ahead of promised tokens: with less there are more asks, with more a member of
/// little demand waits longer.
const HORIZON: Duration = Duration::from_millis(200);
/// The longest automatic lease, in seconds, where the burst is too small to lend from; the store can
/// answer within it.
const SHORT: f64 = 0.25;
/// The longest automatic lease.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
/// Quarters of a microsecond per token at the slowest: some years.
const SLOWEST: f64 = 1e15;
