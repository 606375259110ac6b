//! Queues: who they are, who stands in them, and the bundles of queues that need exactly the same things.

use std::collections::BTreeSet;

use super::{
    needs::Needs,
    supply::Asker,
    turns::Turns,
    verdict::{ClassId, Reason},
    waiter::List,
};
use crate::{api::Group, moment::Moment};

/// A queue's identity: everything by which one call may be stopped while another may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueueId {
    class: ClassId,
    pub(super) flow: u64,
    pub(super) mode: Mode,
    /// Zero where nothing that applies is split by credential.
    pub(super) credential: u64,
}

/// What of a call, besides its class, decides what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mode {
    pub(super) group: Group,
    pub(super) long_running: bool,
    pub(super) lists_first: bool,
    pub(super) retry: bool,
}

/// One queue: first come, first served.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) id: QueueId,
    pub(super) list: List,
    pub(super) len: u32,
    /// When it last had a turn, or came to be, in turns: the lowest is next.
    pub(super) stamp: u64,
    pub(super) bundle: u32,
    /// The flow's readable name, if it was known.
    pub(super) name: Option<Box<str>>,
}

/// Queues of one class that need exactly the same things: all of them are stopped together.
#[derive(Debug)]
pub(super) struct Bundle {
    pub(super) class: usize,
    pub(super) mode: Mode,
    pub(super) needs: Needs,
    /// Its queues by their stamps.
    pub(super) queues: BTreeSet<(u64, u32)>,
    pub(super) waiting: usize,
    pub(super) turns: Turns,
    /// What it is out of the running for, of its own.
    pub(super) parked: Option<Moment>,
    /// What stopped it last, and when.
    pub(super) stopped: (Moment, Reason),
}

// === impl QueueId ===

impl QueueId {
    /// The queue of a call, where buckets and slots are split by credential or not.
    pub(super) fn new(asker: &Asker, by_credential: bool) -> Self {
        let Asker { group, long_running, lists_first, retry, .. } = *asker;
        let mode = Mode { group, long_running, lists_first, retry };
        let credential = if by_credential { asker.credential } else { 0 };
        let class = ClassId(u16::try_from(asker.class).unwrap_or(u16::MAX));
        Self { class, flow: asker.flow, mode, credential }
    }

    pub(super) fn class(&self) -> usize {
        usize::from(self.class.0)
    }
}

// === impl Bundle ===

impl Bundle {
    pub(super) fn new(id: &QueueId, needs: Needs) -> Self {
        Self {
            class: id.class(),
            mode: id.mode,
            needs,
            queues: BTreeSet::new(),
            waiting: 0,
            turns: Turns::default(),
            parked: None,
            stopped: (Moment::ZERO, Reason::Bucket),
        }
    }

    /// The stamp of the queue that is next.
    pub(super) fn stamp(&self) -> Option<u64> {
        self.queues.first().map(|(stamp, _)| *stamp)
    }
}
