//! The link to a store, with one connection for all requests at once.
//!
//! A batch has a request for each shared bucket with one due. If a batch is not answered in time,
//! the connection is closed, so that no late answer is used. The next batch of a gate connects
//! again. A cluster has a connection for each node in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use super::OnAnswers;
use super::dial::Dialer;
use super::fault::Fault;
use super::health::{HealthRecorder, StoreHealth};
use super::script::Asker;
use super::servers::Servers;
use crate::limit::{Ask, StoreAnswer, StoreFailure};
use crate::spec::{Store, StoreAddress};

/// Sends batches of requests to a store.
#[derive(Debug)]
pub(super) struct Link {
    session: Arc<StoreSession>,
    /// Redials an unreachable store, to notice its return even without requests.
    _redialling: AbortOnDropHandle<()>,
}

/// A store with its connections.
#[derive(Debug)]
struct StoreSession {
    dialer: Arc<Dialer>,
    label: String,
    servers: Servers,
    recorder: HealthRecorder,
    /// Set if the last batch found no connection.
    is_unreached: AtomicBool,
}

// === impl Link ===

impl Link {
    pub(super) fn start(dialer: Arc<Dialer>, label: String) -> Self {
        let recorder = HealthRecorder::new(Arc::clone(&dialer.store.name), dialer.clock);
        let servers = Servers::of(&dialer);
        let session = Arc::new(StoreSession { dialer, label, servers, recorder, is_unreached: AtomicBool::new(false) });
        let redialling = tokio::spawn(Arc::clone(&session).redial());
        Self { session, _redialling: AbortOnDropHandle::new(redialling) }
    }

    /// Sends a batch without waiting for the others. An empty one connects.
    pub(super) fn ask(&self, asks: Vec<Ask>, on_answers: OnAnswers) {
        let session = Arc::clone(&self.session);
        tokio::spawn(async move { on_answers(session.ask(&asks).await) });
    }

    pub(super) fn store(&self) -> &Store {
        &self.session.dialer.store
    }

    pub(super) fn health(&self) -> StoreHealth {
        StoreHealth { servers: self.session.servers.at(), ..self.session.recorder.health() }
    }
}

// === impl StoreSession ===

impl StoreSession {
    async fn ask(&self, asks: &[Ask]) -> Vec<Result<StoreAnswer, StoreFailure>> {
        let sent = self.dialer.clock.now();
        let took = || self.dialer.clock.now() - sent;
        let connected = self.servers.connect().await;
        let was_unreached = self.is_unreached.swap(connected.is_err(), Ordering::SeqCst);
        let answers = match connected {
            Ok(()) if asks.is_empty() && !was_unreached => return Vec::new(),
            Ok(()) => self.answers(asks).await,
            Err(fault) => {
                self.recorder.failed(&fault, asks, took());
                return vec![Err(fault.away()); asks.len()];
            }
        };
        match answers.iter().cloned().collect::<Result<Vec<_>, _>>() {
            Ok(answers) => self.recorder.answered(asks, &answers, took()),
            Err(fault) => {
                self.servers.break_off();
                self.recorder.failed(&fault, asks, took());
            }
        }
        answers.into_iter().map(|answer| answer.map_err(|fault| fault.away())).collect()
    }

    async fn answers(&self, asks: &[Ask]) -> Vec<Result<StoreAnswer, Fault>> {
        let Store { address, prefix, timeout, .. } = &self.dialer.store;
        let steps = if matches!(address, StoreAddress::Cluster { .. }) { STEPS } else { 1 };
        let asker = Asker { prefix, label: &self.label };
        let answers = tokio::time::timeout(*timeout * steps, asker.ask_all(&self.servers, asks)).await;
        answers.unwrap_or_else(|_| vec![Err(Fault::Timeout); asks.len()])
    }

    /// Connects every few seconds while the store cannot be reached, and keeps the passwords fresh.
    async fn redial(self: Arc<Self>) {
        loop {
            self.dialer.clock.sleep(REDIAL).await;
            self.dialer.keep_passwords_fresh();
            if self.is_unreached.load(Ordering::SeqCst) {
                self.ask(&[]).await;
            }
        }
    }
}

/// The most connections and replies of a cluster one batch may wait for, each with its own timeout.
const STEPS: u32 = 4;
/// The interval of connection attempts while a store cannot be reached.
const REDIAL: Duration = Duration::from_secs(5);
