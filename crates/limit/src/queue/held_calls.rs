//! The held calls of one key: those that it holds, and those that have passed it and still wait.

use super::{By, KeyList, List, Waiters};
use crate::WaiterIndex;

/// The waiting calls of one key.
#[derive(Debug, Default)]
pub(crate) struct HeldCalls {
    /// The calls held by the key, in order.
    pub(crate) held: List,
    /// The calls past the key: in a queue, or granted and not claimed.
    pub(crate) passed: List,
}

// === impl HeldCalls ===

impl HeldCalls {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.passed.is_empty()
    }

    pub(crate) fn hold(&mut self, waiters: &mut Waiters, index: WaiterIndex, first: bool) {
        let next = self.held.first.filter(|_| first);
        self.held.insert_before(waiters, By::Key, index, next);
        if let Some(waiter) = waiters.get_mut(index) {
            waiter.key_list = Some(KeyList::Held);
        }
    }

    pub(crate) fn note_passed(&mut self, waiters: &mut Waiters, index: WaiterIndex) {
        self.passed.insert_before(waiters, By::Key, index, None);
        if let Some(waiter) = waiters.get_mut(index) {
            waiter.key_list = Some(KeyList::Passed);
        }
    }

    /// Removes a call. Does nothing if the call is in neither list.
    pub(crate) fn remove(&mut self, waiters: &mut Waiters, index: WaiterIndex) {
        match waiters.get_mut(index).and_then(|waiter| waiter.key_list.take()) {
            Some(KeyList::Held) => self.held.remove(waiters, By::Key, index),
            Some(KeyList::Passed) => self.passed.remove(waiters, By::Key, index),
            None => {}
        }
    }
}
