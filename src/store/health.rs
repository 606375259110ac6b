//! The last that was heard of a store, for the log, the metrics and the status.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::fault::Fault;
use crate::clock::Clock;
use crate::moment::Moment;
use crate::spec::Endpoint;
use crate::telemetry::table;

/// The health of a store.
#[derive(Debug)]
pub(super) struct Health {
    store: Arc<str>,
    clock: Clock,
    /// True while it does not answer, which has been logged.
    away: AtomicBool,
    /// Set by a question that failed: its connection is of no more use.
    broken: AtomicBool,
    heard: Mutex<Heard>,
}

/// The facts shown to people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    /// The moment since which it answers, or does not.
    pub(crate) since: Option<Moment>,
    pub(crate) is_up: bool,
    /// The time that its last answer took.
    pub(crate) took: Option<Duration>,
    /// The code of its last error.
    pub(crate) error: Option<String>,
    /// The server of the connection; of a cluster, the nodes that have buckets.
    pub(crate) servers: Vec<Endpoint>,
}

// === impl Health ===

impl Health {
    pub(super) fn new(store: Arc<str>, clock: Clock) -> Self {
        Self { store, clock, away: false.into(), broken: false.into(), heard: Mutex::default() }
    }

    pub(super) fn answered(&self, took: Duration) {
        table::STORE_SECONDS.histogram(&[&self.store]).record(took);
        table::STORE_UP.gauge(&[&self.store]).set(1.0);
        table::STORE_ASKS.counter(&[&self.store, "ok"]).increment(1);
        self.note(true, |heard| heard.took = Some(took));
        if self.away.swap(false, Ordering::SeqCst) {
            tracing::info!(store = &*self.store, "the store answers again: its shared buckets are shared again");
        }
    }

    pub(super) fn failed(&self, fault: &Fault, took: Duration) {
        table::STORE_SECONDS.histogram(&[&self.store]).record(took);
        self.broken.store(true, Ordering::SeqCst);
        table::STORE_UP.gauge(&[&self.store]).set(0.0);
        table::STORE_ASKS.counter(&[&self.store, fault.word()]).increment(1);
        self.note(false, |heard| heard.error = Some(fault.code().to_owned()));
        if !self.away.swap(true, Ordering::SeqCst) {
            let why = fault.to_string();
            tracing::warn!(
                store = &*self.store,
                why,
                "the store does not answer: each gate goes on as `outage` of its shared buckets says"
            );
        }
    }

    /// Notes the server of a new connection.
    pub(super) fn connected(&self, server: Option<Endpoint>) {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).servers = server.into_iter().collect();
    }

    /// True once after a question has failed.
    pub(super) fn take_broken(&self) -> bool {
        self.broken.swap(false, Ordering::SeqCst)
    }

    pub(super) fn heard(&self) -> Heard {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, is_up: bool, more: impl FnOnce(&mut Heard)) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.is_up != is_up || heard.since.is_none() {
            (heard.is_up, heard.since) = (is_up, Some(self.clock.now()));
        }
        more(&mut heard);
    }
}
