//! The scenarios of `tidegate simulate`: controllers with changing objects, leases, and an upstream
//! that is slow or fails for a while.
//!
//! Built-in scenarios have the same form as files. A file is checked as strictly as a
//! configuration: every problem with line and column, unknown keys are problems.

mod file;
mod store;

use std::path::PathBuf;
use std::time::Duration;

#[cfg(test)]
pub(super) use self::file::schema;
pub use self::file::{load, load_text};
use crate::api::Verb;

/// A scenario: what is simulated, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The title of the picture: its subject in a few words.
    pub title: String,
    /// The simulated time.
    pub length: Duration,
    /// The seed for the random times of changes.
    pub seed: u64,
    /// The simulated API.
    pub upstream: Upstream,
    /// The simulated store of shared buckets.
    pub store: StoreModel,
    /// The simulated controllers.
    pub controllers: Vec<ControllerModel>,
    /// The leases leaders renew.
    pub leases: Vec<Lease>,
    /// The limits to simulate; empty for the default ones.
    pub limits: Vec<LimitsOf>,
}

/// The behaviour of the simulated API.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// The response time of a call when there is nothing else to do.
    pub latency: Duration,
    /// The most calls the upstream serves per second; faster calls wait inside it, and are answered
    /// with 429 past a second of that.
    pub capacity: Option<f64>,
    /// The most calls the upstream serves at a time, as with API priority and fairness. More calls
    /// wait, at most 300 of each controller, and controllers take turns.
    pub seats: Option<u32>,
    /// The times of failing calls.
    pub failures: Vec<FailureSpan>,
    /// The quota of all gates together; calls beyond it are only counted.
    pub quota: Option<UpstreamQuota>,
}

/// The quota of an account at the simulated API.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpstreamQuota {
    /// How many calls per second the quota allows.
    pub rate: f64,
    /// How many calls at once the quota allows.
    pub burst: u32,
}

/// The behaviour of the simulated store of shared buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreModel {
    /// The time from a request to its answer.
    pub rtt: Duration,
    /// The longest time a gate waits for an answer.
    pub timeout: Duration,
    /// The outages of the store.
    pub outages: Vec<Outage>,
    /// The losses of the store's data.
    pub losses: Vec<Loss>,
    /// The jumps of the store's clock.
    pub clock: Vec<ClockJump>,
}

/// An outage of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct Outage {
    /// The start of the outage.
    pub from: Duration,
    /// The end of the outage.
    pub to: Duration,
    /// The gates getting no answer, counted from one; empty for all.
    pub gates: Vec<usize>,
}

impl Outage {
    /// Returns true if the gate with this index gets no answer at `time` since the start.
    #[must_use]
    pub fn keeps_out(&self, gate: usize, time: Duration) -> bool {
        (self.gates.is_empty() || self.gates.contains(&(gate + 1))) && (self.from..self.to).contains(&time)
    }
}

/// A loss of a store's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// When the data is lost.
    pub at: Duration,
    /// How far back the state is that the store returns to; `None` if it loses everything.
    pub back: Option<Duration>,
}

/// A jump of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockJump {
    /// When the clock jumps.
    pub at: Duration,
    /// The direction and length of the jump.
    pub by: Jump,
}

/// The direction and distance of a clock's jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// The clock jumps ahead by this much.
    Ahead(Duration),
    /// The clock jumps back by this much.
    Back(Duration),
}

/// A time of failing calls.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureSpan {
    /// The start of the failures.
    pub from: Duration,
    /// The end of the failures.
    pub to: Duration,
    /// The HTTP status failing calls get.
    pub status: u16,
    /// The controllers with failing calls; empty for all of them, leases aside.
    pub controllers: Vec<String>,
    /// The fraction of the controllers' objects with failing calls.
    pub share: f64,
}

/// A simulated controller: a work queue, workers and objects.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerModel {
    /// The name in the results, and the User-Agent of its calls.
    pub name: String,
    /// The API group of the reconciled resource; empty is the core group.
    pub group: String,
    /// The resource reconciled by the controller.
    pub resource: String,
    /// The namespace of the controller's objects.
    pub namespace: String,
    /// The number of the controller's objects.
    pub objects: usize,
    /// How many objects the controller reconciles at a time; `None` for all of them.
    pub workers: Option<usize>,
    /// The index of the controller whose queue and workers this one uses; `None` for its own.
    pub workers_of: Option<usize>,
    /// The times of changes to the controller's objects.
    pub changes: Changes,
    /// The calls of a reconcile, in order.
    pub verbs: Vec<Verb>,
    /// The time of the controller's next attempt at an object after a failure.
    pub requeue: Requeue,
    /// The number of copies of the controller, each with objects of its own.
    pub replicas: usize,
    /// The gate of the first copy, counted from one; each further copy has the next. Zero: it calls
    /// the API without a gate.
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
        /// The time of the first change.
        from: Duration,
        /// The time of the last change; `None` for the end of the run.
        to: Option<Duration>,
    },
}

/// When an object is tried again after a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Requeue {
    /// The controller tries again at once, so that all waiting is left to the gate.
    AtOnce,
    /// The controller tries again after a delay, as in a work queue: `base * 2^n`, at most `max`.
    Backoff {
        /// The delay after the first failure.
        base: Duration,
        /// The longest delay.
        max: Duration,
        /// The bucket for the retries of all objects together, as in client-go's classic limiter.
        overall: Option<OverallBucket>,
    },
}

/// A bucket for the retries of all objects of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverallBucket {
    /// Tokens per second.
    pub rate: f64,
    /// The most tokens at once.
    pub burst: u32,
}

/// A lease a leader must renew.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// The name of the lease.
    pub name: String,
    /// The interval of renewals.
    pub every: Duration,
    /// How long the leader may fail to renew the lease before it gives up leading.
    pub deadline: Duration,
}

/// Limits to simulate, from a gate of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsOf {
    /// The name of the limits in the results.
    pub name: String,
    /// The configuration file.
    pub config: PathBuf,
    /// The gate in this file; `None` for the only one.
    pub gate: Option<String>,
}

impl Scenario {
    /// Returns the number of gates.
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
    /// Returns a store without faults in the same cluster.
    fn default() -> Self {
        let rtt = Duration::from_millis(1);
        let timeout = Duration::from_millis(250);
        Self { rtt, timeout, outages: Vec::new(), losses: Vec::new(), clock: Vec::new() }
    }
}

impl Default for Requeue {
    /// Returns controller-runtime's own backoff.
    fn default() -> Self {
        Self::Backoff { base: Duration::from_millis(5), max: Duration::from_secs(1000), overall: None }
    }
}
