//! Waiting calls: one record each, found by ticket and linked into its queue and its key's held
//! calls.
//!
//! The lists are intrusive, so a call can leave from the middle in O(1) with 100,000 waiting.

#![expect(
    clippy::indexing_slicing,
    reason = "two links each, indexed by an enum of two; a link whose waiter is gone is a fault of the lists"
)]

use std::{collections::HashMap, num::NonZeroU32};

use slab::Slab;

use crate::{
    limit::{
        call::{Call, Grant, KeyGrant},
        keys::id::KeyId,
        refusal::{Reason, Refusal},
        verdict::Ticket,
    },
    moment::Moment,
};

/// The state of a waiting call.
#[derive(Debug)]
pub(crate) enum State {
    /// Its turn has come and is not yet claimed. Boxed, because few calls are granted at any moment
    /// and the others should not carry the room for it.
    Granted(Box<Grant>),
    /// Its key holds it.
    Held,
    /// It waits in this queue.
    Queued(u32),
    /// Its wait is over, and the refusal is not yet claimed.
    Refused(Box<Refusal>),
    /// No connection could be made, and this is not yet claimed.
    Unconnected,
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) generation: u32,
    pub(crate) call: Call,
    pub(crate) state: State,
    pub(crate) key_grant: KeyGrant,
    /// Its place in the order in which calls entered queues.
    pub(crate) sequence: u64,
    /// The moment it entered its queue.
    pub(crate) entered: Moment,
    /// The moment its wait ends in any case.
    pub(crate) ends: Moment,
    /// The moment its wait for its key ends.
    pub(crate) hold_ends: Moment,
    /// The moment of its entry in the timers; `Moment::MAX` for none.
    pub(crate) timer: Moment,
    /// The reason its key held it.
    pub(crate) held_for: Option<Reason>,
    /// The bytes of its body that are held.
    pub(crate) bytes: usize,
    /// The list of its key's held calls in which it stands.
    pub(crate) key_list: Option<KeyList>,
    /// Under which limits it has its class and its place.
    pub(crate) era: u16,
    links: [Links; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Links {
    before: Option<Link>,
    after: Option<Link>,
}

/// An index stored one higher, so that an `Option` of it takes no more room.
#[derive(Clone, Copy, Debug)]
struct Link(NonZeroU32);

/// The list that a link belongs to: that of the queue or that of the key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    Queue,
    Key,
}

/// The ends of a list through the waiters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    first: Option<Link>,
    last: Option<Link>,
}

/// The two lists of a key's held calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyList {
    Held,
    Passed,
}

/// Every waiting call.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    slab: Slab<Waiter>,
    /// Readable names of flows that no queue knows: those of calls held by their keys, which are
    /// few at any moment.
    flow_names: HashMap<u32, Box<str>>,
    generation: u32,
    /// Counted up by every reload.
    pub(crate) era: u16,
}

// === impl Waiter ===

