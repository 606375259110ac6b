//! What `tidegate simulate` plays: controllers with objects that change, leases, and an upstream that is slow or fails for a while.
//!
//! The same for a file and for a scenario that is built in. A file is checked as strictly as a configuration: every problem with line and
//! column, unknown keys are problems.

mod file;

use std::{path::PathBuf, time::Duration};

pub use self::file::load;
#[cfg(test)]
pub(super) use self::file::schema;
use crate::api::Verb;

/// What is played.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What it is about, in a few words: the picture's title.
    pub title: String,
    /// How long it lasts.
    pub length: Duration,
    /// Which objects change, and when.
    pub seed: u64,
    /// The API.
    pub upstream: Upstream,
    /// Who makes calls.
    pub controllers: Vec<Controller>,
    /// Who must not lose a lease.
    pub leases: Vec<Lease>,
    /// Under which limits; empty: the default ones.
    pub limits: Vec<LimitsOf>,
}

/// The API as it answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// From call to answer when there is nothing else to do.
    pub latency: Duration,
    /// Calls per second that it can serve; what comes faster waits inside it, and is answered with 429 past a second of that.
    pub capacity: Option<f64>,
    /// When it fails.
    pub failures: Vec<Failure>,
}

/// A stretch of time in which calls fail.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Its start.
    pub from: Duration,
    /// Its end.
    pub to: Duration,
    /// What is answered.
    pub status: u16,
    /// Whose calls fail; empty: everybody's, leases aside.
    pub controllers: Vec<String>,
    /// How many of their objects fail, as a fraction.
    pub share: f64,
}

/// A controller: a work queue, workers and objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Controller {
    /// Its name in the results, and its user agent.
    pub name: String,
    /// API group of what it reconciles; empty is the core group.
    pub group: String,
    /// Resource that it reconciles.
    pub resource: String,
    /// Namespace of its objects.
    pub namespace: String,
    /// How many objects.
    pub objects: usize,
    /// Objects that it reconciles at a time; `None`: as many as there are.
    pub workers: Option<usize>,
    /// When objects change.
    pub changes: Changes,
    /// The calls that a reconcile makes, in order.
    pub verbs: Vec<Verb>,
    /// When an object that failed is tried again.
    pub requeue: Requeue,
}

/// When objects change.
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

/// When an object that failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// At once: all waiting is left to the gate.
    AtOnce,
    /// As a work queue does: `base * 2^n`, at most `max`.
    Backoff {
        /// After the first failure.
        base: Duration,
        /// Never more.
        max: Duration,
    },
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

/// Limits by the configuration that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsOf {
    /// Their name in the results.
    pub name: String,
    /// The configuration file.
    pub config: PathBuf,
    /// The gate in it; `None`: the only one.
    pub gate: Option<String>,
}

impl Default for Upstream {
    fn default() -> Self {
        Self { latency: Duration::from_millis(20), capacity: None, failures: Vec::new() }
    }
}

impl Default for Requeue {
    /// controller-runtime's own.
    fn default() -> Self {
        Self::Backoff { base: Duration::from_millis(5), max: Duration::from_secs(1000) }
    }
}
