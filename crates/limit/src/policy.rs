//! The limits that the limiter enforces: numbers that cannot be wrong.
//!
//! `config` checks a file and builds one of these. Nothing here needs checking again, so
//! `Limiter::reconfigure` cannot fail.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Duration;

pub use self::per::Per;
pub use self::shared::{Outage, SharedId, SharedPolicy};
use crate::outcome::Scope;
use crate::sketch::PerKey;

mod per;
mod per_key;
mod shared;

/// A class, by its index in `Policy::classes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u16);

/// One value for each class of a policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerClass<T>(Vec<T>);

/// For each class of a new policy, the class of the old one that it was.
pub(crate) type Origins = PerClass<Option<ClassId>>;

/// All limits of one gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The manager-level bucket: charged for every call that is not exempt.
    pub bucket: Option<BucketPolicy>,
    /// The bucket charged only for calls whose key is failing.
    pub retry_bucket: Option<BucketPolicy>,
    /// The limits on waiting calls.
    pub queue: QueuePolicy,
    /// The slots of the gate.
    pub in_flight: Option<InFlight>,
    /// The most keys remembered; past it the key with least left to wait is dropped.
    pub max_keys: usize,
    /// The scope of pauses that the upstream asks for; queues are split by credential if that is.
    pub pause_scope: Scope,
    /// True if at most one write of a key may be past the key stage, failing or not.
    pub one_at_a_time: bool,
    /// The classes, by [`ClassId`]; never empty.
    pub classes: Vec<ClassPolicy>,
    /// The buckets that other gates use too, by [`SharedId`].
    pub shared: Vec<Arc<SharedPolicy>>,
    /// The tokens that may come back of calls that the upstream did not count; `None` for none.
    pub uncounted: Option<BucketPolicy>,
}

/// The limits that a class adds to the gate's: none by default, and no failure is remembered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassPolicy {
    /// Its name in config, metrics and messages.
    pub name: Arc<str>,
    /// Its rank.
    pub lane: Lane,
    /// Its own bucket, on top of the gate's.
    pub bucket: Option<BucketPolicy>,
    /// Another class whose bucket is charged too, and those that it is within. Never a cycle.
    pub within: Option<ClassId>,
    /// True if the gate's bucket is not charged.
    pub own_bucket_only: bool,
    /// The wait of calls whose key is failing.
    pub backoff: Backoff,
    /// Its own slots, on top of the gate's.
    pub in_flight: Option<InFlight>,
    /// True if opening a long-running call costs tokens.
    pub meter_long_running: bool,
    /// The tokens that a call of the class costs.
    pub cost: Cost,
    /// The rate at which one object may be called.
    pub per_key: Option<PerKey>,
}

/// The tokens that a call of a class takes from each bucket that counts them: at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The cost of the cheapest call.
    pub least: u16,
    /// The cost of the dearest call. A call that would cost more costs this.
    pub most: u16,
}

words! {
    /// The rank of a class.
    #[derive(Default)]
    pub enum Lane {
        /// Never waits and never spends (P7).
        Exempt = "exempt",
        /// Before `Normal`.
        High = "high",
        /// The rest.
        #[default]
        Normal = "normal",
        /// After `Normal`.
        Low = "low",
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketPolicy {
    /// Tokens per second; finite, above zero, at most 10^9.
    pub rate: f64,
    /// The most tokens it holds.
    pub burst: NonZeroU32,
    /// The unit that it is split by.
    pub per: Per,
    /// True if it starts empty: no free burst after a restart.
    pub starts_empty: bool,
    /// The bounds within which its rate gives way to an upstream that throttles, if it does.
    pub adapt: Option<Adapt>,
    /// The most tokens that one call takes; at least one and at most the burst. A call leaves when
    /// as many are there, whatever it costs itself, so that no call is passed because it is dear.
    pub largest_cost: NonZeroU16,
    /// False if it takes one token from each call, whatever the call costs elsewhere.
    pub counts_costs: bool,
    /// True if it opens while the calls that it meters succeed: a success gives its token back and
    /// one more, so that `rate` is what failing calls have. For the retry bucket.
    pub opens: bool,
    /// Set if other gates use it too.
    pub shared: Option<SharedId>,
}

/// The bounds within which a rate gives way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapt {
    /// The least tokens per second; finite, above zero, at most the bucket's rate.
    pub floor: f64,
}

/// Slots: a limit on calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The most calls in flight.
    pub max: NonZeroU32,
    /// The unit that they are split by.
    pub per: Per,
}

