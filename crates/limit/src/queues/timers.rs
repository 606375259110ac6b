//! Timers for the ends of waits and the reviews of keys, in the order of time.

use std::collections::{BTreeSet, HashMap};

use super::DueWork;
use crate::moment::Moment;
use crate::{KeyId, Spread, WaiterIndex};

/// The timers for the ends of waits and the reviews of keys, in the order of time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    keys: BTreeSet<(Moment, KeyId)>,
    /// The moment of each key with a timer.
    moments: HashMap<KeyId, Moment, Spread>,
    waiters: BTreeSet<(Moment, WaiterIndex)>,
}

// === impl Timers ===

impl Timers {
    /// Sets the moment to review the calls waiting for a key. A key has one such moment.
    pub(crate) fn set_key(&mut self, at: Moment, key: KeyId) {
        self.cancel_key(key);
        if at < Moment::MAX {
            self.keys.insert((at, key));
            self.moments.insert(key, at);
        }
    }

    pub(crate) fn cancel_key(&mut self, key: KeyId) {
        if !self.keys.is_empty()
            && let Some(at) = self.moments.remove(&key)
        {
            self.keys.remove(&(at, key));
        }
    }

    pub(crate) fn set_waiter(&mut self, at: Moment, index: WaiterIndex) {
        if at < Moment::MAX {
            self.waiters.insert((at, index));
        }
    }

    pub(crate) fn cancel_waiter(&mut self, at: Moment, index: WaiterIndex) {
        self.waiters.remove(&(at, index));
    }

    pub(crate) fn first(&self) -> Option<Moment> {
        let key = self.keys.first().map(|(at, _)| *at);
        let waiter = self.waiters.first().map(|(at, _)| *at);
        key.into_iter().chain(waiter).min()
    }

    /// Returns the next timer due, and removes it. Of several timers at the same moment, those of
    /// keys come first, so that a key lets its calls continue before their waits end.
    pub(crate) fn pop(&mut self, now: Moment) -> Option<DueWork> {
        let first = self.first().filter(|first| *first <= now)?;
        if self.keys.first().is_some_and(|(at, _)| *at == first) {
            let (_, key) = self.keys.pop_first()?;
            self.moments.remove(&key);
            return Some(DueWork::Key(key));
        }
        self.waiters.pop_first().map(|(_, index)| DueWork::WaitOver(index))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.waiters.is_empty()
    }
}
