//! Calls that wait: one record each, found by ticket, linked into the queue and the key's line they stand in.
//!
//! The lists are intrusive, so that anyone can leave from the middle in O(1) with 100,000 waiting.

#![expect(
    clippy::indexing_slicing,
    reason = "two links each, indexed by an enum of two; a link whose waiter is gone is a fault of the lists"
)]

use std::{collections::HashMap, num::NonZeroU32, time::Duration};

use slab::Slab;

use super::{
    needs::{BucketId, Lasts, Needs},
    permit::Ticket,
    stage::InLine,
    table::KeyId,
    verdict::{Reason, Refusal},
};
use crate::{
    api::{Group, Key},
    moment::Moment,
};

/// What the limiter keeps of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// Its class by its place in the policy, and by the number that stays the same over a reload.
    pub(super) class: usize,
    pub(super) serial: u32,
    pub(super) flow: u64,
    pub(super) credential: u64,
    pub(super) key: Option<Key>,
    /// It changes something.
    pub(super) write: bool,
    pub(super) group: Group,
    pub(super) lasts: Lasts,
    pub(super) patient: bool,
    pub(super) arrived: Moment,
    /// When half of the client's own deadline is over, of which the gate does not use up more; `Moment::MAX` where it has none.
    pub(super) half_time: Moment,
}

/// What a call has been given to leave with.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    /// `None` for exempt calls, which take nothing.
    pub(super) needs: Option<Needs>,
    /// The number of the take.
    pub(super) number: u64,
    /// How many failures were known when it left.
    pub(super) left: u64,
    pub(super) pass: Pass,
    /// Its place in the order of its queue, should it come back.
    pub(super) sequence: u64,
    pub(super) waited: Option<(Reason, Duration)>,
}

/// What a call got at the key stage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    /// The number of its trial; 0 for calls of healthy keys.
    pub(super) trial: u32,
    /// A retry token reckoned on arrival (`max_of`): the bucket, the take's number, and when it is there.
    pub(super) paid: Option<(BucketId, u64, Moment)>,
    /// It is the one write of its key, where only one may be on its way.
    pub(super) alone: bool,
}

/// Where a waiting call is.
#[derive(Debug)]
pub(super) enum State {
    /// Its turn has come; not yet claimed. Boxed: few are, at any moment, and the others should not carry the room for it.
    Granted(Box<Grant>),
    /// Its key holds it.
    Held,
    /// In a queue, by number.
    Queued(u32),
    /// Its wait is over; not yet claimed.
    Refused(Box<Refusal>),
    /// No connection could be had; not yet claimed.
    Unconnected,
}

/// A waiting call.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) generation: u32,
    pub(super) call: Call,
    pub(super) state: State,
    pub(super) pass: Pass,
    /// Order of entering a queue.
    pub(super) sequence: u64,
    /// When it entered its queue.
    pub(super) entered: Moment,
    /// When its wait ends in any case.
    pub(super) ends: Moment,
    /// When its wait for its key ends.
    pub(super) hold_ends: Moment,
    /// Its entry among the timers; `Moment::MAX` for none.
    pub(super) timer: Moment,
    /// What its key held it for.
    pub(super) held_for: Option<Reason>,
    /// Bytes of its body held.
    pub(super) bytes: usize,
    /// In which list of its key's line it stands.
    pub(super) in_line: Option<InLine>,
    /// Under which limits it has its class and its place.
    pub(super) era: u16,
    links: [Links; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Links {
    before: Option<Link>,
    after: Option<Link>,
}

/// An index, of which an `Option` takes no more room: it is kept one higher.
#[derive(Clone, Copy, Debug)]
struct Link(NonZeroU32);

/// Which list: that of the queue, or that of the key.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    Queue,
    Key,
}

/// The ends of a list through the waiters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct List {
    first: Option<Link>,
    last: Option<Link>,
}

/// Every waiting call.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    slab: Slab<Waiter>,
    /// Readable names of flows that no queue knows: of calls that their keys hold, which are few at any moment.
    flow_names: HashMap<u32, Box<str>>,
    generation: u32,
    /// Counted up by every reload.
    pub(super) era: u16,
}

// === impl Waiter ===

impl Waiter {
    pub(super) fn new(call: Call, pass: Pass, ends: Moment, hold_ends: Moment) -> Self {
        Self {
            generation: 0,
            state: State::Held,
            pass,
            sequence: 0,
            entered: call.arrived,
            ends,
            hold_ends,
            timer: Moment::MAX,
            held_for: None,
            bytes: 0,
            in_line: None,
            era: 0,
            links: [Links::default(); 2],
            call,
        }
    }

