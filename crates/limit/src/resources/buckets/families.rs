//! Families of buckets: all buckets of one owner, be it one or one per flow or credential.

use std::sync::Arc;

use super::Owner;
use crate::moment::Moment;
use crate::resources::{Bucket, BucketId, Split, Start};
use crate::{BucketPolicy, PerClass, SharedPolicy};

/// The families of all owners.
#[derive(Debug, Default)]
pub(super) struct Families {
    pub(super) gate: Option<Family>,
    pub(super) retries: Option<Family>,
    pub(super) classes: PerClass<Option<Family>>,
}

/// The buckets of one owner, with their common policy.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) policy: BucketPolicy,
    pub(super) start: Start,
    /// Set if other gates share the buckets.
    pub(super) shared: Option<Arc<SharedPolicy>>,
    /// The buckets used so far, per flow or credential. If they are not split, only the common one
    /// is used.
    pub(super) split: Split<Option<BucketId>>,
}

// === impl Families ===

impl Families {
    #[inline]
    pub(super) fn get(&self, owner: Owner) -> Option<&Family> {
        match owner {
            Owner::Gate => self.gate.as_ref(),
            Owner::Retries => self.retries.as_ref(),
            Owner::Class(class) => self.classes.get(class)?.as_ref(),
        }
    }

    pub(super) fn get_mut(&mut self, owner: Owner) -> Option<&mut Family> {
        match owner {
            Owner::Gate => self.gate.as_mut(),
            Owner::Retries => self.retries.as_mut(),
            Owner::Class(class) => self.classes.get_mut(class)?.as_mut(),
        }
    }
}

// === impl Family ===

impl Family {
    pub(super) fn new(policy: BucketPolicy, start: Start, shared: Option<Arc<SharedPolicy>>) -> Self {
        Self { policy, start, shared, split: Split::default() }
    }

    /// Returns true if the buckets need not be replaced under a new policy.
    pub(super) fn is_like(&self, policy: &BucketPolicy, shared: Option<&Arc<SharedPolicy>>) -> bool {
        self.policy.per == policy.per && self.shared.is_some() == shared.is_some()
    }

    /// Returns the starting level of buckets not used yet, after a change of policy: the whole
    /// tokens they would have had under the old policy.
    pub(super) fn start_after(&self, policy: &BucketPolicy, now: Moment) -> Start {
        let tokens = Bucket::new(self.policy, self.start).whole_tokens(now);
        Start::Level(tokens.min(policy.burst.get()), now)
    }

    /// Returns all buckets of the family, the common one first.
    pub(super) fn ids(&self) -> impl Iterator<Item = BucketId> {
        self.split.all().filter_map(|id| *id)
    }
}
