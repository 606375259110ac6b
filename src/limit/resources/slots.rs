//! Slots: the calls in flight of the gate or of one class, as a whole or in one set per flow or
//! credential.
//!
//! They are counted even where nothing limits them, so that a limit that comes with a reload knows
//! how many calls are in flight.

use std::{collections::HashMap, time::Duration};

use super::demand::SlotShare;
use crate::{
    limit::policy::{InFlight, Per},
    moment::Moment,
};

/// The slots of the gate or of one class.
#[derive(Debug)]
pub(crate) struct Slots {
    limit: Option<InFlight>,
    used: u32,
    split: HashMap<u64, Part>,
    rest: Part,
    era: u32,
    swept: Moment,
}

/// The slots of one flow or credential.
#[derive(Debug, Default)]
struct Part {
    used: u32,
    /// The queue groups that need one of these.
    users: Vec<u32>,
}

// === impl Slots ===

impl Slots {
    pub(crate) fn new(limit: Option<InFlight>) -> Self {
        Self { limit, used: 0, split: HashMap::new(), rest: Part::default(), era: 0, swept: Moment::ZERO }
    }

    /// Returns the unit that they are split by.
    pub(crate) fn per(&self) -> Option<Per> {
        self.limit.map(|limit| limit.per)
    }

    /// Returns the number of calls in flight that hold one.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn limit(&self) -> Option<InFlight> {
        self.limit
    }

    /// Returns the share that a call of `who` would hold.
    #[inline]
    pub(crate) fn share(&mut self, who: u64, now: Moment) -> SlotShare {
        if self.per().is_some_and(|per| per != Per::Gate) { self.share_of_many(who, now) } else { SlotShare::Whole }
    }

    #[inline(never)]
    fn share_of_many(&mut self, who: u64, now: Moment) -> SlotShare {
        let era = self.era;
        if self.split.contains_key(&who) {
            return SlotShare::Split { who, era };
        }
        if self.split.len() >= INSTANCES && now.since(self.swept) >= SWEEP_EVERY {
            self.swept = now;
            self.split.retain(|_, part| part.used > 0 || !part.users.is_empty());
        }
        if self.split.len() >= INSTANCES {
            return SlotShare::Rest { era };
        }
        self.split.insert(who, Part::default());
        SlotShare::Split { who, era }
    }

    /// True if a call may take this share now.
    #[inline]
    pub(crate) fn is_free(&self, place: SlotShare) -> bool {
        self.free(place) > 0
    }

    /// Returns how many calls may take this share now.
    #[inline]
    pub(crate) fn free(&self, place: SlotShare) -> u32 {
        let Some(limit) = self.limit else { return u32::MAX };
        let used = match place {
            SlotShare::None => return u32::MAX,
            SlotShare::Whole => self.used,
            SlotShare::Split { who, .. } => self.split.get(&who).map_or(0, |part| part.used),
            SlotShare::Rest { .. } => self.rest.used,
        };
        limit.max.get().saturating_sub(used)
    }

    #[inline]
    pub(crate) fn take(&mut self, place: SlotShare) {
        if place == SlotShare::None {
            return;
        }
        self.used = self.used.saturating_add(1);
        if let Some(part) = self.part(place) {
            part.used = part.used.saturating_add(1);
        }
    }

    /// Gives a share back and adds the queue groups that may now continue to `unblocked`.
    #[inline]
    pub(crate) fn give_back(&mut self, place: SlotShare, unblocked: &mut Vec<u32>) {
        if place == SlotShare::None {
            return;
        }
        debug_assert!(self.used > 0, "a slot was given back twice");
        self.used = self.used.saturating_sub(1);
        if let Some(part) = self.part(place) {
            part.used = part.used.saturating_sub(1);
            unblocked.extend_from_slice(&part.users);
        }
    }

    pub(crate) fn add_user(&mut self, place: SlotShare, queue_group: u32) {
        if let Some(part) = self.part(place) {
            part.users.push(queue_group);
        }
    }

    pub(crate) fn remove_user(&mut self, place: SlotShare, queue_group: u32) {
        if let Some(part) = self.part(place)
            && let Some(at) = part.users.iter().position(|user| *user == queue_group)
        {
            part.users.swap_remove(at);
        }
    }

    /// Applies a new limit. Calls in flight stay counted as a whole, and by flow or credential only
    /// if they are still split that way.
    pub(crate) fn reconfigure(&mut self, limit: Option<InFlight>) {
        if limit.map(|limit| limit.per) != self.per() {
            self.split.clear();
            self.rest = Part::default();
            self.era = self.era.wrapping_add(1);
        }
        self.limit = limit;
        for part in self.split.values_mut().chain([&mut self.rest]) {
            part.users.clear();
        }
    }

    #[inline]
    fn part(&mut self, place: SlotShare) -> Option<&mut Part> {
        match place {
            SlotShare::Split { who, era } if era == self.era => self.split.get_mut(&who),
            SlotShare::Rest { era } if era == self.era => Some(&mut self.rest),
            SlotShare::None | SlotShare::Whole | SlotShare::Split { .. } | SlotShare::Rest { .. } => None,
        }
    }
}

/// The most sets; further flows or credentials share one. Memory must not grow with what clients
/// make up.
pub(crate) const INSTANCES: usize = 1000;

/// The least time between two searches for idle sets, which look at every set: too expensive for
/// each call.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(1);
