//! Queues, and queue groups: queues with the same requirements.

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
    /// The turn of its last call, or of its making: the queue with the lowest is next.
    pub(crate) stamp: u64,
    pub(crate) queue_group: GroupIndex,
    /// The flow's readable name, if it is known.
    pub(crate) name: Option<Box<str>>,
}

/// The queues of one class with the same requirements, stopped together.
#[derive(Debug)]
pub(crate) struct QueueGroup {
    pub(crate) class: ClassId,
    pub(crate) mode: Mode,
    pub(crate) needs: Requirements,
    /// Its queues, ordered by stamp.
    pub(crate) queues: BTreeSet<(u64, QueueIndex)>,
    pub(crate) waiting: usize,
    pub(crate) queue_lengths: QueueLengths,
    /// Set while a resource of its own stops it: the moment until then.
    pub(crate) parked: Option<Moment>,
    /// The moment it was stopped last, and the reason.
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

    /// Returns the stamp of the next queue.
    pub(crate) fn stamp(&self) -> Option<u64> {
        self.queues.first().map(|(stamp, _)| *stamp)
    }
}
