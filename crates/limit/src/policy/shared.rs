//! The settings of shared buckets.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{BucketPolicy, Policy};

/// A shared bucket, by its place in `Policy::shared`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedId(pub u16);

/// A shared bucket: all gates with the same name in the same store share it.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedPolicy {
    /// Its name.
    pub name: Arc<str>,
    /// Its store; empty for the memory of this process.
    pub store: Arc<str>,
    /// The share of this gate in a shortage, beside the others' weights.
    pub weight: NonZeroU32,
    /// The validity of a token; `None` for a quarter of the burst's time.
    pub lease: Option<Duration>,
    /// The treatment of calls while the store does not answer.
    pub outage: Outage,
    /// The number of members to reckon with until the store's first answer.
    pub members: NonZeroU32,
    /// The longest pause from other members. The gate's own pauses are told to them. `None` if
    /// pauses are not shared.
    pub pauses: Option<Duration>,
}

words! {
    /// The treatment of calls while the store of a shared bucket is away.
    #[derive(Default)]
    pub enum Outage {
        /// Each member goes on at its part of the rate.
        #[default]
        Share = "share",
        /// Each member goes on at the whole rate.
        Full = "full",
        /// Calls wait.
        Stop = "stop",
    }
}

// === impl Policy ===

impl Policy {
    /// Returns how a bucket is shared, if it is.
    pub fn shared_by(&self, bucket: &BucketPolicy) -> Option<&Arc<SharedPolicy>> {
        self.shared.get(usize::from(bucket.shared?.0))
    }

    /// Returns each shared bucket for fresh calls with its settings, the gate's own last.
    pub fn shared_buckets(&self) -> impl Iterator<Item = (&BucketPolicy, &Arc<SharedPolicy>)> {
        let buckets = self.classes.iter().map(|class| &class.bucket).chain([&self.bucket]).flatten();
        buckets.filter_map(|bucket| Some((bucket, self.shared_by(bucket)?)))
    }
}

// === impl SharedPolicy ===

impl SharedPolicy {
    /// Makes a bucket with this name in the memory of the process and equal shares.
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

/// The longest pause where nothing is said.
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);
/// The members to reckon with where nothing is known.
const MEMBERS: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);
