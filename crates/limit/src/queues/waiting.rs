//! Operations on waiting calls, with their counts and the lists of each key.

use super::{DueWork, KeyCalls, KeyList, List, ListKind, Queues, Step, Waiter, WaiterWalk};
use crate::moment::Moment;
use crate::{KeyId, Ticket, WaiterIndex};

// === impl Queues ===

impl Queues {
    pub(crate) fn get(&self, index: WaiterIndex) -> Option<&Waiter> {
        self.waiters.get(index)
    }

    /// Returns the call of a ticket; `None` once the call has been removed.
    pub(crate) fn find(&self, ticket: Ticket) -> Option<&Waiter> {
        self.get(ticket.index).filter(|waiter| waiter.generation == ticket.generation)
    }

    pub(crate) fn ticket(&self, index: WaiterIndex) -> Ticket {
        Ticket { index, generation: self.get(index).map_or(0, |waiter| waiter.generation) }
    }

    /// Returns the number of waiting calls.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.count
    }

    /// Returns the bytes held for waiting calls.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.bytes.own
    }

    /// Returns the moment of the first timer.
    pub(crate) fn first_timer(&self) -> Option<Moment> {
        self.timers.first()
    }

    /// Sets the moment to review the calls waiting for a key; [`Moment::MAX`] for none.
    pub(crate) fn set_key_timer(&mut self, key: KeyId, at: Moment) {
        self.timers.set_key(at, key);
    }

    /// Remembers the flow name of a call waiting for its key.
    pub(crate) fn keep_flow_name(&mut self, index: WaiterIndex, name: Box<str>) {
        self.waiters.keep_flow_name(index, Some(name));
    }

    /// Removes the record of a call that no longer waits anywhere.
    pub(crate) fn remove(&mut self, index: WaiterIndex) {
        self.waiters.remove(index);
    }

    /// Begins a walk over all calls waiting now.
    pub(crate) fn walk(&self) -> WaiterWalk {
        WaiterWalk::over(&self.waiters)
    }

    /// Continues a walk by a few calls, up to the first that `meant` accepts.
    pub(crate) fn step(&self, walk: &mut WaiterWalk, meant: impl Fn(&Waiter) -> bool) -> Step {
        walk.step(&self.waiters, meant)
    }

    /// Adds a waiting call.
    pub(crate) fn start(&mut self, waiter: Waiter) -> WaiterIndex {
        let index = self.waiters.insert(waiter);
        self.count_in(index);
        index
    }

    /// Adds a call to the counts of waiting calls.
    pub(super) fn count_in(&mut self, index: WaiterIndex) {
        self.count += 1;
        if let Some(waiter) = self.waiters.get(index) {
            self.bytes.add(waiter.bytes);
        }
    }

    /// Removes a call from the counts of waiting calls, and cancels its timer.
    pub(super) fn count_out(&mut self, index: WaiterIndex) {
        self.count = self.count.saturating_sub(1);
        if let Some(waiter) = self.waiters.get_mut(index) {
            self.bytes.subtract(waiter.bytes);
            self.timers.cancel_waiter(std::mem::replace(&mut waiter.timer, Moment::MAX), index);
        }
    }

    /// Counts more bytes of a waiting call's body, if all bytes stay within `max`. Returns false
    /// otherwise.
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

    /// Returns the next timer due, and removes it.
    pub(super) fn pop_timer(&mut self, now: Moment) -> Option<DueWork> {
        let due = self.timers.pop(now)?;
        if let DueWork::WaitOver(index) = due
            && let Some(waiter) = self.waiters.get_mut(index)
        {
            waiter.timer = Moment::MAX;
        }
        Some(due)
    }

    /// Returns the next number in the order of entering queues.
    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Records that a call enters its queue. A returning call keeps its number in the order.
    pub(super) fn enter(&mut self, index: WaiterIndex, now: Moment) {
        let next = self.sequence + 1;
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        waiter.entered = now;
        if waiter.sequence == 0 {
            waiter.sequence = next;
            self.sequence = next;
        }
    }

    /// Records that a call does not wait for its key any more.
    pub(super) fn note_passed(&mut self, index: WaiterIndex) {
        self.join_key(index, KeyList::Passed, false);
    }

    /// Adds a call to a list of its key: at the end, or before all others if `first`. Returns the
    /// key.
    pub(super) fn join_key(&mut self, index: WaiterIndex, list: KeyList, first: bool) -> Option<KeyId> {
        let waiter = self.waiters.get_mut(index)?;
        let key = waiter.call.key_id()?;
        waiter.key_list = Some(list);
        let list = self.by_key.entry(key).or_default().list(list);
        let next = list.first.filter(|_| first);
        list.insert_before(&mut self.waiters, ListKind::Key, index, next);
        Some(key)
    }

    /// Removes a call from the lists of its key.
    pub(crate) fn leave_key(&mut self, index: WaiterIndex) {
        let Some(waiter) = self.waiters.get_mut(index) else { return };
        let list = waiter.key_list.take();
        let Some((key, list)) = waiter.call.key_id().zip(list) else { return };
        let Some(calls) = self.by_key.get_mut(&key) else { return };
        calls.list(list).remove(&mut self.waiters, ListKind::Key, index);
        if calls.held.is_empty() && calls.passed.is_empty() {
            self.timers.cancel_key(key);
            self.by_key.remove(&key);
        }
    }

    /// Returns the first call waiting for a key.
    #[inline]
    pub(crate) fn first_held(&self, key: KeyId) -> Option<WaiterIndex> {
        self.by_key.get(&key)?.held.first
    }

    /// Returns the first `most` calls waiting for a key, in order.
    pub(crate) fn held(&self, key: KeyId, most: usize) -> Vec<WaiterIndex> {
        self.by_key.get(&key).map(|calls| calls.held.collect(&self.waiters, ListKind::Key, most)).unwrap_or_default()
    }

    /// Returns a key's calls in queues or with an unclaimed permit, in order. It allocates nothing
    /// if there are none.
    pub(crate) fn passed(&self, key: KeyId) -> Vec<WaiterIndex> {
        let calls = self.by_key.get(&key);
        calls.map(|calls| calls.passed.collect(&self.waiters, ListKind::Key, usize::MAX)).unwrap_or_default()
    }
}

// === impl KeyCalls ===

impl KeyCalls {
    fn list(&mut self, list: KeyList) -> &mut List {
        match list {
            KeyList::Held => &mut self.held,
            KeyList::Passed => &mut self.passed,
        }
    }
}
