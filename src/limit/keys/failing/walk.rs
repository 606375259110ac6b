//! Looks at a few keys: nothing in here goes through all of them.

use super::{Failing, Keys};
use crate::{api::Key, limit::refusal::KeyState, moment::Moment};

// === impl Keys ===

impl Keys {
    /// One failing key with its name.
    #[must_use]
    pub fn find(&self, key: &Key, now: Moment) -> Option<(String, KeyState)> {
        let facets = self.objects.get(&key.object)?;
        let failing = facets.find(key.facet).filter(|failing| failing.forget_at > now)?;
        Some((failing.name.to_string(), failing.state))
    }

    /// Reads the failing keys of an object.
    pub(in crate::limit) fn each(&self, object: u64, mut read: impl FnMut(&Failing)) {
        if let Some(facets) = self.objects.get(&object) {
            facets.iter().for_each(&mut read);
        }
    }
}
