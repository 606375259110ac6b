//! The last that was heard of a store, for the log, the metrics and the status.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::fault::Fault;
use crate::clock::Clock;
use crate::limit::{Ask, StoreAnswer};
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
    /// True once it was logged that a bucket has too many members.
    crowded: AtomicBool,
    heard: Mutex<Heard>,
}

/// The facts shown to people.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// The moment since which it answers, or does not.
    pub since: Option<Moment>,
    /// True if it answers.
    pub is_up: bool,
    /// The time that its last answer took.
    pub took: Option<Duration>,
    /// The code of its last error.
    pub error: Option<String>,
    /// The server of the connection; of a cluster, the nodes that have buckets.
    pub servers: Vec<Endpoint>,
}

// === impl Health ===

impl Health {
    pub(super) fn new(store: Arc<str>, clock: Clock) -> Self {
        let is_not = || AtomicBool::new(false);
        Self { store, clock, away: is_not(), broken: is_not(), crowded: is_not(), heard: Mutex::default() }
    }

    /// Notes that a question was answered.
    pub(super) fn answered(&self, asks: &[Ask], answers: &[StoreAnswer], took: Duration) {
        table::STORE_SECONDS.histogram(&[&self.store]).record(took);
        table::STORE_ASKS.counter(&[&self.store, "ok"]).increment(1);
        let was_since = self.note(true, |heard| heard.took = Some(took));
        if self.away.swap(false, Ordering::SeqCst) {
            let after = self.clock.now() - was_since;
            let calls: u64 = asks.iter().map(|ask| ask.fallback.sent).sum();
            tracing::info!(
                store = &*self.store,
                after = format!("{:.1}s", after.as_secs_f64()),
                calls,
                "the store answers again: its shared buckets are shared again"
            );
        }
        let most = asks.iter().zip(answers).max_by_key(|(_, answer)| answer.members);
        if let Some((ask, StoreAnswer { members, .. })) = most.filter(|(_, answer)| answer.members > MANY)
            && !self.crowded.swap(true, Ordering::SeqCst)
        {
            let store = &*self.store;
            let bucket = &*ask.shared.name;
            tracing::warn!(
                store,
                bucket,
                members,
                "more than {MANY} gates share a bucket: each question costs its store more"
            );
        }
    }

    /// Notes that a question was not answered.
    pub(super) fn failed(&self, fault: &Fault, asks: &[Ask], took: Duration) {
        table::STORE_SECONDS.histogram(&[&self.store]).record(took);
        self.broken.store(true, Ordering::SeqCst);
        table::STORE_ASKS.counter(&[&self.store, fault.word()]).increment(1);
        self.note(false, |heard| heard.error = Some(fault.code().to_owned()));
        if !self.away.swap(true, Ordering::SeqCst) {
            let why = fault.to_string();
            tracing::warn!(
                store = &*self.store,
                why,
                alone = go_on(asks),
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

    /// Notes if it answers. Returns the moment since when that was so that was so until now.
    fn note(&self, is_up: bool, more: impl FnOnce(&mut Heard)) -> Moment {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let was_since = heard.since.unwrap_or(now);
        if heard.is_up != is_up || heard.since.is_none() {
            (heard.is_up, heard.since) = (is_up, Some(now));
        }
        more(&mut heard);
        was_since
    }
}

/// Says at which rate each shared bucket goes on at the gate that asked: of one that is split, the
/// slowest part.
fn go_on(asks: &[Ask]) -> String {
    let mut rates = BTreeMap::<&str, f64>::new();
    for ask in asks {
        let rate = rates.entry(&ask.shared.name).or_insert(ask.fallback.rate);
        *rate = rate.min(ask.fallback.rate);
    }
    let says = |(name, rate): (&&str, &f64)| match rate {
        0.0 => format!("{name} waits"),
        rate => format!("{name} at {}/s", (rate * 1e3).round() / 1e3),
    };
    let mut all: Vec<_> = rates.iter().take(NAMED).map(says).collect();
    if let Some(more) = rates.len().checked_sub(NAMED).filter(|more| *more > 0) {
        all.push(format!("and {more} more"));
    }
    all.join(", ")
}

/// The members of a bucket beyond which its script takes a good part of a millisecond.
const MANY: u32 = 100;
/// The shared buckets that a line of the log names at most.
const NAMED: usize = 8;