/// The wait of calls whose key is failing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Backoff {
    /// The delay after the n-th consecutive failure.
    pub strategy: Strategy,
    /// The longest time the gate itself holds such a call before it refuses it.
    pub hold: Duration,
    /// The time at which a key is forgotten, after its last failure or the last time it was refused
    /// for want of a retry token.
    pub forget_after: Duration,
}

/// The delay after the n-th consecutive failure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Strategy {
    /// Failures are not remembered.
    #[default]
    Off,
    /// `min(base * 2^(n-1), max)`, plus up to `jitter` of it at random (client-go
    /// `ItemExponentialFailureRateLimiter`).
    Exponential {
        /// The delay after the first failure.
        base: Duration,
        /// The longest delay.
        max: Duration,
        /// The fraction of the delay added at random; 0 for none.
        jitter: f64,
    },
    /// `fast` for the first `fast_attempts` failures, then `slow` (client-go
    /// `ItemFastSlowRateLimiter`).
    FastSlow {
        /// The delay after the first failures.
        fast: Duration,
        /// The delay from then on.
        slow: Duration,
        /// The number of failures that are fast.
        fast_attempts: u32,
    },
}

/// The limits on waiting calls. By default no call waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    /// The longest wait of a call whose key is healthy.
    pub max_wait: Duration,
    /// The most calls that wait.
    pub max_waiting: usize,
    /// The most bytes of bodies and of large heads held while their calls wait.
    pub max_waiting_bytes: usize,
    /// The way in which backoff and the retry bucket are joined.
    pub combine: Combine,
}

words! {
    /// The way in which backoff and the retry bucket are joined.
    #[derive(Default)]
    pub enum Combine {
        /// The backoff comes first, then a token: the retry bucket's bound always holds.
        #[default]
        Sequential = "sequential",
        /// The token is reserved on arrival and the call leaves at the later of the two, as in
        /// client-go's `MaxOfRateLimiter`.
        MaxOf = "max_of",
    }
}

// === impl Policy ===

impl Default for Policy {
    /// One class, `default`; nothing is limited, and no call waits.
    fn default() -> Self {
        Self {
            bucket: None,
            retry_bucket: None,
            queue: QueuePolicy::default(),
            in_flight: None,
            max_keys: 1000,
            pause_scope: Scope::Key,
            one_at_a_time: false,
            classes: vec![ClassPolicy { name: "default".into(), ..ClassPolicy::default() }],
            shared: Vec::new(),
            uncounted: None,
        }
    }
}

impl Policy {
    /// Returns the limits of a class.
    #[expect(clippy::indexing_slicing, reason = "an id comes from the policy that it is used with")]
    #[inline]
    pub(super) fn class(&self, id: ClassId) -> &ClassPolicy {
        &self.classes[usize::from(id.0)]
    }

    /// Makes one value for each class.
    pub(super) fn per_class<T>(&self, make: impl FnMut(&ClassPolicy) -> T) -> PerClass<T> {
        PerClass(self.classes.iter().map(make).collect())
    }

    /// Returns the class in which a call is whose own does not exist: the one of that name, or the
    /// last.
    pub(super) fn default_class(&self) -> ClassId {
        let named = self.classes.iter().position(|class| &*class.name == "default" && class.lane != Lane::Exempt);
        ClassId::at(named.unwrap_or_else(|| self.classes.len().saturating_sub(1)))
    }

