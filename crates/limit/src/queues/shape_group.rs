//! Shape groups: queue groups of a class that differ only in buckets and slots of their own. The
//! resources that they share are checked once for all of them.

use std::collections::BTreeSet;

use super::QueueGroups;
use crate::moment::Moment;
use crate::{ClassId, GroupIndex, Mode, QueueIndex, Reason, Resources};

/// The class to search, and the stamp to be below.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnLimit {
    pub(crate) stamp: u64,
    pub(crate) class: ClassId,
}

/// Queue groups of a class with different buckets or slots, and everything else in common.
#[derive(Debug)]
pub(crate) struct ShapeGroup {
    pub(crate) mode: Mode,
    /// The queue group without resources of its own.
    pub(crate) unsplit: Option<GroupIndex>,
    /// The queue groups that are not parked, by the stamp of their next queue.
    pub(crate) ready: BTreeSet<(u64, GroupIndex)>,
    /// The moment it was stopped last, and the reason.
    pub(crate) stopped: (Moment, Reason),
    /// The moment at which only room was missing.
    pub(crate) lacked_room: Moment,
}

// === impl ShapeGroup ===

impl ShapeGroup {
    pub(crate) fn new(mode: Mode) -> Self {
        let stopped = (Moment::ZERO, Reason::Bucket);
        Self { mode, unsplit: None, ready: BTreeSet::new(), stopped, lacked_room: Moment::ZERO }
    }

    /// Returns the next queue of this shape group and its stamp, if its first call may leave and
    /// the stamp is below `limit`.
    pub(crate) fn first(
        &mut self,
        limit: TurnLimit,
        queue_groups: &mut QueueGroups,
        resources: &Resources,
        parked: &mut BTreeSet<(Moment, GroupIndex)>,
        looks: &mut usize,
        now: Moment,
    ) -> Option<(u64, QueueIndex)> {
        loop {
            let (stamp, index) = *self.ready.first().filter(|(stamp, _)| *stamp < limit.stamp)?;
            let queue_group = queue_groups.get_mut(index)?;
            let Some(block) = resources.blocked_but_for_room(&queue_group.needs, limit.class, now) else {
                if resources.room(self.mode.group) > 0 {
                    return queue_group.queues.first().copied();
                }
                self.lacked_room = now;
                return None;
            };
            if !block.own {
                self.stopped = (now, block.reason);
                return None;
            }
            queue_group.stopped = (now, block.reason);
            queue_group.parked = Some(block.until);
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
