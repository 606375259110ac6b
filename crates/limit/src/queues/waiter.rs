//! The records of waiting calls, each linked into its queue and into the list of its key.
//!
//! The lists are intrusive, so that removing a call from the middle takes O(1) with 100,000 calls
//! waiting.

#![expect(
    clippy::indexing_slicing,
    reason = "two links each, indexed by an enum of two; a link whose waiter is gone is a fault of the lists"
)]

use std::collections::HashMap;

use crate::moment::Moment;
use crate::{Arena, CallFacts, Grant, KeyGrant, OfWaiter, QueueIndex, Reason, Refusal, WaiterIndex};

/// The state of a waiting call.
#[derive(Debug)]
pub(crate) enum WaiterState {
    /// The call is admitted, but its owner has not claimed the permit yet. Boxed, because few calls
    /// are in this state.
    Granted(Box<Grant>),
    /// The call waits because its key has failed lately.
    Held,
    /// The call waits in this queue.
    Queued(QueueIndex),
    /// The call is refused, but its owner has not claimed the refusal yet.
    Refused(Box<Refusal>),
    /// No connection could be made, but its owner has not claimed this result yet.
    Unconnected,
}

/// A waiting call.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) generation: u32,
    pub(crate) call: CallFacts,
    pub(crate) state: WaiterState,
    pub(crate) key_grant: KeyGrant,
    /// The call's number in the order of entering queues; 0 before the call enters a queue.
    pub(crate) sequence: u64,
    /// The moment the call entered its queue.
    pub(crate) entered: Moment,
    /// The moment the call's wait ends in any case.
    pub(crate) ends: Moment,
    /// The latest end of the call's wait for its key.
    pub(crate) hold_ends: Moment,
    /// The moment of the call's timer; `Moment::MAX` for none.
    pub(crate) timer: Moment,
    /// The reason for the call's wait for its key, if it waited.
    pub(crate) held_for: Option<Reason>,
    /// The bytes of the call's body held so far.
    pub(crate) bytes: usize,
    /// Which list of its key the call is in.
    pub(crate) key_list: Option<KeyList>,
    /// The number of reloads when the call's class and queue were chosen, to see whether they are
    /// up to date.
    pub(crate) era: u16,
    links: [Links; 2],
}

/// The neighbours of a waiting call in one of its lists.
#[derive(Clone, Copy, Debug, Default)]
struct Links {
    before: Option<WaiterIndex>,
    after: Option<WaiterIndex>,
}

/// One of the two lists that a waiting call is in: its queue's or its key's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListKind {
    Queue,
    Key,
}

/// The first and last call of a list linked through the waiting calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    pub(crate) first: Option<WaiterIndex>,
    pub(crate) last: Option<WaiterIndex>,
}

/// The lists of a key's calls: those waiting for the key, and those not waiting for it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyList {
    Held,
    Passed,
}

/// Every waiting call.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    pub(crate) store: Arena<OfWaiter, Waiter>,
    /// The readable flow names of calls waiting for their keys.
    flow_names: HashMap<WaiterIndex, Box<str>>,
    /// The number given to the latest call, to tell apart calls stored in the same entry one after
    /// the other.
    pub(crate) generation: u32,
    /// The number of reloads so far.
    pub(crate) era: u16,
}

// === impl Waiter ===

impl Waiter {
    pub(crate) fn new(call: CallFacts, key_grant: KeyGrant, ends: Moment, hold_ends: Moment) -> Self {
        Self {
            generation: 0,
            state: WaiterState::Held,
            key_grant,
            sequence: 0,
            entered: call.arrived,
            ends,
            hold_ends,
            timer: Moment::MAX,
            held_for: None,
            bytes: 0,
            key_list: None,
            era: 0,
            links: [Links::default(); 2],
            call,
        }
    }

