//! Sends the limiter's requests to the stores of shared buckets, and applies their answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Done, Driver};
use crate::limit::Ask;
use crate::moment::Moment;

// === impl Driver ===

impl Driver {
    /// Tells the stores that the gate stops, so that other gates count one less. Returns when they
    /// have answered, or after a short time.
    pub(crate) async fn take_leave(&self) {
        let (asks, sent) = self.operate(|state, now| (state.own.limiter.take_farewells(now), now));
        let (heard, mut all) = mpsc::channel::<()>(1);
        for asks in by_store(asks) {
            self.send(asks, sent, Some(heard.clone()));
        }
        drop(heard);
        tokio::select! {
            _ = all.recv() => {}
            () = self.shared.clock.sleep(FAREWELL) => {}
        }
    }

    /// Sends requests, one batch to each store. Nothing waits for the answers: they are applied
    /// when they come.
    pub(super) fn ask_stores(&self, asks: Vec<Ask>, sent: Moment) {
        for asks in by_store(asks) {
            self.send(asks, sent, None);
        }
    }

    /// Sends one batch of requests to a store; `heard` is dropped once they are answered.
    fn send(&self, asks: Vec<Ask>, sent: Moment, heard: Option<mpsc::Sender<()>>) {
        let shared = Arc::downgrade(&self.shared);
        let asked = asks.iter().map(|ask| ask.asked).collect::<Vec<_>>();
        let done: Done = Box::new(move |answers| {
            if let Some(shared) = shared.upgrade() {
                let answers = asked.into_iter().zip(answers);
                Self { shared }.operate(|state, now| state.own.limiter.all_answered(answers, sent, now));
            }
            drop(heard);
        });
        self.shared.stores.ask(asks, done);
    }
}

/// Groups the requests by store.
fn by_store(asks: Vec<Ask>) -> impl Iterator<Item = Vec<Ask>> {
    let mut by_store = BTreeMap::<_, Vec<Ask>>::new();
    for ask in asks {
        by_store.entry(Arc::clone(&ask.shared.store)).or_default().push(ask);
    }
    by_store.into_values()
}

/// The longest wait for the stores when a gate stops.
const FAREWELL: Duration = Duration::from_millis(100);
