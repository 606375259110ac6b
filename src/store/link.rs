//! The link to one store: a task with one connection, over which every question goes at once. A
//! question has something to ask for each member that is due.
//!
//! A question that is not answered in time ends the connection, so that no late answer is ever
//! used. It is dialled again with the next question; when that comes is the members' business.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use super::dial::{Connection, Dialer};
use super::fault::Fault;
use super::{Done, script};
use crate::clock::Clock;
use crate::limit::{Ask, Away};
use crate::moment::Moment;
use crate::telemetry::table;

/// The way to the task. The task ends when this is dropped.
#[derive(Debug)]
pub(super) struct Link {
    questions: mpsc::Sender<Question>,
    clock: Clock,
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
    dialer: Dialer,
    label: String,
    connection: Option<Connection>,
    health: Arc<Health>,
}

/// The last that was heard of the store.
#[derive(Debug)]
struct Health {
    store: Arc<str>,
    /// True while it does not answer, which has been logged.
    away: AtomicBool,
    /// Set by a question that failed: its connection is of no more use.
    broken: AtomicBool,
}

// === impl Link ===

impl Link {
    /// Starts the task.
    pub(super) fn start(dialer: Dialer, label: String) -> Self {
        let (questions, receiver) = mpsc::channel(MOST);
        let health = Health {
            store: Arc::clone(&dialer.store.name),
            away: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        };
        let clock = dialer.clock;
        let worker = Worker { dialer, label, connection: None, health: Arc::new(health) };
        tokio::spawn(worker.run(receiver));
        Self { questions, clock }
    }

    pub(super) fn ask(&self, asks: Vec<Ask>, done: Done) {
        let question = Question { asks, done, sent: self.clock.now() };
        if let Err(error) = self.questions.try_send(question) {
            error.into_inner().fail(Fault::Timeout.away());
        }
    }
}

// === impl Question ===

impl Question {
    /// Has the same come of all of it.
    fn fail(self, away: Away) {
        (self.done)(vec![Err(away); self.asks.len()]);
    }
}

// === impl Worker ===

impl Worker {
    async fn run(mut self, mut questions: mpsc::Receiver<Question>) {
        while let Some(question) = questions.recv().await {
            match self.connected().await {
                Ok(connection) => self.send(connection, question),
                Err(fault) => {
                    self.health.failed(&fault, self.dialer.clock.now() - question.sent);
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

    /// Returns a connection on which the server knows the password in force.
    async fn connected(&mut self) -> Result<redis::aio::MultiplexedConnection, Fault> {
        if self.health.broken.swap(false, Ordering::SeqCst) {
            self.connection = None;
        }
        if self.connection.is_none() {
            self.connection = Some(self.dialer.dial().await?);
        }
        let Some(connection) = &mut self.connection else { return Err(Fault::Timeout) };
        self.dialer.renew(connection).await?;
        Ok(connection.redis.clone())
    }

    fn failed(&mut self, fault: &Fault) {
        self.connection = None;
        if fault.is_of_password() {
            self.dialer.refused();
        }
    }

    /// Asks beside the other questions.
    fn send(&self, mut connection: redis::aio::MultiplexedConnection, question: Question) {
        let (timeout, prefix, clock) = (self.dialer.store.timeout, self.dialer.store.prefix.clone(), self.dialer.clock);
        let (label, health) = (self.label.clone(), Arc::clone(&self.health));
        tokio::spawn(async move {
            let asked = script::ask_all(&mut connection, (&question.asks, &prefix, &label));
            match tokio::time::timeout(timeout, asked).await.unwrap_or(Err(Fault::Timeout)) {
                Ok(answers) => {
                    match answers.iter().find_map(|answer| answer.as_ref().err()) {
                        None => health.answered(clock.now() - question.sent),
                        Some(fault) => health.failed(fault, clock.now() - question.sent),
                    }
                    (question.done)(answers.into_iter().map(|answer| answer.map_err(|fault| fault.away())).collect());
                }
                Err(fault) => {
                    health.failed(&fault, clock.now() - question.sent);
                    question.fail(fault.away());
                }
            }
        });
    }
}

// === impl Health ===

impl Health {
    fn answered(&self, took: Duration) {
        table::STORE_SECONDS.histogram(&[&self.store]).record(took);
        table::STORE_UP.gauge(&[&self.store]).set(1.0);
        table::STORE_ASKS.counter(&[&self.store, "ok"]).increment(1);
        if self.away.swap(false, Ordering::SeqCst) {
            tracing::info!(store = &*self.store, "the store answers again: its shared buckets are shared again");
        }
    }

    fn failed(&self, fault: &Fault, took: Duration) {
        table::STORE_SECONDS.histogram(&[&self.store]).record(took);
        self.broken.store(true, Ordering::SeqCst);
        table::STORE_UP.gauge(&[&self.store]).set(0.0);
        table::STORE_ASKS.counter(&[&self.store, fault.word()]).increment(1);
        if !self.away.swap(true, Ordering::SeqCst) {
            let why = fault.to_string();
            tracing::warn!(
                store = &*self.store,
                why,
                "the store does not answer: each gate goes on as `outage` of its shared buckets says"
            );
        }
    }
}

/// The most questions that wait for a connection: each member has one at a time.
const MOST: usize = 1024;