    /// True if any bucket, slot or pause that applies to a class is split by credential, account or
    /// action, so that its queues must be split too.
    pub(crate) fn splits_by_credential(&self, class: ClassId) -> bool {
        let is_split = |per: Option<Per>| per.is_some_and(Per::is_by_identity);
        let bucket = |bucket: &Option<BucketPolicy>| is_split(bucket.map(|bucket| bucket.per));
        let slots = |slots: &Option<InFlight>| is_split(slots.map(|slots| slots.per));
        let get = |id: ClassId| self.classes.get(usize::from(id.0));
        let mut within = std::iter::successors(get(class), |class| get(class.within?)).take(self.classes.len());
        self.pause_scope == Scope::Credential
            || bucket(&self.bucket)
            || bucket(&self.retry_bucket)
            || slots(&self.in_flight)
            || get(class).is_some_and(|class| slots(&class.in_flight))
            || within.any(|class| bucket(&class.bucket))
    }
}

// === impl Cost ===

impl Cost {
    /// Returns the same cost for every call.
    pub const fn fixed(tokens: u16) -> Self {
        Self { least: tokens, most: tokens }
    }

    /// Returns a call's cost within these bounds.
    pub fn of(self, tokens: u16) -> u16 {
        tokens.clamp(self.least, self.most.max(self.least))
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::fixed(1)
    }
}

// === impl BucketPolicy ===

impl BucketPolicy {
    /// One bucket for the gate, which starts full and whose rate never gives way.
    pub const fn new(rate: f64, burst: NonZeroU32) -> Self {
        Self {
            rate,
            burst,
            per: Per::Gate,
            starts_empty: false,
            adapt: None,
            largest_cost: NonZeroU16::MIN,
            counts_costs: true,
            opens: false,
            shared: None,
        }
    }
}

// === impl InFlight ===

impl InFlight {
    /// One set of slots for the gate.
    pub const fn new(max: NonZeroU32) -> Self {
        Self { max, per: Per::Gate }
    }
}

// === impl ClassId ===

impl ClassId {
    pub(crate) fn at(index: usize) -> Self {
        Self(u16::try_from(index).unwrap_or(u16::MAX))
    }
}

// === impl PerClass ===

impl<T> PerClass<T> {
    /// Returns the value of a class.
    #[expect(clippy::indexing_slicing, reason = "an id comes from the policy that made the values")]
    #[inline]
    pub(super) fn of(&self, class: ClassId) -> &T {
        &self.0[usize::from(class.0)]
    }

    #[expect(clippy::indexing_slicing, reason = "an id comes from the policy that made the values")]
    #[inline]
    pub(super) fn of_mut(&mut self, class: ClassId) -> &mut T {
        &mut self.0[usize::from(class.0)]
    }

    pub(super) fn get(&self, class: ClassId) -> Option<&T> {
        self.0.get(usize::from(class.0))
    }

    pub(super) fn get_mut(&mut self, class: ClassId) -> Option<&mut T> {
        self.0.get_mut(usize::from(class.0))
    }

    /// Returns the first class whose value is like this.
    pub(super) fn find(&self, is_meant: impl FnMut(&T) -> bool) -> Option<ClassId> {
        self.0.iter().position(is_meant).map(ClassId::at)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ClassId, &T)> {
        (0..).map(ClassId).zip(&self.0)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }

    pub(super) fn map<U>(&self, make: impl FnMut(&T) -> U) -> PerClass<U> {
        PerClass(self.0.iter().map(make).collect())
    }
}

impl<T: Default> PerClass<T> {
    /// Moves each value to the class that its own has become, and gives new classes the default.
    /// Returns the values of classes that are gone.
    pub(super) fn carry_over(&mut self, origins: &Origins) -> Vec<T> {
        let mut old: Vec<_> = std::mem::take(&mut self.0).into_iter().map(Some).collect();
        let mut kept = |origin: &Option<ClassId>| old.get_mut(usize::from(origin.as_ref()?.0))?.take();
        self.0 = origins.0.iter().map(|origin| kept(origin).unwrap_or_default()).collect();
        old.into_iter().flatten().collect()
    }
}
