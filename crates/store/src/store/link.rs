//! The link to a store: a task with one connection for all requests at once.
//!
//! A batch has a request for each shared bucket that is due. One that is not answered in time ends
//! the connection, so that no late answer is used. The next batch connects again; when it comes is
//! up to the gates. A cluster has a connection for each node in use.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::OnAnswers;
use super::cluster::Cluster;
use super::dial::{Dialer, StoreConnection};
use super::fault::Fault;
use super::health::{HealthRecorder, StoreHealth};
use super::script::Asker;
use super::servers::Servers;
use crate::limit::{Ask, StoreFailure};
use crate::moment::Moment;
use crate::spec::{Store, StoreAddress};

/// Sends batches of requests to the task of a store; dropping it ends the task.
#[derive(Debug)]
pub(super) struct Link {
    requests: mpsc::Sender<StoreRequest>,
    dialer: Arc<Dialer>,
    recorder: Arc<HealthRecorder>,
    cluster: Option<Arc<Cluster>>,
}

/// A batch of requests, and the receiver of its answers.
struct StoreRequest {
    asks: Vec<Ask>,
    on_answers: OnAnswers,
    sent: Moment,
}

/// The task of a store, with its connection.
struct Worker {
    dialer: Arc<Dialer>,
    label: String,
    /// The nodes, if the store is a cluster.
    cluster: Option<Arc<Cluster>>,
    /// The connection, if the store is not a cluster.
    connection: Option<StoreConnection>,
    /// True if the last batch found no connection.
    is_unreached: bool,
    recorder: Arc<HealthRecorder>,
}

// === impl Link ===

impl Link {
    /// Starts the task.
    pub(super) fn start(dialer: Arc<Dialer>, label: String) -> Self {
        let (requests, receiver) = mpsc::channel(MOST);
        let recorder = Arc::new(HealthRecorder::new(Arc::clone(&dialer.store.name), dialer.clock));
        let cluster = match &dialer.store.address {
            StoreAddress::Cluster { seeds } => Some(Arc::new(Cluster::new(Arc::clone(&dialer), seeds.clone()))),
            _ => None,
        };
        let link =
            Self { requests, dialer: Arc::clone(&dialer), recorder: Arc::clone(&recorder), cluster: cluster.clone() };
        let worker = Worker { dialer, label, cluster, connection: None, is_unreached: false, recorder };
        tokio::spawn(worker.run(receiver));
        link
    }

    pub(super) fn ask(&self, asks: Vec<Ask>, on_answers: OnAnswers) {
        let request = StoreRequest { asks, on_answers, sent: self.dialer.clock.now() };
        if let Err(error) = self.requests.try_send(request) {
            error.into_inner().fail(Fault::Timeout.away());
        }
    }

    pub(super) fn store(&self) -> &Store {
        &self.dialer.store
    }

    pub(super) fn health(&self) -> StoreHealth {
        let health = self.recorder.health();
        match &self.cluster {
            Some(cluster) => StoreHealth { servers: cluster.homes(), ..health },
            None => health,
        }
    }
}

// === impl StoreRequest ===

impl StoreRequest {
    /// Answers every request of a batch with the same failure.
    fn fail(self, away: StoreFailure) {
        (self.on_answers)(vec![Err(away); self.asks.len()]);
    }
}

// === impl Worker ===

impl Worker {
    async fn run(mut self, mut requests: mpsc::Receiver<StoreRequest>) {
        while let Some(request) = self.next(&mut requests).await {
            let was_unreached = std::mem::take(&mut self.is_unreached);
            match self.connect().await {
                Ok(_) if request.asks.is_empty() => {
                    if was_unreached {
                        self.recorder.answered(&[], &[], self.dialer.clock.now() - request.sent);
                    }
                    (request.on_answers)(Vec::new());
                }
                Ok(servers) => self.send(servers, request),
                Err(fault) => {
                    self.is_unreached = true;
                    self.recorder.failed(&fault, &request.asks, self.dialer.clock.now() - request.sent);
                    request.fail(fault.away());
                    // Requests that came meanwhile would only wait for the same.
                    while let Ok(request) = requests.try_recv() {
                        request.fail(fault.away());
                    }
                }
            }
        }
    }

    /// Returns the next batch. While the store cannot be reached, an empty one comes every few
    /// seconds, so that a gate without calls notices that the store is back.
    async fn next(&self, requests: &mut mpsc::Receiver<StoreRequest>) -> Option<StoreRequest> {
        if !self.is_unreached {
            return requests.recv().await;
        }
        let next = tokio::time::timeout(REDIAL, requests.recv()).await;
        next.unwrap_or_else(|_| {
            Some(StoreRequest { asks: Vec::new(), on_answers: Box::new(drop), sent: self.dialer.clock.now() })
        })
    }

    /// Returns the connected servers, logged in with the present password.
    async fn connect(&mut self) -> Result<Servers, Fault> {
        if let Some(cluster) = &self.cluster {
            return Ok(Servers::Cluster(Arc::clone(cluster)));
        }
        let is_broken = self.recorder.take_broken();
        // A request on a connection that the server has closed would look like an outage.
        let open = self.connection.take().filter(|open| !is_broken && !open.has_ended());
        let connection = self.dialer.current(open, self.dial()).await?;
        let servers = Servers::One(connection.redis.clone());
        self.connection = Some(connection);
        Ok(servers)
    }

    async fn dial(&self) -> Result<StoreConnection, Fault> {
        let connection = self.dialer.dial().await?;
        if let (StoreAddress::Sentinel { .. }, Some(at)) = (&self.dialer.store.address, &connection.at) {
            tracing::info!(store = &*self.dialer.store.name, primary = %at, "the sentinels have named the primary");
        }
        self.recorder.connected(connection.at.clone());
        Ok(connection)
    }

    /// Sends a batch without waiting for the others.
    fn send(&self, servers: Servers, request: StoreRequest) {
        let mut timeout = self.dialer.store.timeout;
        let clock = self.dialer.clock;
        if self.cluster.is_some() {
            timeout *= STEPS; // each step has its own
        }
        let prefix = self.dialer.store.prefix.clone();
        let label = self.label.clone();
        let recorder = Arc::clone(&self.recorder);
        tokio::spawn(async move {
            let StoreRequest { asks, on_answers, sent } = request;
            let asker = Asker { prefix: &prefix, label: &label };
            let answers = tokio::time::timeout(timeout, asker.ask_all(&servers, &asks)).await;
            let answers = answers.unwrap_or_else(|_| vec![Err(Fault::Timeout); asks.len()]);
            match answers.iter().cloned().collect::<Result<Vec<_>, _>>() {
                Ok(answers) => recorder.answered(&asks, &answers, clock.now() - sent),
                Err(fault) => recorder.failed(&fault, &asks, clock.now() - sent),
            }
            on_answers(answers.into_iter().map(|answer| answer.map_err(|fault| fault.away())).collect());
        });
    }
}

/// The most connections and replies of a cluster one batch may wait for.
const STEPS: u32 = 4;
/// The interval of connection attempts while a store cannot be reached and no gate asks.
const REDIAL: Duration = Duration::from_secs(5);
/// The most waiting batches: each shared bucket has one request at a time.
const MOST: usize = 1024;
