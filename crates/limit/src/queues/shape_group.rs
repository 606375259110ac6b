//! Shape groups: queue groups of a class that differ only in their buckets and slots per flow or
//! credential. The resources they have in common are checked once for all of them.

use std::collections::BTreeSet;

use super::QueueGroups;
use crate::moment::Moment;
use crate::{ClassId, GroupIndex, Mode, QueueIndex, Reason, Resources};

/// A bound for a search in a class: only queues with a lower sort key are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnLimit {
    pub(crate) stamp: u64,
    pub(crate) class: ClassId,
}

/// Queue groups of one class with different buckets or slots per flow or credential, and everything
/// else in common.
#[derive(Debug)]
pub(crate) struct ShapeGroup {
    pub(crate) mode: Mode,
    /// The queue group without a bucket or slots per flow or credential.
    pub(crate) unsplit: Option<GroupIndex>,
    /// The queue groups not parked (not stopped by a bucket or slots of their own), by the sort key
    /// of their next queue.
    pub(crate) ready: BTreeSet<(u64, GroupIndex)>,
    /// The time and the reason of the last stop found for all these calls.
    pub(crate) stopped: (Moment, Reason),
    /// The last moment with only a connection missing.
    pub(crate) lacked_room: Moment,
}

// === impl ShapeGroup ===

impl ShapeGroup {
    pub(crate) fn new(mode: Mode) -> Self {
        let stopped = (Moment::ZERO, Reason::Bucket);
        Self { mode, unsplit: None, ready: BTreeSet::new(), stopped, lacked_room: Moment::ZERO }
    }

    /// Returns the next queue of this shape group and its sort key, if its first call may be sent
    /// and the key is below `limit`.
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
