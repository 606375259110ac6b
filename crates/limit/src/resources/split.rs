//! The splitter of buckets, slots and pauses: each flow or credential has a part of its own, up to
//! a thousand of them, and all others share the rest. Memory must not grow with what clients make
//! up.

use std::collections::HashMap;
use std::time::Duration;

use crate::moment::Moment;

/// A part for each flow or credential, and one that the others share.
#[derive(Debug, Default)]
pub(crate) struct Split<T> {
    parts: HashMap<u64, T>,
    pub(crate) rest: T,
    /// The moment at which idle parts were last looked for.
    swept: Moment,
}

// === impl Split ===

impl<T: Default> Split<T> {
    /// Returns the part of a flow or credential, unless it has none of its own.
    #[inline]
    pub(crate) fn get(&self, who: u64) -> Option<&T> {
        self.parts.get(&who)
    }

    pub(crate) fn get_mut(&mut self, who: u64) -> Option<&mut T> {
        self.parts.get_mut(&who)
    }

    /// Returns the part of a flow or credential, or the rest if it has none of its own.
    pub(crate) fn own_or_rest(&self, who: u64) -> &T {
        self.parts.get(&who).unwrap_or(&self.rest)
    }

    pub(crate) fn own_or_rest_mut(&mut self, who: u64) -> &mut T {
        self.parts.get_mut(&who).unwrap_or(&mut self.rest)
    }

    /// Gives a flow or credential a part of its own if there is room for one, if need be instead of
    /// those that are not `kept`. Returns true if it has one now.
    pub(crate) fn open(&mut self, who: u64, now: Moment, mut kept: impl FnMut(&mut T) -> bool) -> bool {
        if self.parts.contains_key(&who) {
            return true;
        }
        // Looking for idle parts takes a look at each: too expensive for each call.
        if self.parts.len() >= MOST && now.since(self.swept) >= SWEEP_EVERY {
            self.swept = now;
            self.parts.retain(|_, part| kept(part));
        }
        let has_room = self.parts.len() < MOST;
        if has_room {
            self.parts.insert(who, T::default());
        }
        has_room
    }

    /// Returns the parts, by flow or credential.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u64, &T)> {
        self.parts.iter().map(|(who, part)| (*who, part))
    }

    /// Returns the rest and every part.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.rest).chain(self.parts.values())
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        std::iter::once(&mut self.rest).chain(self.parts.values_mut())
    }
}

/// The most flows or credentials that are told apart.
pub(crate) const MOST: usize = 1000;
/// The least time between two searches for idle parts.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
