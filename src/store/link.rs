//! The link to one store: a task with one connection, over which every question goes at once.
//!
//! A question that is not answered in time ends the connection, so that no late answer is ever
//! used. It is dialled again with the next question; when that comes is the members' business.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

use super::dial::{Connection, Dialer};
use super::fault::Fault;
use super::{Done, script};
use crate::limit::Ask;
use crate::telemetry::table;

/// The way to the task. The task ends when this is dropped.
#[derive(Debug)]
pub(super) struct Link {
    questions: mpsc::Sender<Question>,
}

/// A question, and what takes its answer.
struct Question {
    ask: Ask,
    done: Done,
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
        let worker = Worker { dialer, label, connection: None, health: Arc::new(health) };
        tokio::spawn(worker.run(receiver));
        Self { questions }
    }

    pub(super) fn ask(&self, ask: &Ask, done: Done) {
        if let Err(error) = self.questions.try_send(Question { ask: ask.clone(), done }) {
            (error.into_inner().done)(Err(Fault::Timeout.away()));
        }
    }
}

// === impl Worker ===

impl Worker {
    async fn run(mut self, mut questions: mpsc::Receiver<Question>) {
        while let Some(question) = questions.recv().await {
            match self.connected().await {
                Ok(connection) => self.send(connection, question),
                Err(fault) => {
                    self.health.failed(&fault);
                    self.failed(&fault);
                    (question.done)(Err(fault.away()));
                    // Those that came meanwhile would only wait for the same.
                    while let Ok(question) = questions.try_recv() {
                        (question.done)(Err(fault.away()));
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
        let Question { ask, done } = question;
        let (timeout, prefix) = (self.dialer.store.timeout, self.dialer.store.prefix.clone());
        let (label, health) = (self.label.clone(), Arc::clone(&self.health));
        tokio::spawn(async move {
            let asked = script::ask(&mut connection, (&ask, &prefix, &label));
            match tokio::time::timeout(timeout, asked).await.unwrap_or(Err(Fault::Timeout)) {
                Ok(answer) => {
                    health.answered();
                    done(Ok(answer));
                }
                Err(fault) => {
                    health.failed(&fault);
                    health.broken.store(true, Ordering::SeqCst);
                    done(Err(fault.away()));
                }
            }
        });
    }
}

// === impl Health ===

impl Health {
    fn answered(&self) {
        table::STORE_UP.gauge(&[&self.store]).set(1.0);
        table::STORE_ASKS.counter(&[&self.store, "ok"]).increment(1);
        if self.away.swap(false, Ordering::SeqCst) {
            tracing::info!(store = &*self.store, "the store answers again: its shared buckets are shared again");
        }
    }

    fn failed(&self, fault: &Fault) {
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
