//! client-go's work queue, as controllers use it: it has one entry per object however often it is
//! added, and never gives an object to two workers. After an error the object comes back after 5
//! ms, 10 ms, 20 ms, ... up to 1000 s, until a success forgets it.
//!
//! The state is a value that takes `now`; [`WorkQueue`] puts it behind a lock and does the waiting.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{clock::Clock, moment::Moment};

/// The first delay of the per-item part of client-go's `DefaultTypedControllerRateLimiter`, which
/// is all that controller-runtime uses since v0.23.
const BASE_DELAY: Duration = Duration::from_millis(5);
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_secs(1000);

/// An object, by its index in the informer's store.
pub(super) type Item = usize;

/// The objects that wait, and what they wait for.
#[derive(Debug, Default)]
struct State {
    /// Objects that are ready, in order.
    ready: VecDeque<Item>,
    /// Objects that were added and not yet handed out; an object in work stays here until it is
    /// done.
    dirty: HashSet<Item>,
    /// Objects that are handed out.
    working: HashSet<Item>,
    /// Objects that come back later. The earliest time per item counts.
    later: BTreeSet<(Moment, Item)>,
    due: HashMap<Item, Moment>,
    failures: HashMap<Item, u32>,
}

// === impl State ===

impl State {
    fn add(&mut self, item: Item) {
        if self.dirty.insert(item) && !self.working.contains(&item) {
            self.ready.push_back(item);
        }
    }

    fn add_after_failure(&mut self, item: Item, now: Moment) {
        let failures = self.failures.entry(item).or_insert(0);
        let delay = BASE_DELAY.saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX)).min(MAX_DELAY);
        *failures = failures.saturating_add(1);
        let due = now + delay;
        if let Some(earlier) = self.due.get(&item) {
            if *earlier <= due {
                return;
            }
            self.later.remove(&(*earlier, item));
        }
        self.later.insert((due, item));
        self.due.insert(item, due);
    }

    fn forget(&mut self, item: Item) {
        self.failures.remove(&item);
    }

    fn done(&mut self, item: Item) {
        self.working.remove(&item);
        if self.dirty.contains(&item) {
            self.ready.push_back(item);
        }
    }

    /// Returns the next item, or else the moment at which there may be one.
    fn take(&mut self, now: Moment) -> Result<Item, Option<Moment>> {
        while let Some(&(due, item)) = self.later.first()
            && due <= now
        {
            self.later.pop_first();
            self.due.remove(&item);
            self.add(item);
        }
        let Some(item) = self.ready.pop_front() else { return Err(self.later.first().map(|first| first.0)) };
        self.dirty.remove(&item);
        self.working.insert(item);
        Ok(item)
    }
}

/// The queue between an informer and its workers.
#[derive(Debug)]
pub(super) struct WorkQueue {
    state: Mutex<State>,
    changed: Notify,
    clock: Clock,
}

// === impl WorkQueue ===

impl WorkQueue {
    pub(super) fn new(clock: Clock) -> Self {
        Self { state: Mutex::default(), changed: Notify::new(), clock }
    }

    /// Adds an object that changed.
    pub(super) fn add(&self, item: Item) {
        self.state().add(item);
        self.changed.notify_one();
    }

    /// Returns the next object to work on. The caller owes a [`Self::done`].
    pub(super) async fn take(&self) -> Item {
        loop {
            let next = self.state().take(self.clock.now());
            match next {
                Ok(item) => return item,
                Err(None) => self.changed.notified().await,
                Err(Some(due)) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = self.clock.sleep_until(due) => {}
                },
            }
        }
    }

    /// Ends the work on `item`: an error brings it back after its delay, a success forgets its
    /// errors.
    pub(super) fn done(&self, item: Item, success: bool) {
        let now = self.clock.now();
        let mut state = self.state();
        if success {
            state.forget(item);
        } else {
            state.add_after_failure(item, now);
        }
        state.done(item);
        drop(state);
        self.changed.notify_one();
    }

    /// Returns the number of objects that wait for a worker, and of those that wait out a delay.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let state = self.state();
        (state.ready.len(), state.later.len())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_from_five_milliseconds_to_a_thousand_seconds() {
        let mut state = State::default();
        let mut delays = Vec::new();
        for _ in 0..40 {
            state.add_after_failure(1, Moment::ZERO);
            delays.push(state.due[&1].since_start());
            state.take(Moment::MAX).expect("it is due");
            state.done(1);
        }
        let millis: Vec<_> = delays.iter().map(Duration::as_millis).collect();
        assert_eq!(millis[..5], [5, 10, 20, 40, 80]);
        assert_eq!(millis[17], 655_360);
        assert_eq!(millis[18..], [1_000_000; 22]);
    }

    #[test]
    fn a_success_forgets() {
        let mut state = State::default();
        state.add_after_failure(1, Moment::ZERO);
        assert_eq!(state.take(Moment::from_millis(5)), Ok(1));
        state.forget(1);
        state.add_after_failure(1, Moment::ZERO);
        assert_eq!(state.take(Moment::ZERO), Err(Some(Moment::from_millis(5))));
    }

    #[test]
    fn an_object_in_work_is_not_handed_out_twice() {
        let mut state = State::default();
        state.add(7);
        state.add(7);
        assert_eq!(state.take(Moment::ZERO), Ok(7));
        state.add(7);
        assert_eq!(state.take(Moment::ZERO), Err(None));
        state.done(7);
        assert_eq!(state.take(Moment::ZERO), Ok(7));
        state.done(7);
        assert_eq!(state.take(Moment::ZERO), Err(None));
    }

    #[test]
    fn of_two_delays_the_earlier_counts() {
        let mut state = State::default();
        state.add_after_failure(1, Moment::ZERO);
        state.add_after_failure(1, Moment::ZERO);
        assert_eq!(state.take(Moment::from_millis(5)), Ok(1));
        assert_eq!(state.later.len(), 0);
    }
}