    pub(super) fn key(&self) -> Option<KeyId> {
        self.call.key.as_ref().map(KeyId::from)
    }

    /// Whether it still waits for its turn.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Held | State::Queued(_))
    }

    fn links(&mut self, by: By) -> &mut Links {
        &mut self.links[by as usize]
    }
}

// === impl Waiters ===

impl Waiters {
    pub(super) fn insert(&mut self, mut waiter: Waiter) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        (waiter.generation, waiter.era) = (self.generation, self.era);
        u32::try_from(self.slab.insert(waiter)).unwrap_or(u32::MAX)
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Waiter> {
        self.take_flow_name(index);
        self.slab.try_remove(index as usize)
    }

    pub(super) fn get(&self, index: u32) -> Option<&Waiter> {
        self.slab.get(index as usize)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Waiter> {
        self.slab.get_mut(index as usize)
    }

    pub(super) fn keep_flow_name(&mut self, index: u32, name: Option<Box<str>>) {
        self.flow_names.extend(name.map(|name| (index, name)));
    }

    pub(super) fn take_flow_name(&mut self, index: u32) -> Option<Box<str>> {
        if self.flow_names.is_empty() { None } else { self.flow_names.remove(&index) }
    }

    pub(super) fn ticket(&self, index: u32) -> Ticket {
        Ticket { index, generation: self.get(index).map_or(0, |waiter| waiter.generation) }
    }

    /// The waiter of a ticket, unless it is gone.
    pub(super) fn find(&self, ticket: Ticket) -> Option<&Waiter> {
        self.get(ticket.index).filter(|waiter| waiter.generation == ticket.generation)
    }

    /// The generation of the last who came.
    pub(super) fn newest(&self) -> u32 {
        self.generation
    }

    /// No index is as high.
    pub(super) fn places(&self) -> u32 {
        u32::try_from(self.slab.capacity()).unwrap_or(u32::MAX)
    }

    pub(super) fn len(&self) -> usize {
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
    pub(super) fn first(&self) -> Option<u32> {
        self.first.map(Link::index)
    }

    pub(super) fn last(&self) -> Option<u32> {
        self.last.map(Link::index)
    }

    pub(super) fn push_back(&mut self, waiters: &mut Waiters, by: By, index: u32) {
        let link = Some(Link::to(index));
        let before = std::mem::replace(&mut self.last, link);
        if let Some(waiter) = waiters.get_mut(index) {
            *waiter.links(by) = Links { before, after: None };
        }
        self.link_before(waiters, by, before, link);
    }

    /// Puts `index` before `next`, or last.
    pub(super) fn insert_before(&mut self, waiters: &mut Waiters, by: By, index: u32, next: Option<u32>) {
        let Some(next) = next else { return self.push_back(waiters, by, index) };
        let link = Some(Link::to(index));
        let Some(waiter) = waiters.get_mut(next) else { return };
        let before = std::mem::replace(&mut waiter.links(by).before, link);
        if let Some(waiter) = waiters.get_mut(index) {
            *waiter.links(by) = Links { before, after: Some(Link::to(next)) };
        }
        self.link_before(waiters, by, before, link);
    }

    pub(super) fn remove(&mut self, waiters: &mut Waiters, by: By, index: u32) {
        let Some(waiter) = waiters.get_mut(index) else { return };
        let Links { before, after } = std::mem::take(waiter.links(by));
        self.link_before(waiters, by, before, after);
        match after.and_then(|after| waiters.get_mut(after.index())) {
            Some(after) => after.links(by).before = before,
            None => self.last = before,
        }
    }

    /// The first `most` in it, in order.
    pub(super) fn collect(&self, waiters: &Waiters, by: By, most: usize) -> Vec<u32> {
        std::iter::successors(self.first(), |index| Self::after(waiters, by, *index)).take(most).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn after(waiters: &Waiters, by: By, index: u32) -> Option<u32> {
        waiters.get(index).and_then(|waiter| waiter.links[by as usize].after).map(Link::index)
    }

    pub(super) fn before(waiters: &Waiters, by: By, index: u32) -> Option<u32> {
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
        // Timers, queues and lines take some 200 bytes more.
        assert!(size_of::<Waiter>() <= 200, "{} bytes", size_of::<Waiter>());
    }
}
