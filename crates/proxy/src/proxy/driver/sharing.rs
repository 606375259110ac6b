//! Hands the limiter's questions on to the stores of shared buckets, and takes in what comes of
//! them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Done, Driver, Stores};
use crate::limit::{Ask, StoreFailure};
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
        for asks in by_store(asks) {
            self.hand_on(asks, sent, Some(heard.clone()));
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

    /// Hands on questions, one to each store. Nothing waits for the answers: those of a question
    /// are an operation of their own.
    pub(super) fn ask_stores(&self, asks: Vec<Ask>, sent: Moment) {
        for asks in by_store(asks) {
            self.hand_on(asks, sent, None);
        }
    }

    /// Hands on one question; `heard` is dropped once it is answered.
    fn hand_on(&self, asks: Vec<Ask>, sent: Moment, heard: Option<mpsc::Sender<()>>) {
        let shared = Arc::downgrade(&self.shared);
        let asked = asks.iter().map(|ask| ask.asked).collect::<Vec<_>>();
        let done: Done = Box::new(move |answers| {
            if let Some(shared) = shared.upgrade() {
                let answers = asked.into_iter().zip(answers);
                Self { shared }.operate(|state, now| state.limiter.all_answered(answers, sent, now));
            }
            drop(heard);
        });
        match self.shared.stores.get() {
            Some(stores) => stores.ask(asks, done),
            None => done(vec![Err(StoreFailure::Wrong); asks.len()]),
        }
    }
}

/// Returns what is asked of each store.
fn by_store(mut asks: Vec<Ask>) -> impl Iterator<Item = Vec<Ask>> {
    asks.sort_by(|one, other| one.shared.store.cmp(&other.shared.store));
    let mut by_store: Vec<Vec<Ask>> = Vec::new();
    for ask in asks {
        match by_store.last_mut().filter(|asks| asks.first().is_some_and(|of| of.shared.store == ask.shared.store)) {
            Some(asks) => asks.push(ask),
            None => by_store.push(vec![ask]),
        }
    }
    by_store.into_iter()
}

/// The longest time that a gate waits at its end for stores to hear of it.
const FAREWELL: Duration = Duration::from_millis(100);
