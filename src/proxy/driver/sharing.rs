//! Hands the limiter's questions on to the stores of shared buckets, and takes in what comes of
//! them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Done, Driver, Stores};
use crate::limit::{Ask, Away};
use crate::moment::Moment;

// === impl Driver ===

impl Driver {
    /// Connects the stores. Once, before the first call.
    pub(crate) fn share(&self, stores: Stores) {
        let is_first = self.shared.stores.set(stores).is_ok();
        debug_assert!(is_first, "a driver is connected once");
    }

    /// Takes leave of the stores, so that the gates that go on reckon with one member less. Returns
    /// when they have heard it, or after a moment.
    pub(crate) async fn take_leave(&self) {
        let (asks, sent) = self.operate(|state, now| (state.limiter.take_farewells(now), now));
        let (heard, all) = mpsc::channel::<()>(1);
        for ask in asks {
            let (heard, asked) = (heard.clone(), ask.asked);
            let shared = Arc::downgrade(&self.shared);
            let done = move |answer| {
                if let Some(shared) = shared.upgrade() {
                    Self { shared }.operate(|state, now| state.limiter.answered(asked, answer, sent, now));
                }
                drop(heard);
            };
            self.hand_on(&ask, Box::new(done));
        }
        drop(heard);
        self.until_closed(all).await;
    }

    async fn until_closed(&self, mut all: mpsc::Receiver<()>) {
        tokio::select! {
            _ = all.recv() => {}
            () = self.shared.clock.sleep(FAREWELL) => {}
        }
    }

    /// Hands on questions. Nothing waits for the answers: each is an operation of its own.
    pub(super) fn ask_stores(&self, asks: Vec<Ask>, sent: Moment) {
        for ask in asks {
            let (shared, asked) = (Arc::downgrade(&self.shared), ask.asked);
            let done = move |answer| {
                if let Some(shared) = shared.upgrade() {
                    Self { shared }.operate(|state, now| state.limiter.answered(asked, answer, sent, now));
                }
            };
            self.hand_on(&ask, Box::new(done));
        }
    }

    fn hand_on(&self, ask: &Ask, done: Done) {
        match self.shared.stores.get() {
            Some(stores) => stores.ask(ask, done),
            None => done(Err(Away::Wrong)),
        }
    }
}

/// The longest time that a gate waits at its end for stores to hear of it.
const FAREWELL: Duration = Duration::from_millis(100);