    /// Returns true if the call still waits for its turn.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, WaiterState::Held | WaiterState::Queued(_))
    }

    /// Returns true if the call arrived while other calls were being moved after a reload, and has
    /// no queue yet.
    pub(crate) fn is_unplaced(&self) -> bool {
        matches!(self.state, WaiterState::Held) && self.key_list != Some(KeyList::Held)
    }

    fn links(&mut self, kind: ListKind) -> &mut Links {
        &mut self.links[kind as usize]
    }
}

// === impl Waiters ===

impl Waiters {
    pub(crate) fn insert(&mut self, mut waiter: Waiter) -> WaiterIndex {
        self.generation = self.generation.wrapping_add(1);
        waiter.generation = self.generation;
        waiter.era = self.era;
        self.store.insert(waiter)
    }

    pub(crate) fn remove(&mut self, index: WaiterIndex) -> Option<Waiter> {
        self.take_flow_name(index);
        self.store.remove(index)
    }

    pub(crate) fn get(&self, index: WaiterIndex) -> Option<&Waiter> {
        self.store.get(index)
    }

    pub(crate) fn get_mut(&mut self, index: WaiterIndex) -> Option<&mut Waiter> {
        self.store.get_mut(index)
    }

    pub(crate) fn keep_flow_name(&mut self, index: WaiterIndex, name: Option<Box<str>>) {
        self.flow_names.extend(name.map(|name| (index, name)));
    }

    pub(crate) fn take_flow_name(&mut self, index: WaiterIndex) -> Option<Box<str>> {
        if self.flow_names.is_empty() { None } else { self.flow_names.remove(&index) }
    }
}

// === impl List ===

impl List {
    /// Puts the call `index` before `next`, or last.
    pub(crate) fn insert_before(
        &mut self,
        waiters: &mut Waiters,
        kind: ListKind,
        index: WaiterIndex,
        next: Option<WaiterIndex>,
    ) {
        let end = match next {
            None => &mut self.last,
            Some(next) => match waiters.get_mut(next) {
                Some(next) => &mut next.links(kind).before,
                None => return,
            },
        };
        let before = end.replace(index);
        if let Some(waiter) = waiters.get_mut(index) {
            *waiter.links(kind) = Links { before, after: next };
        }
        self.link_before(waiters, kind, before, Some(index));
    }

    pub(crate) fn remove(&mut self, waiters: &mut Waiters, kind: ListKind, index: WaiterIndex) {
        let Some(waiter) = waiters.get_mut(index) else { return };
        let Links { before, after } = std::mem::take(waiter.links(kind));
        self.link_before(waiters, kind, before, after);
        match after.and_then(|after| waiters.get_mut(after)) {
            Some(after) => after.links(kind).before = before,
            None => self.last = before,
        }
    }

    /// Returns the first calls of the list, in order, at most `most`.
    pub(crate) fn collect(&self, waiters: &Waiters, kind: ListKind, most: usize) -> Vec<WaiterIndex> {
        std::iter::successors(self.first, |index| Self::after(waiters, kind, *index)).take(most).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn after(waiters: &Waiters, kind: ListKind, index: WaiterIndex) -> Option<WaiterIndex> {
        waiters.get(index).and_then(|waiter| waiter.links[kind as usize].after)
    }

    pub(crate) fn before(waiters: &Waiters, kind: ListKind, index: WaiterIndex) -> Option<WaiterIndex> {
        waiters.get(index).and_then(|waiter| waiter.links[kind as usize].before)
    }

    /// Links two calls of a list: `next` follows `before`, or is the first.
    fn link_before(
        &mut self,
        waiters: &mut Waiters,
        kind: ListKind,
        before: Option<WaiterIndex>,
        next: Option<WaiterIndex>,
    ) {
        match before.and_then(|before| waiters.get_mut(before)) {
            Some(before) => before.links(kind).after = next,
            None => self.first = next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_takes_less_than_half_a_kibibyte() {
        // Timers, queues and held calls take some 200 bytes more.
        assert!(size_of::<Waiter>() <= 216, "{} bytes", size_of::<Waiter>());
    }
}
