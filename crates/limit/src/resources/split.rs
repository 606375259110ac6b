//! Buckets, slots and pauses by flow or credential: up to a thousand have a part of their own, and
//! all others share the rest. Memory must not grow with what clients make up.

use std::collections::HashMap;
use std::time::Duration;

use crate::moment::Moment;

/// A part for each flow or credential, and a rest for the others.
#[derive(Debug, Default)]
pub(crate) struct Split<T> {
    parts: HashMap<u64, T>,
    pub(crate) rest: T,
    /// The moment of the last search for idle parts.
    swept: Moment,
}

// === impl Split ===

impl<T: Default> Split<T> {
    /// Returns the part of a flow or credential, if it has one of its own.
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

    /// Gives a flow or credential a part of its own if there is room, if need be instead of parts
    /// that are not `kept`. Returns true if it has one now.
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

/// The most flows or credentials with a part of their own.
pub(crate) const MOST: usize = 1000;
/// The least time between two searches for idle parts.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
