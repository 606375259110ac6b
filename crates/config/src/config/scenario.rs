//! The scenarios of `tidegate simulate`: controllers with changing objects, leases, and
//! an upstream that is slow or fails for a while.
//!
//! The same for a file and for a scenario that is built in. A file is checked as strictly as a
//! configuration: every problem with line and column, unknown keys are problems.

mod file;
mod store;

use std::path::PathBuf;
use std::time::Duration;

pub use self::file::load;
#[cfg(test)]
pub(super) use self::file::schema;
use crate::api::Verb;

/// A scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The picture's title: its subject in a few words.
    pub title: String,
    /// Its length.
    pub length: Duration,
    /// The seed of changes and their times.
    pub seed: u64,
    /// The API.
    pub upstream: Upstream,
    /// The store of shared buckets.
    pub store: StoreModel,
    /// The controllers.
    pub controllers: Vec<ControllerModel>,
    /// The leases to hold.
    pub leases: Vec<Lease>,
    /// The limits to play it under; empty: the default ones.
    pub limits: Vec<LimitsOf>,
}

/// The API as it answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// The time from call to answer when there is nothing else to do.
    pub latency: Duration,
    /// Its capacity in calls per second; faster calls wait inside it, and are answered with
    /// 429 past a second of that.
    pub capacity: Option<f64>,
    /// The calls that it serves at a time, as in priority and fairness; more wait, each controller
    /// in turn, and 300 of one at most.
    pub seats: Option<u32>,
    /// Its failures.
    pub failures: Vec<FailureSpan>,
    /// Its quota for all gates together; excess is only counted.
    pub quota: Option<UpstreamQuota>,
}

/// The quota of an account at an API.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpstreamQuota {
    /// Calls per second.
    pub rate: f64,
    /// Calls at once.
    pub burst: u32,
}

/// The store of shared buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreModel {
    /// The time from a question to its answer.
    pub rtt: Duration,
    /// A gate's longest wait for an answer.
    pub timeout: Duration,
    /// Its outages.
    pub outages: Vec<Outage>,
    /// Its losses of data.
    pub losses: Vec<Loss>,
    /// The jumps of its clock.
    pub clock: Vec<ClockJump>,
}

/// A time without answers of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct Outage {
    /// Its start.
    pub from: Duration,
    /// Its end.
    pub to: Duration,
    /// The gates without an answer, counted from one; empty: all.
    pub gates: Vec<usize>,
}

impl Outage {
    /// Returns true if the gate with this index gets no answer at `time` since the start.
    #[must_use]
    pub fn keeps_out(&self, gate: usize, time: Duration) -> bool {
        (self.gates.is_empty() || self.gates.contains(&(gate + 1))) && (self.from..self.to).contains(&time)
    }
}

/// A loss of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The moment.
    pub at: Duration,
    /// The store is what it was so long before; `None`: empty.
    pub back: Option<Duration>,
}

/// A jump of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockJump {
    /// The moment.
    pub at: Duration,
    /// The way it jumps.
    pub by: Jump,
}

/// The way a clock jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// Ahead by so much.
    Ahead(Duration),
    /// Back by so much.
    Back(Duration),
}

/// A time of failing calls.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureSpan {
    /// Its start.
    pub from: Duration,
    /// Its end.
    pub to: Duration,
    /// The status of its answers.
    pub status: u16,
    /// The controllers with failing calls; empty: all of them, leases aside.
    pub controllers: Vec<String>,
    /// The failing fraction of their objects.
    pub share: f64,
}

/// A controller: a work queue, workers and objects.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerModel {
    /// Its name in the results, and its user agent.
    pub name: String,
    /// API group of what it reconciles; empty is the core group.
    pub group: String,
    /// Resource to reconcile.
    pub resource: String,
    /// Namespace of its objects.
    pub namespace: String,
    /// The number of its objects.
    pub objects: usize,
    /// Objects reconciled at a time; `None`: as many as there are.
    pub workers: Option<usize>,
    /// The place of the controller in the list whose queue and workers it uses; `None`: its own.
    pub workers_of: Option<usize>,
    /// The changes of its objects.
    pub changes: Changes,
    /// The calls of a reconcile, in order.
    pub verbs: Vec<Verb>,
    /// The next try after a failure.
    pub requeue: Requeue,
    /// The number of its copies, each with objects of its own.
    pub replicas: usize,
    /// The gate of the first copy, counted from one; each further copy has the next. Zero: it calls
    /// the API without a gate.
    pub gate: usize,
}

/// The moments of changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Changes {
    /// All at one moment.
    Together {
        /// That moment.
        at: Duration,
    },
    /// One after the other, at random.
    Steadily {
        /// On average per second.
        rate: f64,
        /// The first.
        from: Duration,
        /// The last; `None`: to the end.
        to: Option<Duration>,
    },
}

/// The next try after a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Requeue {
    /// At once: all waiting is left to the gate.
    AtOnce,
    /// As a work queue does: `base * 2^n`, at most `max`.
    Backoff {
        /// After the first failure.
        base: Duration,
        /// Never more.
        max: Duration,
        /// The bucket of all failures together, as client-go's classic limiter has one.
        overall: Option<OverallBucket>,
    },
}

/// A bucket for the failures of all objects of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverallBucket {
    /// Tokens per second.
    pub rate: f64,
    /// Tokens at once.
    pub burst: u32,
}

/// A lease and its holder.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// Its name.
    pub name: String,
    /// It is renewed so often.
    pub every: Duration,
    /// Without a renewal for so long its holder gives up leading.
    pub deadline: Duration,
}

/// Limits from a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsOf {
    /// Their name in the results.
    pub name: String,
    /// The configuration file.
    pub config: PathBuf,
    /// The gate in it; `None`: the only one.
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
    /// A faultless one in the same cluster.
    fn default() -> Self {
        let rtt = Duration::from_millis(1);
        let timeout = Duration::from_millis(250);
        Self { rtt, timeout, outages: Vec::new(), losses: Vec::new(), clock: Vec::new() }
    }
}

impl Default for Requeue {
    /// controller-runtime's own.
    fn default() -> Self {
        Self::Backoff { base: Duration::from_millis(5), max: Duration::from_secs(1000), overall: None }
    }
}
