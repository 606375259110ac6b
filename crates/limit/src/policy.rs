//! The limits of a gate, as checked numbers.
//!
//! The crate `config` checks a file and builds a [`Policy`]. Nothing here needs checking again, so
//! `Limiter::reconfigure` cannot fail.

use std::iter;
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Duration;

pub use self::per::Per;
pub use self::shared::{Outage, SharedId, SharedPolicy};
use crate::sketch::PerKey;

mod per;
mod shared;

/// A class, by its index in `Policy::classes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u16);

/// One value for each class of a policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerClass<T>(Vec<T>);

/// For each class of a new policy, the same class in the old one, if there was one.
pub(crate) type Origins = PerClass<Option<ClassId>>;

/// All limits of one gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The bucket of the whole gate: every call that is not exempt takes a token of it.
    pub bucket: Option<BucketPolicy>,
    /// The bucket for retries only. A retry is a call testing a failing key.
    pub retry_bucket: Option<BucketPolicy>,
    /// The limits on waiting calls.
    pub queue: QueuePolicy,
    /// The limit on calls in flight at the gate.
    pub in_flight: Option<InFlight>,
    /// The most failing keys remembered. With more, the key with the shortest wait left is dropped.
    pub max_keys: usize,
    /// True if at most one write of a key may be queued or in flight, whether the key fails or not.
    pub one_at_a_time: bool,
    /// True if a retry is refused only after the usual duration of failed calls, but after its
    /// `hold` at most. So a controller's queue, with delays doubled at each failure, tries its
    /// objects at the same times as without the gate.
    pub slow_refusals: bool,
    /// The classes, by [`ClassId`]; never empty.
    pub classes: Vec<ClassPolicy>,
    /// The shared buckets, by [`SharedId`].
    pub shared: Vec<Arc<SharedPolicy>>,
    /// The limit on tokens given back for calls the upstream did not count; `None` for no
    /// limit.
    pub uncounted: Option<BucketPolicy>,
}

/// The limits of a class, on top of the gate's. By default there are none, and no failure is
/// remembered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassPolicy {
    /// The class's name in config, metrics and messages.
    pub name: Arc<str>,
    /// The priority of the class.
    pub lane: Lane,
    /// The class's own bucket, on top of the gate's.
    pub bucket: Option<BucketPolicy>,
    /// The enclosing class, if there is one. Calls take tokens from its bucket too. Classes never
    /// form a cycle.
    pub within: Option<ClassId>,
    /// True if calls of the class take no token of the gate's bucket.
    pub own_bucket_only: bool,
    /// How long calls of failing keys wait.
    pub backoff: Backoff,
    /// The class's own limit on calls in flight, on top of the gate's.
    pub in_flight: Option<InFlight>,
    /// True if opening a watch or another long-running call costs tokens.
    pub meter_long_running: bool,
    /// The bounds of the cost of a call in tokens.
    pub cost: Cost,
    /// The allowed rates of calls to one object.
    pub per_key: Option<PerKey>,
    /// True for a class in shadow: the driver sends its calls at once, and its limits only count.
    pub shadow: bool,
}

/// The bounds of the cost of a class's calls, in tokens of each bucket with `counts_costs`: at
/// least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The tokens a call costs at least.
    pub least: u16,
    /// The tokens a call costs at most.
    pub most: u16,
}

words! {
    /// The priority of a class.
    #[derive(Default)]
    pub enum Lane {
        /// Calls of this priority never wait and use no tokens (P7).
        Exempt = "exempt",
        /// Calls of this priority are sent before those of `Normal`.
        High = "high",
        /// The default priority.
        #[default]
        Normal = "normal",
        /// Calls of this priority are sent after those of `Normal`.
        Low = "low",
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketPolicy {
    /// Tokens per second; finite, above zero, at most 10^9.
    pub rate: f64,
    /// The most tokens the bucket holds.
    pub burst: NonZeroU32,
    /// Whether there is one bucket for all calls, or one per credential or another part.
    pub per: Per,
    /// True if the bucket starts empty, so that a restart gives no free burst.
    pub starts_empty: bool,
    /// The bounds of the rate, if it slows down when the upstream throttles.
    pub adapt: Option<Adapt>,
    /// The most tokens one call may cost; at least one and at most the burst. Every call waits
    /// until so many are there, whatever it costs itself, so that cheap calls do not pass an
    /// expensive one.
    pub largest_cost: NonZeroU16,
    /// False if the bucket takes one token from each call, whatever the call costs elsewhere.
    pub counts_costs: bool,
    /// True if the retry bucket lets more through while its calls succeed: a success gives its
    /// token back and more, so that `rate` limits the failing calls alone.
    pub opens: bool,
    /// The shared bucket behind this one, if other gates share it.
    pub shared: Option<SharedId>,
}

/// The bounds of an adaptive rate, slowed down when the upstream throttles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapt {
    /// The lowest rate, in tokens per second; finite, above zero, at most the bucket's rate.
    pub floor: f64,
}

/// A limit on calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The most calls in flight.
    pub max: NonZeroU32,
    /// Whether there is one limit for all calls, or one per credential or another part.
    pub per: Per,
}

