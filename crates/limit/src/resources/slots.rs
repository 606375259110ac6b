//! Slots: counts the calls in flight of the gate or of one class, together or per flow or
//! credential.
//!
//! They are counted even where nothing limits them, so that a limit that comes with a reload knows
//! the number of calls in flight.

use super::{SlotShare, Split};
use crate::moment::Moment;
use crate::{GroupIndex, InFlight, Per};

/// The slots (places for calls in flight) of the gate or of one class.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    pub(crate) limit: Option<InFlight>,
    /// The number of calls in flight.
    pub(crate) used: u32,
    split: Split<SlotSet>,
    /// The number of times a reload changed what the slots are split by (`per`).
    era: u32,
}

/// The calls in flight of one flow or credential.
#[derive(Debug, Default)]
struct SlotSet {
    used: u32,
    /// The queue groups with calls for a slot of this set.
    users: Vec<GroupIndex>,
}

// === impl Slots ===

impl Slots {
    pub(crate) fn new(limit: Option<InFlight>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Returns where a call of this flow and credential is counted.
    #[inline]
    pub(crate) fn share(&mut self, flow: u64, credential: u64, now: Moment) -> SlotShare {
        match self.limit {
            Some(InFlight { per, .. }) if per != Per::Gate => {
                self.share_of_many(if per == Per::Flow { flow } else { credential }, now)
            }
            Some(_) | None => SlotShare::Whole,
        }
    }

    #[inline(never)]
    fn share_of_many(&mut self, who: u64, now: Moment) -> SlotShare {
        let era = self.era;
        let kept = |set: &mut SlotSet| set.used > 0 || !set.users.is_empty();
        if self.split.open(who, now, kept) { SlotShare::Split { who, era } } else { SlotShare::Rest { era } }
    }

    /// Returns how many more calls this count allows.
    #[inline]
    pub(crate) fn free(&self, share: SlotShare) -> u32 {
        let Some(limit) = self.limit else { return u32::MAX };
        let used = match share {
            SlotShare::None => return u32::MAX,
            SlotShare::Whole => self.used,
            SlotShare::Split { who, .. } => self.split.get(who).map_or(0, |set| set.used),
            SlotShare::Rest { .. } => self.split.rest.used,
        };
        limit.max.get().saturating_sub(used)
    }

    #[inline]
    pub(crate) fn take(&mut self, share: SlotShare) {
        if share == SlotShare::None {
            return;
        }
        self.used = self.used.saturating_add(1);
        if let Some(set) = self.set(share) {
            set.used = set.used.saturating_add(1);
        }
    }

    /// Counts a call as finished, and adds the queue groups waiting for its slot to `unblocked`.
    #[inline]
    pub(crate) fn give_back(&mut self, share: SlotShare, unblocked: &mut Vec<GroupIndex>) {
        if share == SlotShare::None {
            return;
        }
        debug_assert!(self.used > 0, "a slot was given back twice");
        self.used = self.used.saturating_sub(1);
        if let Some(set) = self.set(share) {
            set.used = set.used.saturating_sub(1);
            unblocked.extend_from_slice(&set.users);
        }
    }

    /// Returns the queue groups with calls in this count; `None` if calls are not counted by flow
    /// or credential.
    pub(crate) fn users(&mut self, share: SlotShare) -> Option<&mut Vec<GroupIndex>> {
        self.set(share).map(|set| &mut set.users)
    }

    /// Applies a new limit. Calls in flight stay counted as a whole, and by flow or credential only
    /// if they are still split that way.
    pub(crate) fn reconfigure(&mut self, limit: Option<InFlight>) {
        if limit.map(|limit| limit.per) != self.limit.map(|limit| limit.per) {
            self.split = Split::default();
            self.era = self.era.wrapping_add(1);
        }
        self.limit = limit;
        self.split.all_mut().for_each(|set| set.users.clear());
    }

    #[inline]
    fn set(&mut self, share: SlotShare) -> Option<&mut SlotSet> {
        match share {
            SlotShare::Split { who, era } if era == self.era => self.split.get_mut(who),
            SlotShare::Rest { era } if era == self.era => Some(&mut self.split.rest),
            SlotShare::None | SlotShare::Whole | SlotShare::Split { .. } | SlotShare::Rest { .. } => None,
        }
    }
}
