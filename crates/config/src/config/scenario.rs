//! The scenarios of `tidegate simulate`: controllers with changing objects, leases, and an upstream
//! that is slow or fails for a while.
//!
//! Built-in scenarios have the same form as files. Unknown keys are problems.

mod file;

use std::path::PathBuf;
use std::time::Duration;

pub use self::file::{load, load_text};
use crate::api::Verb;

/// A scenario for `tidegate simulate`: what is simulated, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The title of the chart: its subject in a few words.
    pub title: String,
    /// The simulated length of time.
    pub length: Duration,
    /// The seed for the random times of changes.
    pub seed: u64,
    /// The simulated API.
    pub upstream: Upstream,
    /// The simulated store of shared buckets.
    pub store: StoreModel,
    /// The simulated controllers.
    pub controllers: Vec<ControllerModel>,
    /// The leases of the scenario.
    pub leases: Vec<Lease>,
    /// The limits to compare; the default limits if empty.
    pub limits: Vec<LimitsOf>,
}

/// The behaviour of the simulated API.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// The response time of the API while it is idle.
    pub latency: Duration,
    /// The most calls the API serves per second. Further calls wait inside it for at most a second,
    /// and beyond that get a response 429.
    pub capacity: Option<f64>,
    /// The most calls the API serves at a time, as with API priority and fairness. Further calls
    /// wait, at most 300 of each controller, and controllers take turns.
    pub seats: Option<u32>,
    /// The periods of failing calls.
    pub failures: Vec<FailureSpan>,
    /// The quota for all gates together; calls beyond it are counted, but do not fail.
    pub quota: Option<OverallBucket>,
}

/// The behaviour of the simulated store of shared buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreModel {
    /// The round-trip time from a gate's request to the store's reply.
    pub rtt: Duration,
    /// The server's time for a request; it takes one after another.
    pub cost: Duration,
    /// The longest time a gate waits for an answer.
    pub timeout: Duration,
    /// The periods without replies from the store.
    pub outages: Vec<Outage>,
}

/// A period without replies from a store.
#[derive(Clone, Debug, PartialEq)]
pub struct Outage {
    /// The start of the outage.
    pub from: Duration,
    /// The end of the outage.
    pub to: Duration,
}

/// A period of failing calls.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureSpan {
    /// The start of the failures.
    pub from: Duration,
    /// The end of the failures.
    pub to: Duration,
    /// The HTTP status of the failed responses.
    pub status: u16,
    /// The controllers with failing calls; empty for all controllers. Leases are not affected.
    pub controllers: Vec<String>,
    /// The fraction of the controllers' objects with failing calls.
    pub share: f64,
}

/// A simulated controller: a work queue, workers and objects.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerModel {
    /// The name in the results, and the User-Agent of its calls; the resource if it is empty.
    pub name: String,
    /// The API group of the reconciled resource; empty is the core group.
    pub group: String,
    /// The resource reconciled by the controller. A file has its group after a dot.
    pub resource: String,
    /// The namespace of the controller's objects.
    pub namespace: String,
    /// The number of objects of each copy of the controller.
    pub objects: usize,
    /// How many objects the controller reconciles at a time; 0 for all of them.
    pub workers: usize,
    /// The name of a controller above, to use its queue and workers; `None` for its own.
    pub workers_of: Option<String>,
    /// The average number of changes per second, at random times; `None` if all objects change at
    /// one moment, `from`.
    pub changes: Option<f64>,
    /// When the changes begin.
    pub from: Duration,
    /// When the changes end; `None` for the end of the run.
    pub to: Option<Duration>,
    /// The calls of a reconcile, in order.
    pub verbs: Vec<Verb>,
    /// When the controller tries an object again after a failure.
    pub requeue: Requeue,
    /// The number of copies of the controller, each with objects of its own.
    pub replicas: usize,
    /// The gate of the first copy, counted from one; each further copy uses the next gate. Zero
    /// means that the controller calls the API without a gate.
    pub gate: usize,
}

/// When an object is tried again after a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Requeue {
    /// At once: the controller has no backoff, and all waiting happens in the gate.
    AtOnce,
    /// The controller tries again after a delay, as in a work queue: `base * 2^n`, at most `max`.
    Backoff {
        /// The delay after the first failure.
        base: Duration,
        /// The longest delay.
        max: Duration,
        /// The bucket for the retries of all objects together, if there is one, as in client-go's
        /// classic limiter.
        overall: Option<OverallBucket>,
    },
}

/// A token bucket for the retries of all objects of a queue, or for the calls of all gates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverallBucket {
    /// Tokens per second.
    pub rate: f64,
    /// The most tokens at once.
    pub burst: u32,
}

/// A lease to be renewed by a leader.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// The name of the lease.
    pub name: String,
    /// The interval of renewals.
    pub every: Duration,
    /// How long the leader may fail to renew the lease before it loses the leadership.
    pub deadline: Duration,
}

/// Limits to simulate, taken from a gate of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsOf {
    /// The name of the limits in the results.
    pub name: String,
    /// The configuration file.
    pub config: PathBuf,
    /// The gate in this file; `None` if the file has only one.
    pub gate: Option<String>,
}

impl Lease {
    /// The default interval of lease renewals: client-go's retry period.
    pub const EVERY: Duration = Duration::from_secs(2);
    /// The default deadline of a lease: client-go's renew deadline.
    pub const DEADLINE: Duration = Duration::from_secs(10);
}

impl Scenario {
    /// Returns the number of gates in the scenario.
    pub fn gates(&self) -> usize {
        let gated = self.controllers.iter().filter(|one| one.gate > 0);
        gated.map(|one| one.gate + one.replicas - 1).max().unwrap_or(1)
    }
}

impl Default for Upstream {
    fn default() -> Self {
        Self { latency: Duration::from_millis(20), capacity: None, seats: None, failures: Vec::new(), quota: None }
    }
}

impl Default for StoreModel {
    /// Returns a store in the same cluster, without failures.
    fn default() -> Self {
        let rtt = Duration::from_millis(1);
        Self { rtt, cost: Duration::ZERO, timeout: Duration::from_millis(250), outages: Vec::new() }
    }
}

impl Default for Requeue {
    /// Returns controller-runtime's own backoff.
    fn default() -> Self {
        Self::Backoff { base: Duration::from_millis(5), max: Duration::from_secs(1000), overall: None }
    }
}
