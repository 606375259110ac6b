//! Doors: the bundles of one class that need the same of what is shared. What they share is looked
//! at once for all of them.

use std::collections::BTreeSet;

use slab::Slab;

use super::{
    queue::{Bundle, Mode},
    supply::Supply,
    verdict::Reason,
};
use crate::moment::Moment;

/// The bundles of a class that need the same of what is shared.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) mode: Mode,
    /// Those not set aside, by the stamp of their next queue.
    pub(super) ready: BTreeSet<(u64, u32)>,
    /// What stopped all of it last, and when.
    pub(super) stopped: (Moment, Reason),
}

// === impl Door ===

impl Door {
    /// The queue of this door that is next, with its stamp, if it may leave and is before `limit`.
    pub(super) fn first(
        &mut self,
        (limit, class): (u64, usize),
        bundles: &mut Slab<Bundle>,
        supply: &Supply,
        parked: &mut BTreeSet<(Moment, u32)>,
        (looks, now): (&mut usize, Moment),
    ) -> Option<(u64, u32)> {
        loop {
            let (stamp, index) = *self.ready.first().filter(|(stamp, _)| *stamp < limit)?;
            let bundle = bundles.get_mut(index as usize)?;
            let Some(block) = supply.blocked(&bundle.needs, class, now) else {
                return bundle.queues.first().copied();
            };
            if !block.own {
                self.stopped = (now, block.reason);
                return None;
            }
            bundle.stopped = (now, block.reason);
            bundle.parked = Some(block.until);
            if block.until < Moment::MAX {
                parked.insert((block.until, index));
            }
            self.ready.remove(&(stamp, index));
            *looks = looks.saturating_sub(1);
            if *looks == 0 {
                return None;
            }
        }
    }
}
