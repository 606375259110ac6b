//! Queues, their keys, and the queue groups: queues whose calls have exactly the same requirements.

use std::collections::BTreeSet;

use super::{lengths::QueueLengths, waiter::List};
use crate::{
    api::Group,
    limit::{
        policy::ClassId,
        refusal::Reason,
        resources::demand::{Demand, Requirements},
    },
    moment::Moment,
};

/// The key of a queue: everything by which one call may be stopped while another may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    class: ClassId,
    pub(crate) flow: u64,
    pub(crate) mode: Mode,
    /// The credential; zero if nothing that applies is split by credential.
    pub(crate) credential: u64,
}

/// Those facts about a call, besides its class, that decide its requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mode {
    pub(crate) group: Group,
    pub(crate) long_running: bool,
    pub(crate) lists_first: bool,
    pub(crate) retry: bool,
}

/// One queue: first come, first served.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueKey,
    pub(crate) list: List,
    pub(crate) len: u32,
    /// The number of the turn in which it was last served or was made: the lowest is next.
    pub(crate) stamp: u64,
    pub(crate) queue_group: u32,
    /// The flow's readable name, if it was known.
    pub(crate) name: Option<Box<str>>,
}

/// The queues of one class that have exactly the same requirements: all of them are stopped
/// together.
#[derive(Debug)]
pub(crate) struct QueueGroup {
    pub(crate) class: usize,
    pub(crate) mode: Mode,
    pub(crate) needs: Requirements,
    /// Its queues, ordered by stamp.
    pub(crate) queues: BTreeSet<(u64, u32)>,
    pub(crate) waiting: usize,
    pub(crate) queue_lengths: QueueLengths,
    /// The moment until which it is set aside because of a resource of its own; `None` if it is
    /// not.
    pub(crate) parked: Option<Moment>,
    /// The moment and the reason it was stopped last.
    pub(crate) stopped: (Moment, Reason),
}

// === impl QueueKey ===

impl QueueKey {
    /// Makes the queue key of a call, split by credential if buckets, slots or pauses are.
    pub(crate) fn new(demand: &Demand, by_credential: bool) -> Self {
        let Demand { group, long_running, lists_first, retry, .. } = *demand;
        let mode = Mode { group, long_running, lists_first, retry };
        let credential = if by_credential { demand.credential } else { 0 };
        let class = ClassId(u16::try_from(demand.class).unwrap_or(u16::MAX));
        Self { class, flow: demand.flow, mode, credential }
    }

    pub(crate) fn class(&self) -> usize {
        usize::from(self.class.0)
    }
}

// === impl QueueGroup ===

impl QueueGroup {
    pub(crate) fn new(id: &QueueKey, needs: Requirements) -> Self {
        Self {
            class: id.class(),
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
