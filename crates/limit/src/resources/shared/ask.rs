//! A gate's request for tokens to the store of a shared bucket, and the answer.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::policy::Per;
use crate::quota::QuotaId;
use crate::{BucketId, BucketPolicy, SharedPolicy};

/// The limits of a shared bucket as numbers, computed from its configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedLimits {
    /// Microseconds per token: a whole number of quarters, which a double holds exactly at any time
    /// of this century.
    pub period: f64,
    /// The most tokens the store keeps.
    pub burst: f64,
    /// How long a granted token is valid.
    pub lease: Duration,
    /// How far ahead of time the store promises tokens.
    pub horizon: Duration,
    /// The weight of this gate when tokens are short.
    pub weight: u32,
}

/// The identity of a request: the bucket and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AskId {
    pub(super) bucket: BucketId,
    pub(super) number: u64,
}

/// One part of a split shared bucket, for one account or credential. It is a shared bucket of its
/// own, the same in every gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketPart {
    /// What the bucket is split by.
    pub per: Per,
    /// A number for the upstream's host, where one egress gate has many; otherwise zero.
    pub origin: u64,
    /// The account, action or credential of the part, as a hash; `None` for all without a part of
    /// their own.
    pub who: Option<u64>,
}

/// A gate's request for tokens of a shared bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The identity of the request, to match its answer.
    pub asked: AskId,
    /// The settings of the shared bucket.
    pub shared: Arc<SharedPolicy>,
    /// The part of the bucket, if it is split.
    pub part: Option<BucketPart>,
    /// The number of the gate as a member of the bucket: random, and new with each start.
    pub member: u64,
    /// The limits of the shared bucket, as this gate is configured.
    pub limits: SharedLimits,
    /// The tokens the gate wants.
    pub wish: Wish,
    /// The number of tokens received since the gate became a member, so that a store notices if it
    /// has lost data.
    pub total: u64,
    /// The number of the bucket's present life in the store, as far as the gate knows; zero if
    /// unknown. A new life begins when the store has lost the bucket.
    pub epoch: u64,
    /// The tokens held but not spendable yet.
    pub ahead: u32,
    /// True if the store did not answer some request since its last answer.
    pub away: bool,
    /// A pause of the upstream, to be reported to the other gates. A pause of length zero ends all
    /// pauses reported so far.
    pub pause: Option<PauseNotice>,
    /// The number of calls left in the upstream's quota, by its last responses. The store lowers
    /// the bucket's level to this number, and never raises the level.
    pub left: Option<u32>,
    /// True for the last request of a stopping gate.
    pub leave: bool,
    /// What the gate does without the store, for logs. It is not sent.
    pub fallback: Fallback,
}

/// A pause of a quota, as gates report it to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseNotice {
    /// The paused quota.
    pub quota: QuotaId,
    /// The time left of the pause.
    pub left: Duration,
}

/// The tokens a gate requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The tokens needed for waiting calls.
    pub need: u32,
    /// The tokens wanted in advance of calls, if the store has plenty.
    pub extra: u32,
    /// How long the newest waiting call can still wait.
    pub within: Duration,
}

/// What a gate does while the store does not answer, for logs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fallback {
    /// The gate's calls per second if no answer comes; zero if its calls wait.
    pub rate: f64,
    /// The number of calls sent during an outage of the store, since its last answer. The first
    /// request after the outage carries the sum over all of the gate's buckets; others carry zero.
    pub sent: u64,
}

/// The answer to an [`Ask`]. It comes from outside and may say anything.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreAnswer {
    /// The number of tokens granted.
    pub granted: u32,
    /// The nanoseconds until the first granted token is available, counted from the store's time of
    /// the answer; negative if it has been available for a while. If no token is granted, the same
    /// for the next token.
    pub first: i64,
    /// The time per token now in force, from the gate with the lowest rate.
    pub period: Duration,
    /// The tokens in the bucket before the grant; below zero if some are promised.
    pub level: f64,
    /// The number of the bucket's present life in the store. A new life begins when the store has
    /// lost the bucket.
    pub epoch: u64,
    /// The number of gates sharing the bucket.
    pub members: u32,
    /// The sum of the weights of all other gates with waiting calls.
    pub rivals: u32,
    /// The time left of a pause of the whole API. Zero if the pause is over or was ended early;
    /// `None` if there was none.
    pub pause: Option<Duration>,
    /// The pauses of other quotas.
    pub quotas: Vec<PauseNotice>,
}

/// Why a store gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFailure {
    /// The store cannot be reached, is too slow or is not ready.
    Unreachable,
    /// The store refuses the request, and will until a person changes something.
    Wrong,
}

// === impl AskId ===

impl AskId {
    /// Returns the bucket the request is for.
    pub(crate) fn bucket(self) -> BucketId {
        self.bucket
    }
}

// === impl Ask ===

impl Ask {
    /// Makes a first request for no token, to check a store without a gate.
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
    /// Returns the most tokens the answer may grant.
    #[must_use]
    pub const fn most(&self) -> u32 {
        self.need.saturating_add(self.extra)
    }
}

// === impl StoreAnswer ===

impl StoreAnswer {
    /// Returns the time until the token after the first `tokens` granted ones is available, counted
    /// from the store's time of the answer; zero if it is available already.
    pub(super) fn until(&self, tokens: u32) -> Duration {
        let period = i64::try_from(self.period.as_nanos()).unwrap_or(i64::MAX);
        let nanos = self.first.saturating_add(period.saturating_mul(i64::from(tokens)));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    /// Returns the tokens left after the grant.
    pub(super) fn rest(&self) -> f64 {
        self.level - f64::from(self.granted)
    }
}

// === impl SharedLimits ===

impl SharedLimits {
    /// Computes the numbers of a shared bucket from its settings.
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

    /// Returns the default lease: the time granted tokens are valid. It is taken from the burst, so
    /// it is a quarter of the time until a burst fills, or less if nothing of a small burst would
    /// be left.
    fn auto_lease(bucket: &BucketPolicy) -> Duration {
        let token = 1.0 / bucket.rate;
        let burst = f64::from(bucket.burst.get()) / bucket.rate;
        let seconds = (burst / 4.0).clamp(0.1, 2.0).max(token / 4.0);
        // A burst of one leaves nothing to take the lease from, and nothing to lend.
        let is_large = burst < token + seconds;
        let seconds = if is_large { seconds.min(SHORT) } else { seconds };
        Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST)
    }

    /// Returns the most calls all gates together can send at one moment (P13).
    #[must_use]
    pub fn bound(&self) -> f64 {
        self.burst + self.lease.as_secs_f64() * 1e6 / self.period
    }
}

/// Returns a number of microseconds as a duration.
#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, as is wanted")]
pub(super) fn micros(micros: f64) -> Duration {
    Duration::from_nanos((micros * 1e3) as u64)
}

/// The most paused quotas a store keeps for a bucket. Past this number, the pause with the earliest
/// end is dropped.
pub const MOST_PAUSES: usize = 64;
/// The longest time to promise tokens ahead. With a shorter time there are more requests; with a
/// longer one a gate of little demand waits longer.
const HORIZON: Duration = Duration::from_millis(200);
/// The longest default lease of granted tokens, in seconds, if the burst is very small. The store
/// can answer within it.
const SHORT: f64 = 0.25;
/// The longest default lease of granted tokens.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);
/// The slowest rate: quarters of a microsecond per token, some years in all.
const SLOWEST: f64 = 1e15;
