//! The settings of buckets shared by several gates.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{BucketPolicy, Policy};

/// A shared bucket, by its index in `Policy::shared`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedId(pub u16);

/// A shared bucket: all gates with the same name in the same store share it.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedPolicy {
    /// The name, the same at all its gates.
    pub name: Arc<str>,
    /// The name of the store keeping the bucket; empty for the memory of this process.
    pub store: Arc<str>,
    /// The weight of this gate when tokens are short; tokens are divided in proportion to weights.
    pub weight: NonZeroU32,
    /// How long a granted token is valid; `None` for a quarter of the time until the burst
    /// fills.
    pub lease: Option<Duration>,
    /// What calls do while the store does not answer.
    pub outage: Outage,
    /// The number of gates to assume until the store's first answer.
    pub members: NonZeroU32,
    /// The longest pause to accept from other gates; this gate reports its own pauses to them.
    /// `None` if the gates do not share pauses.
    pub pauses: Option<Duration>,
}

words! {
    /// What calls do while the store of a shared bucket does not answer.
    #[derive(Default)]
    pub enum Outage {
        /// Each gate continues at its part of the rate.
        #[default]
        Share = "share",
        /// Each gate continues at the whole rate.
        Full = "full",
        /// Calls wait until the store answers again.
        Stop = "stop",
    }
}

// === impl Policy ===

impl Policy {
    /// Returns the settings of a bucket's sharing, if it is shared.
    pub fn shared_by(&self, bucket: &BucketPolicy) -> Option<&Arc<SharedPolicy>> {
        self.shared.get(usize::from(bucket.shared?.0))
    }

    /// Returns each shared bucket, except those for retries, with its settings. The gate's own is
    /// last.
    pub fn shared_buckets(&self) -> impl Iterator<Item = (&BucketPolicy, &Arc<SharedPolicy>)> {
        let buckets = self.classes.iter().map(|class| &class.bucket).chain([&self.bucket]).flatten();
        buckets.filter_map(|bucket| Some((bucket, self.shared_by(bucket)?)))
    }

    /// Returns the limits with no bucket shared, for a limiter that only counts: it must not use up
    /// other gates' tokens.
    #[must_use]
    pub fn alone(&self) -> Self {
        let mut policy = Self { shared: Vec::new(), ..self.clone() };
        let of_classes = policy.classes.iter_mut().map(|class| &mut class.bucket);
        of_classes.chain([&mut policy.bucket]).flatten().for_each(|bucket| bucket.shared = None);
        policy
    }
}

// === impl SharedPolicy ===

impl SharedPolicy {
    /// Makes the settings of a bucket in the memory of the process, with equal weights.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            store: Arc::default(),
            weight: NonZeroU32::MIN,
            lease: None,
            outage: Outage::Share,
            members: MEMBERS,
            pauses: Some(LONGEST_PAUSE),
        }
    }
}

/// The default of the longest pause to accept from other gates.
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);
/// The default number of gates to assume until the store answers.
const MEMBERS: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
