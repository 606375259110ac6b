//! Queues, and queue groups: queues of calls with the same requirements.

use std::collections::BTreeSet;

use super::{List, QueueLengths};
use crate::moment::Moment;
use crate::{Arena, ClassId, GroupIndex, Mode, OfGroup, QueueIndex, QueueKey, Reason, Requirements};

/// One queue: first come, first served.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueKey,
    pub(crate) list: List,
    pub(crate) len: u32,
    /// The sort key of the queue's next turn: the queue with the lowest key is next. The key grows
    /// with each call sent from the queue.
    pub(crate) stamp: u64,
    pub(crate) queue_group: GroupIndex,
    /// The flow's readable name, if it is known.
    pub(crate) name: Option<Box<str>>,
}

/// The queues of one class with the same requirements. What stops one stops all.
#[derive(Debug)]
pub(crate) struct QueueGroup {
    pub(crate) class: ClassId,
    pub(crate) mode: Mode,
    pub(crate) needs: Requirements,
    /// The queues, in the order of their next turns.
    pub(crate) queues: BTreeSet<(u64, QueueIndex)>,
    pub(crate) waiting: usize,
    pub(crate) queue_lengths: QueueLengths,
    /// Set while a bucket or slots of this group alone stop it: the earliest moment to check the
    /// group again.
    pub(crate) parked: Option<Moment>,
    /// The time and the reason of the last stop found for the group's calls.
    pub(crate) stopped: (Moment, Reason),
}

/// Every queue group of a gate.
pub(crate) type QueueGroups = Arena<OfGroup, QueueGroup>;

// === impl QueueGroup ===

impl QueueGroup {
    pub(crate) fn new(id: &QueueKey, needs: Requirements) -> Self {
        Self {
            class: id.class,
            mode: id.mode,
            needs,
            queues: BTreeSet::new(),
            waiting: 0,
            queue_lengths: QueueLengths::default(),
            parked: None,
            stopped: (Moment::ZERO, Reason::Bucket),
        }
    }

    /// Returns the sort key of the queue with the next turn.
    pub(crate) fn stamp(&self) -> Option<u64> {
        self.queues.first().map(|(stamp, _)| *stamp)
    }
}
