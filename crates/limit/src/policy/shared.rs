//! Shared buckets: the settings of a bucket that other gates use too.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::{BucketPolicy, Policy};

/// A shared bucket, by its place in `Policy::shared`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedId(pub u16);

/// A bucket that other gates use too: all that use the same name in the same store share it.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedPolicy {
    /// Its name.
    pub name: Arc<str>,
    /// The store that keeps it; empty for the memory of this process.
    pub store: Arc<str>,
    /// The share of a shortage that this gate gets, beside the others' weights.
    pub weight: NonZeroU32,
    /// The time for which a token may be spent; `None` for a quarter of the time in which the burst
    /// flows.
    pub lease: Option<Duration>,
    /// The treatment of calls while the store does not answer.
    pub outage: Outage,
    /// The number of members to reckon with while the store has not said how many there are.
    pub members: NonZeroU32,
    /// The longest pause that is accepted from other members. Its own pauses are told to them.
    /// `None` if pauses are not shared.
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

    /// Returns each bucket for fresh calls that is shared, the gate's own last, and how it is.
    pub fn shared_buckets(&self) -> impl Iterator<Item = (&BucketPolicy, &Arc<SharedPolicy>)> {
        let buckets = self.classes.iter().map(|class| &class.bucket).chain([&self.bucket]).flatten();
        buckets.filter_map(|bucket| Some((bucket, self.shared_by(bucket)?)))
    }
}

// === impl SharedPolicy ===

impl SharedPolicy {
    /// A bucket of this name in the memory of the process, of which every gate gets the same share.
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
