//! The scenarios of `tidegate simulate`: controllers with changing objects, leases, and an upstream
//! that is slow or fails for a while.
//!
//! Built-in scenarios have the same form as files. Unknown keys are problems.

mod file;

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use self::file::ControllerFile;
pub use self::file::{load, load_text};
use crate::api::Verb;

/// A scenario for `tidegate simulate`: what is simulated, and for how long.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// The title of the chart: its subject in a few words.
    pub title: String,
    /// The simulated length of time.
    #[serde(deserialize_with = "file::time")]
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
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Upstream {
    /// The response time of the API while it is idle.
    #[serde(deserialize_with = "file::time")]
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
    pub quota: Option<UpstreamQuota>,
}

/// The quota of an account at the simulated API.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamQuota {
    /// How many calls per second the quota allows.
    pub rate: f64,
    /// The largest number of calls at once within the quota.
    #[serde(default = "file::one")]
    pub burst: u32,
}

/// The behaviour of the simulated store of shared buckets.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreModel {
    /// The round-trip time from a gate's request to the store's reply.
    #[serde(deserialize_with = "file::time")]
    pub rtt: Duration,
    /// The server's time for a request; it takes one after another.
    #[serde(deserialize_with = "file::time")]
    pub cost: Duration,
    /// The longest time a gate waits for an answer.
    #[serde(deserialize_with = "file::time")]
    pub timeout: Duration,
    /// The periods without replies from the store.
    pub outages: Vec<Outage>,
}

/// A period without replies from a store.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// The start of the outage.
    #[serde(default, deserialize_with = "file::time")]
    pub from: Duration,
    /// The end of the outage.
    #[serde(deserialize_with = "file::time")]
    pub to: Duration,
}

/// A period of failing calls.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FailureSpan {
    /// The start of the failures.
    #[serde(deserialize_with = "file::time")]
    pub from: Duration,
    /// The end of the failures.
    #[serde(deserialize_with = "file::time")]
    pub to: Duration,
    /// The HTTP status of the failed responses.
    pub status: u16,
    /// The controllers with failing calls; empty for all controllers. Leases are not affected.
    pub controllers: Vec<String>,
    /// The fraction of the controllers' objects with failing calls.
    pub share: f64,
}

/// A simulated controller: a work queue, workers and objects.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "ControllerFile")]
pub struct ControllerModel {
    /// The name in the results, and the User-Agent of its calls.
    pub name: String,
    /// The API group of the reconciled resource; empty is the core group.
    pub group: String,
    /// The resource reconciled by the controller.
    pub resource: String,
    /// The namespace of the controller's objects.
    pub namespace: String,
    /// The number of objects of each copy of the controller.
    pub objects: usize,
    /// How many objects the controller reconciles at a time; `None` for all of them.
    pub workers: Option<usize>,
    /// The name of a controller above, to use its queue and workers; `None` for its own.
    pub workers_of: Option<String>,
    /// When the controller's objects change.
    pub changes: Changes,
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

/// When objects change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Changes {
    /// All objects change at one moment.
    Together {
        /// The moment of the changes.
        at: Duration,
    },
    /// Objects change one after the other, at random times.
    Steadily {
        /// The average number of changes per second.
        rate: f64,
        /// When the changes begin.
        from: Duration,
        /// When the changes end; `None` for the end of the run.
        to: Option<Duration>,
    },
}

/// When an object is tried again after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "expected \"at_once\" or a table such as { base = \"5ms\", max = \"1000s\" }"
)]
pub enum Requeue {
    /// At once: the controller has no backoff, and all waiting happens in the gate.
    #[serde(deserialize_with = "file::at_once")]
    AtOnce,
    /// The controller tries again after a delay, as in a work queue: `base * 2^n`, at most `max`.
    Backoff {
        /// The delay after the first failure.
        #[serde(default = "file::requeue_base", deserialize_with = "file::time")]
        base: Duration,
        /// The longest delay.
        #[serde(default = "file::requeue_max", deserialize_with = "file::time")]
        max: Duration,
        /// The bucket for the retries of all objects together, if there is one, as in client-go's
        /// classic limiter.
        overall: Option<OverallBucket>,
    },
}

/// A token bucket for the retries of all objects of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverallBucket {
    /// Tokens per second.
    pub rate: f64,
    /// The most tokens at once.
    #[serde(default = "file::hundred")]
    pub burst: u32,
}

/// A lease to be renewed by a leader.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lease {
    /// The name of the lease.
    pub name: String,
    /// The interval of renewals.
    #[serde(deserialize_with = "file::time")]
    pub every: Duration,
    /// How long the leader may fail to renew the lease before it loses the leadership.
    #[serde(deserialize_with = "file::time")]
    pub deadline: Duration,
}

/// Limits to simulate, taken from a gate of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsOf {
    /// The name of the limits in the results.
    #[serde(default)]
    pub name: String,
    /// The configuration file.
    pub config: PathBuf,
    /// The gate in this file; `None` if the file has only one.
    pub gate: Option<String>,
}

impl Scenario {
    /// Returns the number of gates in the scenario.
    pub fn gates(&self) -> usize {
        let gated = self.controllers.iter().filter(|one| one.gate > 0);
        gated.map(|one| one.gate + one.replicas - 1).max().unwrap_or(1)
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            title: String::new(),
            length: Duration::from_secs(60),
            seed: 1,
            upstream: Upstream::default(),
            store: StoreModel::default(),
            controllers: Vec::new(),
            leases: Vec::new(),
            limits: Vec::new(),
        }
    }
}

impl Default for FailureSpan {
    fn default() -> Self {
        Self { from: Duration::ZERO, to: Duration::MAX, status: 503, controllers: Vec::new(), share: 1.0 }
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self { name: "leader".to_owned(), every: Self::EVERY, deadline: Self::DEADLINE }
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
        Self::Backoff { base: file::requeue_base(), max: file::requeue_max(), overall: None }
    }
}