impl Waiter {
    pub(crate) fn new(call: Call, key_grant: KeyGrant, ends: Moment, hold_ends: Moment) -> Self {
        Self {
            generation: 0,
            state: State::Held,
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

    pub(crate) fn key(&self) -> Option<KeyId> {
        self.call.key.as_ref().map(KeyId::from)
    }

    /// True if it still waits for its turn.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Held | State::Queued(_))
    }

    fn links(&mut self, by: By) -> &mut Links {
        &mut self.links[by as usize]
    }
}

// === impl Waiters ===

impl Waiters {
    pub(crate) fn insert(&mut self, mut waiter: Waiter) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        (waiter.generation, waiter.era) = (self.generation, self.era);
        u32::try_from(self.slab.insert(waiter)).unwrap_or(u32::MAX)
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Waiter> {
        self.take_flow_name(index);
        self.slab.try_remove(index as usize)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Waiter> {
        self.slab.get(index as usize)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Waiter> {
        self.slab.get_mut(index as usize)
    }

    pub(crate) fn keep_flow_name(&mut self, index: u32, name: Option<Box<str>>) {
        self.flow_names.extend(name.map(|name| (index, name)));
    }

    pub(crate) fn take_flow_name(&mut self, index: u32) -> Option<Box<str>> {
        if self.flow_names.is_empty() { None } else { self.flow_names.remove(&index) }
    }

    pub(crate) fn ticket(&self, index: u32) -> Ticket {
        Ticket { index, generation: self.get(index).map_or(0, |waiter| waiter.generation) }
    }

    /// Returns the waiter of a ticket, unless it is gone.
    pub(crate) fn find(&self, ticket: Ticket) -> Option<&Waiter> {
        self.get(ticket.index).filter(|waiter| waiter.generation == ticket.generation)
    }

    /// The generation of the last who came.
    pub(crate) fn newest(&self) -> u32 {
        self.generation
    }

    /// No index is as high.
    pub(crate) fn places(&self) -> u32 {
        u32::try_from(self.slab.capacity()).unwrap_or(u32::MAX)
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }
}

// === impl Link ===

impl Link {
    fn to(index: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    fn index(self) -> u32 {
        self.0.get() - 1
    }
}

// === impl List ===

impl List {
    pub(crate) fn first(&self) -> Option<u32> {
        self.first.map(Link::index)
    }

    pub(crate) fn last(&self) -> Option<u32> {
        self.last.map(Link::index)
    }

    pub(crate) fn push_back(&mut self, waiters: &mut Waiters, by: By, index: u32) {
        let link = Some(Link::to(index));
        let before = std::mem::replace(&mut self.last, link);
        if let Some(waiter) = waiters.get_mut(index) {
            *waiter.links(by) = Links { before, after: None };
        }
        self.link_before(waiters, by, before, link);
    }

    /// Puts `index` before `next`, or last.
    pub(crate) fn insert_before(&mut self, waiters: &mut Waiters, by: By, index: u32, next: Option<u32>) {
        let Some(next) = next else { return self.push_back(waiters, by, index) };
        let link = Some(Link::to(index));
        let Some(waiter) = waiters.get_mut(next) else { return };
        let before = std::mem::replace(&mut waiter.links(by).before, link);
        if let Some(waiter) = waiters.get_mut(index) {
            *waiter.links(by) = Links { before, after: Some(Link::to(next)) };
        }
        self.link_before(waiters, by, before, link);
    }

    pub(crate) fn remove(&mut self, waiters: &mut Waiters, by: By, index: u32) {
        let Some(waiter) = waiters.get_mut(index) else { return };
        let Links { before, after } = std::mem::take(waiter.links(by));
        self.link_before(waiters, by, before, after);
        match after.and_then(|after| waiters.get_mut(after.index())) {
            Some(after) => after.links(by).before = before,
            None => self.last = before,
        }
    }

    /// The first `most` in it, in order.
    pub(crate) fn collect(&self, waiters: &Waiters, by: By, most: usize) -> Vec<u32> {
        std::iter::successors(self.first(), |index| Self::after(waiters, by, *index)).take(most).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn after(waiters: &Waiters, by: By, index: u32) -> Option<u32> {
        waiters.get(index).and_then(|waiter| waiter.links[by as usize].after).map(Link::index)
    }

    pub(crate) fn before(waiters: &Waiters, by: By, index: u32) -> Option<u32> {
        waiters.get(index).and_then(|waiter| waiter.links[by as usize].before).map(Link::index)
    }

    /// What comes after `before`, or first, is `next` now.
    fn link_before(&mut self, waiters: &mut Waiters, by: By, before: Option<Link>, next: Option<Link>) {
        match before.and_then(|before| waiters.get_mut(before.index())) {
            Some(before) => before.links(by).after = next,
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
        assert!(size_of::<Waiter>() <= 200, "{} bytes", size_of::<Waiter>());
    }
}
