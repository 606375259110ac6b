//! Slots: places among calls in flight, of the gate or of one class, whole or one set per flow or credential.
//!
//! They are counted even where nothing limits them, so that a limit that comes with a reload knows what is in flight.

use std::{collections::HashMap, time::Duration};

use super::{
    needs::Place,
    policy::{InFlight, Per},
};
use crate::moment::Moment;

/// The slots of the gate or of one class.
#[derive(Debug)]
pub(super) struct Slots {
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
    /// Bundles of queues that need one of these.
    users: Vec<u32>,
}

// === impl Slots ===

impl Slots {
    pub(super) fn new(limit: Option<InFlight>) -> Self {
        Self { limit, used: 0, split: HashMap::new(), rest: Part::default(), era: 0, swept: Moment::ZERO }
    }

    /// What they are split by.
    pub(super) fn per(&self) -> Option<Per> {
        self.limit.map(|limit| limit.per)
    }

    /// In flight now.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    pub(super) fn limit(&self) -> Option<InFlight> {
        self.limit
    }

    /// The place that a call of `who` would hold.
    #[inline]
    pub(super) fn place(&mut self, who: u64, now: Moment) -> Place {
        if self.per().is_some_and(|per| per != Per::Gate) { self.place_of_many(who, now) } else { Place::Whole }
    }

    #[inline(never)]
    fn place_of_many(&mut self, who: u64, now: Moment) -> Place {
        let era = self.era;
        if self.split.contains_key(&who) {
            return Place::Split { who, era };
        }
        if self.split.len() >= INSTANCES && now.since(self.swept) >= SWEEP_EVERY {
            self.swept = now;
            self.split.retain(|_, part| part.used > 0 || !part.users.is_empty());
        }
        if self.split.len() >= INSTANCES {
            return Place::Rest { era };
        }
        self.split.insert(who, Part::default());
        Place::Split { who, era }
    }

    /// Whether a call may take this place now.
    #[inline]
    pub(super) fn is_free(&self, place: Place) -> bool {
        self.free(place) > 0
    }

    /// How many calls may take this place now.
    #[inline]
    pub(super) fn free(&self, place: Place) -> u32 {
        let Some(limit) = self.limit else { return u32::MAX };
        let used = match place {
            Place::None => return u32::MAX,
            Place::Whole => self.used,
            Place::Split { who, .. } => self.split.get(&who).map_or(0, |part| part.used),
            Place::Rest { .. } => self.rest.used,
        };
        limit.max.get().saturating_sub(used)
    }

    #[inline]
    pub(super) fn take(&mut self, place: Place) {
        if place == Place::None {
            return;
        }
        self.used = self.used.saturating_add(1);
        if let Some(part) = self.part(place) {
            part.used = part.used.saturating_add(1);
        }
    }

    /// Gives a place back; the bundles that may now go on are added to `freed`.
    #[inline]
    pub(super) fn give_back(&mut self, place: Place, freed: &mut Vec<u32>) {
        if place == Place::None {
            return;
        }
        debug_assert!(self.used > 0, "a slot was given back twice");
        self.used = self.used.saturating_sub(1);
        if let Some(part) = self.part(place) {
            part.used = part.used.saturating_sub(1);
            freed.extend_from_slice(&part.users);
        }
    }

    pub(super) fn add_user(&mut self, place: Place, bundle: u32) {
        if let Some(part) = self.part(place) {
            part.users.push(bundle);
        }
    }

    pub(super) fn remove_user(&mut self, place: Place, bundle: u32) {
        if let Some(part) = self.part(place)
            && let Some(at) = part.users.iter().position(|user| *user == bundle)
        {
            part.users.swap_remove(at);
        }
    }

    /// A new limit. What is in flight stays counted as a whole; by flow or credential only if they are still split that way.
    pub(super) fn reconfigure(&mut self, limit: Option<InFlight>) {
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
    fn part(&mut self, place: Place) -> Option<&mut Part> {
        match place {
            Place::Split { who, era } if era == self.era => self.split.get_mut(&who),
            Place::Rest { era } if era == self.era => Some(&mut self.rest),
            Place::None | Place::Whole | Place::Split { .. } | Place::Rest { .. } => None,
        }
    }
}

/// More flows or credentials than this share one set: memory must not grow with what clients make up.
pub(super) const INSTANCES: usize = 1000;

/// Looking for sets at rest costs a look at each: not for every call.
pub(super) const SWEEP_EVERY: Duration = Duration::from_secs(1);
