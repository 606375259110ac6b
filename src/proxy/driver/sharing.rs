//! Hands the limiter's questions on to the stores of shared buckets, and takes in what comes of
//! them.

use std::sync::Arc;

use super::{Driver, Stores};
use crate::limit::{Ask, Away};
use crate::moment::Moment;

// === impl Driver ===

impl Driver {
    /// Connects the stores. Once, before the first call.
    pub(crate) fn share(&self, stores: Stores) {
        let is_first = self.shared.stores.set(stores).is_ok();
        debug_assert!(is_first, "a driver is connected once");
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
            match self.shared.stores.get() {
                Some(stores) => stores.ask(&ask, Box::new(done)),
                None => done(Err(Away::Wrong)),
            }
        }
    }
}
