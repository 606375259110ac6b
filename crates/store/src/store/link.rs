//! The link to one store: a task with one connection, over which every question goes at once. A
//! question has something to ask for each member that is due.
//!
//! A question that is not answered in time ends the connection, so that no late answer is ever
//! used. It is dialled again with the next question; when that comes is the members' business. To a
//! cluster there is one connection for each node in use.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::cluster::Cluster;
use super::dial::{Connection, Dialer};
use super::fault::Fault;
use super::health::{Health, Heard};
use super::servers::Servers;
use super::{Done, script};
use crate::clock::Clock;
use crate::limit::{Ask, StoreFailure};
use crate::moment::Moment;
use crate::spec::StoreAddress;

/// The way to the task. The task ends when this is dropped.
#[derive(Debug)]
pub(super) struct Link {
    questions: mpsc::Sender<Question>,
    clock: Clock,
    health: Arc<Health>,
    cluster: Option<Arc<Cluster>>,
}

/// A question, and what takes its answers.
struct Question {
    asks: Vec<Ask>,
    done: Done,
    /// The moment at which it was asked.
    sent: Moment,
}

/// The task.
struct Worker {
    dialer: Arc<Dialer>,
    label: String,
    /// The cluster, if the store is one.
    cluster: Option<Arc<Cluster>>,
    /// The connection, otherwise.
    connection: Option<Connection>,
    /// True if no connection could be made for the last question.
    is_unreached: bool,
    health: Arc<Health>,
}

// === impl Link ===

impl Link {
    /// Starts the task.
    // The task is 50 KiB, which a start without stores would touch if this were inlined.
    #[inline(never)]
    pub(super) fn start(dialer: Arc<Dialer>, label: String) -> Self {
        let (questions, receiver) = mpsc::channel(MOST);
        let clock = dialer.clock;
        let health = Arc::new(Health::new(Arc::clone(&dialer.store.name), clock));
        let cluster = match &dialer.store.address {
            StoreAddress::Cluster { seeds } => Some(Arc::new(Cluster::new(Arc::clone(&dialer), seeds.clone()))),
            _ => None,
        };
        let link = Self { questions, clock, health: Arc::clone(&health), cluster: cluster.clone() };
        let worker = Worker { dialer, label, cluster, connection: None, is_unreached: false, health };
        tokio::spawn(worker.run(receiver));
        link
    }

    pub(super) fn ask(&self, asks: Vec<Ask>, done: Done) {
        let question = Question { asks, done, sent: self.clock.now() };
        if let Err(error) = self.questions.try_send(question) {
            error.into_inner().fail(Fault::Timeout.away());
        }
    }

    /// Returns what was heard of the store.
    pub(super) fn heard(&self) -> Heard {
        let heard = self.health.heard();
        match &self.cluster {
            Some(cluster) => Heard { servers: cluster.homes(), ..heard },
            None => heard,
        }
    }
}

// === impl Question ===

impl Question {
    /// Has the same come of all of it.
    fn fail(self, away: StoreFailure) {
        (self.done)(vec![Err(away); self.asks.len()]);
    }
}

// === impl Worker ===

impl Worker {
    async fn run(mut self, mut questions: mpsc::Receiver<Question>) {
        while let Some(question) = self.next(&mut questions).await {
            let was_unreached = std::mem::take(&mut self.is_unreached);
            match self.connected().await {
                Ok(_) if question.asks.is_empty() => {
                    if was_unreached {
                        self.health.answered(&[], &[], self.dialer.clock.now() - question.sent);
                    }
                    (question.done)(Vec::new());
                }
                Ok(servers) => self.send(servers, question),
                Err(fault) => {
                    self.is_unreached = true;
                    self.health.failed(&fault, &question.asks, self.dialer.clock.now() - question.sent);
                    self.failed(&fault);
                    question.fail(fault.away());
                    // Those that came meanwhile would only wait for the same.
                    while let Ok(question) = questions.try_recv() {
                        question.fail(fault.away());
                    }
                }
            }
        }
    }

    /// Returns the next question. Where the store could not be reached and nobody has anything to
    /// ask, it is one that asks nothing: a gate without calls learns by it that the store is back.
    async fn next(&self, questions: &mut mpsc::Receiver<Question>) -> Option<Question> {
        if !self.is_unreached {
            return questions.recv().await;
        }
        let next = tokio::time::timeout(REDIAL, questions.recv()).await;
        next.unwrap_or_else(|_| {
            Some(Question { asks: Vec::new(), done: Box::new(drop), sent: self.dialer.clock.now() })
        })
    }

    /// Returns a connection on which the server knows the password in force.
    async fn connected(&mut self) -> Result<Servers, Fault> {
        if let Some(cluster) = &self.cluster {
            return Ok(Servers::Cluster(Arc::clone(cluster)));
        }
        // A question over one that the server has closed meanwhile would look like an outage.
        let has_ended = self.connection.as_ref().is_some_and(Connection::has_ended);
        if self.health.take_broken() || has_ended {
            self.connection = None;
        }
        if self.connection.is_none() {
            let connection = self.dialer.dial().await?;
            if let (StoreAddress::Sentinel { .. }, Some(at)) = (&self.dialer.store.address, &connection.at) {
                tracing::info!(store = &*self.dialer.store.name, primary = %at, "the sentinels have named the primary");
            }
            self.health.connected(connection.at.clone());
            self.connection = Some(connection);
        }
        let Some(connection) = &mut self.connection else { return Err(Fault::Timeout) };
        self.dialer.renew(connection).await?;
        Ok(Servers::One(connection.redis.clone()))
    }

    fn failed(&mut self, fault: &Fault) {
        self.connection = None;
        if fault.is_of_password() {
            self.dialer.refused();
        }
    }

    /// Asks beside the other questions.
    fn send(&self, mut servers: Servers, question: Question) {
        let mut timeout = self.dialer.store.timeout;
        let clock = self.dialer.clock;
        if self.cluster.is_some() {
            timeout *= STEPS; // each step has its own
        }
        let prefix = self.dialer.store.prefix.clone();
        let label = self.label.clone();
        let health = Arc::clone(&self.health);
        tokio::spawn(async move {
            let asked = script::ask_all(&mut servers, (&question.asks, &prefix, &label));
            match tokio::time::timeout(timeout, asked).await.unwrap_or(Err(Fault::Timeout)) {
                Ok(answers) => {
                    let asks = &question.asks;
                    let took = clock.now() - question.sent;
                    match answers.iter().cloned().collect::<Result<Vec<_>, _>>() {
                        Ok(answers) => health.answered(asks, &answers, took),
                        Err(fault) => health.failed(&fault, asks, took),
                    }
                    (question.done)(answers.into_iter().map(|answer| answer.map_err(|fault| fault.away())).collect());
                }
                Err(fault) => {
                    health.failed(&fault, &question.asks, clock.now() - question.sent);
                    question.fail(fault.away());
                }
            }
        });
    }
}

/// The connections and answers of a cluster that one question takes at most.
const STEPS: u32 = 4;
/// The time after which a store that could not be reached is dialled though nobody asks.
const REDIAL: Duration = Duration::from_secs(5);
/// The most questions that wait for a connection: each member has one at a time.
const MOST: usize = 1024;
