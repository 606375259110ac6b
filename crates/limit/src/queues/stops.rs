//! Records of what stopped the first calls of queues, to name the main reason of a wait.

use super::Scheduler;
use crate::moment::Moment;
use crate::{QueueIndex, Reason};

/// The last time a limit stopped a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitStop {
    pub(crate) at: Moment,
    pub(crate) reason: Reason,
    /// True if after this stop only a connection was missing.
    pub(crate) lacked_room: bool,
}

// === impl LimitStop ===

impl LimitStop {
    /// Returns the main reason for a wait from `entered` until `now`, if the limits stopped the
    /// call until `there`.
    pub(crate) fn main_reason(self, entered: Moment, there: Moment, now: Moment) -> Reason {
        let limit_held_longer = self.at >= entered && there - entered > now - there;
        if self.lacked_room && !limit_held_longer { Reason::Slot } else { self.reason }
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Returns what stopped this queue last.
    pub(crate) fn stopped(&self, queue: QueueIndex) -> Reason {
        let stop = self.limit_stop(queue);
        if stop.lacked_room { Reason::Slot } else { stop.reason }
    }

    /// Returns the last time a limit stopped this queue.
    pub(crate) fn limit_stop(&self, queue: QueueIndex) -> LimitStop {
        let Some(queue_group) = self.group_of(queue) else {
            return LimitStop { at: Moment::ZERO, reason: Reason::Bucket, lacked_room: false };
        };
        let class = self.classes.get(queue_group.class);
        let shape_group = class.and_then(|class| class.shape_group(queue_group.mode));
        let of_shape_group = shape_group.map(|shape_group| shape_group.stopped);
        let (at, reason) =
            of_shape_group.filter(|stopped| stopped.0 > queue_group.stopped.0).unwrap_or(queue_group.stopped);
        LimitStop { at, reason, lacked_room: shape_group.is_some_and(|shape_group| shape_group.lacked_room > at) }
    }

    /// Records what stops a queue, if it is known before the queue's turn.
    pub(crate) fn note_stopped(&mut self, queue: QueueIndex, now: Moment, reason: Reason) {
        if let Some(queue_group) = self.queue(queue).map(|queue| queue.queue_group)
            && let Some(found) = self.queue_groups.get_mut(queue_group)
        {
            found.stopped = (now, reason);
        }
    }
}
