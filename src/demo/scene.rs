//! The numbers of the demo: objects, the capacity of the API, and when it fails.

use std::ops::Range;
use std::time::Duration;

use crate::moment::Moment;

/// A kind of object, with its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectKind {
    /// The plural name in the path.
    pub(super) resource: &'static str,
    /// True if the API's failing admission webhook checks writes of these objects.
    pub(super) guarded: bool,
}

/// The kinds of objects of a typical operator, with a controller for each. The webhook is called
/// for writes to two of them.
pub(super) const KINDS: [ObjectKind; 4] = [
    ObjectKind { resource: "buckets", guarded: true },
    ObjectKind { resource: "databases", guarded: true },
    ObjectKind { resource: "networks", guarded: false },
    ObjectKind { resource: "queues", guarded: false },
];

/// An object, identified by its kind and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectId {
    pub(super) kind: usize,
    pub(super) number: usize,
}

/// The number of objects of each kind.
pub(super) const OBJECTS: usize = 400;

/// The concurrent reconciles of a controller: a common setting of `MaxConcurrentReconciles`.
pub(super) const WORKERS: usize = 10;

/// How many objects users change per second. Each change costs its controller two calls.
pub(super) const CHANGES_PER_SECOND: u32 = 250;

/// How many calls per second the API can serve: twice what the controllers need without failures.
pub(super) const CAPACITY: u32 = 800;

/// The gate's rate in the demo: below what the API can serve, well above what the controllers need.
pub const RATE: u32 = 650;

/// The rate of the gate's retry bucket in the demo, in proportion to the failing objects.
pub(crate) const RETRY_RATE: u32 = 150;

/// The gate's burst in the demo.
pub const BURST: u32 = 50;

/// How long the API takes to serve a call.
pub(super) const SERVICE_TIME: Duration = Duration::from_millis(2);

/// The renewal interval of a lease, as in client-go's leader election.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(2);

/// The longest time without a renewal before leadership is lost, as client-go's `RenewDeadline`.
pub(super) const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// The options of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scene {
    /// The length of one run.
    pub(crate) length: Duration,
    /// The seed of the changes.
    pub(crate) seed: u64,
}

// === impl Scene ===

impl Scene {
    /// Returns the time span in which the webhook fails.
    pub(super) fn trouble(&self) -> Range<Moment> {
        Moment::ZERO + self.length.mul_f64(0.15)..Moment::ZERO + self.length.mul_f64(0.5)
    }

    /// Returns the start and the end of the webhook's failure, in seconds.
    pub(super) fn trouble_seconds(&self) -> [f64; 2] {
        [self.trouble().start, self.trouble().end].map(|moment| moment.since_start().as_secs_f64())
    }
}

// === impl ObjectId ===

impl ObjectId {
    /// Returns the object's path.
    pub(super) fn path(self) -> String {
        let Self { kind, number } = self;
        format!("/apis/demo.example.com/v1/namespaces/demo/{}/{number}", KINDS[kind].resource)
    }
}
