//! Queues, their keys, and the queue groups: queues whose calls have exactly the same requirements.

use std::collections::BTreeSet;

use super::{List, QueueLengths};
use crate::key::Group;
use crate::moment::Moment;
use crate::{ClassId, GroupIndex, Lasts, OfGroup, QueueIndex, Reason, Requirements, Store};

/// The key of a queue: everything by which one call may be stopped while another may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) class: ClassId,
    pub(crate) flow: u64,
    pub(crate) mode: Mode,
    /// The credential; zero if nothing that applies is split by credential.
    pub(crate) credential: u64,
}

/// The facts about a call, besides its class, that decide its requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mode {
    pub(crate) group: Group,
    pub(crate) lasts: Lasts,
    /// True for the trial of a failing key.
    pub(crate) retry: bool,
}

/// One queue: first come, first served.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueKey,
    pub(crate) list: List,
    pub(crate) len: u32,
    /// Its place among the queues, by the turn in which it was last served or was made: the lowest
    /// is next.
    pub(crate) stamp: u64,
    pub(crate) queue_group: GroupIndex,
    /// The flow's readable name, if it was known.
    pub(crate) name: Option<Box<str>>,
}

/// The queues of one class that have exactly the same requirements: all of them are stopped
/// together.
#[derive(Debug)]
pub(crate) struct QueueGroup {
    pub(crate) class: ClassId,
    pub(crate) mode: Mode,
    pub(crate) needs: Requirements,
    /// Its queues, ordered by stamp.
    pub(crate) queues: BTreeSet<(u64, QueueIndex)>,
    pub(crate) waiting: usize,
    pub(crate) queue_lengths: QueueLengths,
    /// The moment until which it is set aside because of a resource of its own; `None` if it is
    /// not.
    pub(crate) parked: Option<Moment>,
    /// The moment and the reason it was stopped last.
    pub(crate) stopped: (Moment, Reason),
}

/// Every queue group of a gate.
pub(crate) type QueueGroups = Store<OfGroup, QueueGroup>;

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

    /// Returns the stamp of the queue that is next.
    pub(crate) fn stamp(&self) -> Option<u64> {
        self.queues.first().map(|(stamp, _)| *stamp)
    }
}