/// How long calls of failing keys wait.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Backoff {
    /// The delay after the n-th consecutive failure.
    pub strategy: Strategy,
    /// The longest wait of such a call for its key. After that the call is refused, so that its
    /// client can do something else.
    pub hold: Duration,
    /// The time until a key is forgotten, after its last failure or its last refusal for want of a
    /// retry token.
    pub forget_after: Duration,
}

/// The delay after the n-th consecutive failure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Strategy {
    /// No delay: failures are not remembered.
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
        /// The delay after all later failures.
        slow: Duration,
        /// The number of failures with the `fast` delay.
        fast_attempts: u32,
    },
}

/// The limits on waiting calls. By default no call waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    /// The longest wait of a call of a healthy key.
    pub max_wait: Duration,
    /// The most calls allowed to wait at a time.
    pub max_waiting: usize,
    /// The most bytes of waiting calls, counting bodies and large heads.
    pub max_waiting_bytes: usize,
    /// How the backoff of a key and its wait for a retry token combine.
    pub combine: Combine,
}

words! {
    /// How the backoff of a key and its wait for a retry token combine.
    #[derive(Default)]
    pub enum Combine {
        /// The backoff comes first, then a token: the retry bucket's bound always holds.
        #[default]
        Sequential = "sequential",
        /// The token is reserved on arrival. The call is sent when its backoff is over and its
        /// token has come, as in client-go's `MaxOfRateLimiter`.
        MaxOf = "max_of",
    }
}

// === impl Policy ===

impl Default for Policy {
    /// Returns a policy with one class, `default`, and no limits; no call waits.
    fn default() -> Self {
        Self {
            bucket: None,
            retry_bucket: None,
            queue: QueuePolicy::default(),
            in_flight: None,
            max_keys: 1000,
            one_at_a_time: false,
            slow_refusals: false,
            classes: vec![ClassPolicy { name: "default".into(), ..ClassPolicy::default() }],
            shared: Vec::new(),
            uncounted: None,
        }
    }
}

impl Policy {
    /// Returns true if some class refuses calls of an object called too often.
    pub(crate) fn enforces_per_key(&self) -> bool {
        self.classes.iter().any(|class| class.per_key.is_some_and(|per_key| per_key.enforce))
    }

    /// Returns the limits of a class.
    #[expect(clippy::indexing_slicing, reason = "an id comes from the policy that it is used with")]
    #[inline]
    pub(super) fn class(&self, id: ClassId) -> &ClassPolicy {
        &self.classes[usize::from(id.0)]
    }

    /// Returns a class, then the class it lies within, and so on.
    pub fn outward<'p>(&'p self, class: &'p ClassPolicy) -> impl Iterator<Item = &'p ClassPolicy> {
        let outer = class.within.into_iter().flat_map(|outer| self.within(outer));
        iter::once(class).chain(outer.map(|id| self.class(id)))
    }

    /// Makes one value for each class.
    pub(super) fn per_class<T>(&self, make: impl FnMut(&ClassPolicy) -> T) -> PerClass<T> {
        PerClass(self.classes.iter().map(make).collect())
    }

    /// Returns the class for calls of an unknown class: `default`, or the last.
    pub(super) fn default_class(&self) -> ClassId {
        let named = self.classes.iter().position(|class| &*class.name == "default" && class.lane != Lane::Exempt);
        ClassId::at(named.unwrap_or_else(|| self.classes.len().saturating_sub(1)))
    }

    /// Returns a class, then the class it lies within, and so on. There is no cycle; the loop is
    /// bounded all the same.
    #[inline]
    pub(crate) fn within(&self, class: ClassId) -> impl Iterator<Item = ClassId> {
        let outer = |id: &ClassId| self.classes.get(usize::from(id.0))?.within;
        iter::successors(Some(class), outer).take(self.classes.len() + 1)
    }

    /// Returns true if any bucket or slot of a class is split by an identity, so that the class's
    /// queues must be split too.
    pub(crate) fn splits_by_credential(&self, class: ClassId) -> bool {
        let is_split = |per: Option<Per>| per.is_some_and(Per::is_by_identity);
        let bucket = |bucket: Option<BucketPolicy>| is_split(bucket.map(|bucket| bucket.per));
        let slots = |slots: Option<InFlight>| is_split(slots.map(|slots| slots.per));
        bucket(self.bucket)
            || bucket(self.retry_bucket)
            || slots(self.in_flight)
            || slots(self.class(class).in_flight)
            || self.within(class).any(|class| bucket(self.class(class).bucket))
    }
}

// === impl Cost ===

impl Cost {
    /// Returns bounds giving every call the same cost.
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
    /// Makes one bucket for all calls of the gate, full at the start and with a steady rate.
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
    /// Makes one limit for all calls of the gate.
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

    /// Returns the first class with a value accepted by `is_meant`.
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
    /// Moves each value to the new index of its class, after a reload; new classes get the default.
    /// Returns the values of removed classes.
    pub(super) fn carry_over(&mut self, origins: &Origins) -> Vec<T> {
        let mut old: Vec<_> = std::mem::take(&mut self.0).into_iter().map(Some).collect();
        let mut kept = |origin: &Option<ClassId>| old.get_mut(usize::from(origin.as_ref()?.0))?.take();
        self.0 = origins.0.iter().map(|origin| kept(origin).unwrap_or_default()).collect();
        old.into_iter().flatten().collect()
    }
}
