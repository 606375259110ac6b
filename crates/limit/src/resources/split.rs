//! Buckets, slots and pauses per flow or credential: up to a thousand have one of their own, and
//! all others share the rest. Memory must not grow with what clients make up.

use std::collections::HashMap;
use std::time::Duration;

use crate::moment::Moment;

/// One value for each flow or credential, and a common one for those beyond the limit on their
/// number.
#[derive(Debug, Default)]
pub(crate) struct Split<T> {
    parts: HashMap<u64, T>,
    pub(crate) rest: T,
    /// The moment of the last search for values that are not in use.
    swept: Moment,
}

// === impl Split ===

impl<T: Default> Split<T> {
    /// Returns the value of a flow or credential, if it has one of its own.
    #[inline]
    pub(crate) fn get(&self, who: u64) -> Option<&T> {
        self.parts.get(&who)
    }

    pub(crate) fn get_mut(&mut self, who: u64) -> Option<&mut T> {
        self.parts.get_mut(&who)
    }

    /// Returns the value of a flow or credential, or the common one if it has none of its own.
    pub(crate) fn own_or_rest(&self, who: u64) -> &T {
        self.parts.get(&who).unwrap_or(&self.rest)
    }

    pub(crate) fn own_or_rest_mut(&mut self, who: u64) -> &mut T {
        self.parts.get_mut(&who).unwrap_or(&mut self.rest)
    }

    /// Gives a flow or credential a value of its own, if there is room. At the limit, values for
    /// which `kept` returns false are dropped first. Returns true if the flow or credential has its
    /// own value now.
    pub(crate) fn open(&mut self, who: u64, now: Moment, mut kept: impl FnMut(&mut T) -> bool) -> bool {
        if self.parts.contains_key(&who) {
            return true;
        }
        // A search looks at each part: too expensive for each call.
        if self.parts.len() >= MOST && now - self.swept >= SWEEP_EVERY {
            self.swept = now;
            self.parts.retain(|_, part| kept(part));
        }
        let has_room = self.parts.len() < MOST;
        if has_room {
            self.parts.insert(who, T::default());
        }
        has_room
    }

    /// Returns each flow or credential with its value.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u64, &T)> {
        self.parts.iter().map(|(who, part)| (*who, part))
    }

    /// Returns the common value and all others.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.rest).chain(self.parts.values())
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        std::iter::once(&mut self.rest).chain(self.parts.values_mut())
    }
}

/// The most flows or credentials with a value of their own.
pub(crate) const MOST: usize = 1000;
/// The least time between two searches for values that are not in use.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
