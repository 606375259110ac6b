//! Every waiting call with what is counted of them, the calls held for each key, and the moments at
//! which waits end.

use std::collections::HashMap;

use super::{By, HeldCalls, State, Timers, Waiter, Waiters, WaitingBytes};
use crate::moment::Moment;
use crate::{KeyId, Spread, Ticket, WaiterIndex};

/// The waiting calls of a gate.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) waiters: Waiters,
    pub(crate) timers: Timers,
    /// The waiting calls of each key that fails or for which several calls wait.
    held_calls: HashMap<KeyId, HeldCalls, Spread>,
    pub(crate) count: usize,
    pub(crate) bytes: WaitingBytes,
    /// The number of calls that have entered queues so far.
    sequence: u64,
}

// === impl Waiting ===

impl Waiting {
    /// True if nothing is left of any wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.store.len() == 0 && self.held_calls.is_empty() && self.timers.is_empty() && self.count == 0
    }

    pub(crate) fn get(&self, index: WaiterIndex) -> Option<&Waiter> {
        self.waiters.get(index)
    }

    pub(crate) fn get_mut(&mut self, index: WaiterIndex) -> Option<&mut Waiter> {
        self.waiters.get_mut(index)
    }

    /// Returns the waiter of a ticket, unless it is gone.
    pub(crate) fn find(&self, ticket: Ticket) -> Option<&Waiter> {
        self.get(ticket.index).filter(|waiter| waiter.generation == ticket.generation)
    }

    pub(crate) fn ticket(&self, index: WaiterIndex) -> Ticket {
        Ticket { index, generation: self.get(index).map_or(0, |waiter| waiter.generation) }
    }

    /// Adds a call that begins to wait.
    pub(crate) fn start(&mut self, waiter: Waiter) -> WaiterIndex {
        let index = self.waiters.insert(waiter);
        self.count_in(index);
        index
    }

    /// Counts a call that begins to wait.
    pub(crate) fn count_in(&mut self, index: WaiterIndex) {
        self.count += 1;
        if let Some(waiter) = self.waiters.get(index) {
            self.bytes.add(waiter.bytes);
        }
    }

    /// Counts a call that no longer waits, whatever the reason, and cancels its timer.
    pub(crate) fn count_out(&mut self, index: WaiterIndex) {
        self.count = self.count.saturating_sub(1);
        if let Some(waiter) = self.waiters.get_mut(index) {
            self.bytes.subtract(waiter.bytes);
            self.timers.cancel_waiter(std::mem::replace(&mut waiter.timer, Moment::MAX), index);
        }
    }

    /// Counts bytes that are held for a waiting call, unless all would then hold more than `max`.
    /// Returns true if they were counted.
    #[must_use]
    pub(crate) fn add_bytes(&mut self, index: WaiterIndex, bytes: usize, max: usize) -> bool {
        if !self.bytes.try_add(bytes, max) {
            return false;
        }
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.bytes = waiter.bytes.saturating_add(bytes);
        }
        true
    }

    /// Sets a waiter's timer to the end of its present wait.
    pub(crate) fn set_timer(&mut self, index: WaiterIndex, at: Moment) {
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        let before = std::mem::replace(&mut waiter.timer, at);
        self.timers.cancel_waiter(before, index);
        self.timers.set_waiter(at, index);
    }

    /// Returns the next number in the order in which calls enter queues.
    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Notes that a call enters a queue now. It gets the next number in the order of all that do,
    /// unless it returns and has one.
    pub(crate) fn enter(&mut self, index: WaiterIndex, returns: bool, now: Moment) {
        let sequence = if returns { None } else { Some(self.next_sequence()) };
        if let Some(waiter) = self.waiters.get_mut(index) {
            waiter.entered = now;
            waiter.sequence = sequence.unwrap_or(waiter.sequence);
        }
    }

    /// Adds a call to its key's held calls, at the end or before all others. Returns the key.
    pub(crate) fn hold(&mut self, index: WaiterIndex, first: bool) -> Option<KeyId> {
        let waiter = self.waiters.get_mut(index)?;
        waiter.state = State::Held;
        let key = waiter.key()?;
        self.held_calls.entry(key).or_default().hold(&mut self.waiters, index, first);
        Some(key)
    }

    /// Adds a call to those that are past their key.
    pub(crate) fn note_passed(&mut self, index: WaiterIndex) {
        if let Some(key) = self.waiters.get(index).and_then(Waiter::key) {
            self.held_calls.entry(key).or_default().note_passed(&mut self.waiters, index);
        }
    }

    /// Takes a call from those of its key.
    pub(crate) fn leave_key(&mut self, index: WaiterIndex) {
        let Some(key) = self.waiters.get(index).and_then(Waiter::key) else { return };
        let Some(held) = self.held_calls.get_mut(&key) else { return };
        held.remove(&mut self.waiters, index);
        if held.is_empty() {
            self.timers.cancel_key(key);
            self.held_calls.remove(&key);
        }
    }

    /// Returns the first call that a key holds.
    #[inline]
    pub(crate) fn first_held(&self, key: KeyId) -> Option<WaiterIndex> {
        self.held_calls.get(&key)?.held.first
    }

    /// Returns the first `most` calls that a key holds, in order.
    pub(crate) fn held(&self, key: KeyId, most: usize) -> Vec<WaiterIndex> {
        self.held_calls.get(&key).map(|held| held.held.collect(&self.waiters, By::Key, most)).unwrap_or_default()
    }

    /// Returns the calls that are past a key and have not left, in order, if any call waits there.
    pub(crate) fn passed(&self, key: KeyId) -> Option<Vec<WaiterIndex>> {
        let held = self.held_calls.get(&key)?;
        Some(held.passed.collect(&self.waiters, By::Key, usize::MAX))
    }
}
