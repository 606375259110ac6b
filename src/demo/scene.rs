//! What is played: how many objects, what the API can serve, and when it turns bad. Every number that the story rests on is here.

use std::time::Duration;

use crate::moment::Moment;

/// A kind of object, with its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// As in the path.
    pub(super) resource: &'static str,
    /// As in the object.
    pub(super) name: &'static str,
    /// Whether its admission webhook is the one that goes down.
    pub(super) guarded: bool,
}

/// Four controllers of a typical operator, two of them behind the webhook.
pub(super) const KINDS: [Kind; 4] = [
    Kind { resource: "buckets", name: "Bucket", guarded: true },
    Kind { resource: "databases", name: "Database", guarded: true },
    Kind { resource: "networks", name: "Network", guarded: false },
    Kind { resource: "queues", name: "Queue", guarded: false },
];

/// The API group of the objects.
pub(super) const GROUP: &str = "demo.example.com";

/// Objects of each kind.
pub(super) const OBJECTS: usize = 400;

/// Reconciles at once, per controller: a common setting of `MaxConcurrentReconciles`.
pub(super) const WORKERS: usize = 10;

/// Objects that somebody changes, per second, all through the run. Each costs its controller two calls.
pub(super) const CHANGES_PER_SECOND: u32 = 250;

/// Calls per second that the API can serve: twice what the herd needs in good weather.
pub(super) const CAPACITY: u32 = 800;

/// The gate's rate in the demo: below what the API can serve, well above what the herd needs.
pub const RATE: u32 = 650;

/// The rate of the gate's retry bucket in the demo: what failing objects may take of it.
pub const RETRY_RATE: u32 = 150;

/// The gate's burst in the demo.
pub const BURST: u32 = 50;

/// How long the API works on a call.
pub(super) const SERVICE_TIME: Duration = Duration::from_millis(2);

/// A lease is renewed this often, as client-go's leader election does.
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(2);

/// Half of the renew deadline: controller-runtime's timeout for a lease call.
pub(super) const LEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// When a run ends and when it has trouble.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scene {
    /// How long one run takes.
    pub length: Duration,
    /// Which objects change, and when.
    pub seed: u64,
}

// === impl Scene ===

impl Scene {
    /// The webhook goes down.
    #[must_use]
    pub fn trouble_from(&self) -> Moment {
        Moment::ZERO + self.length.mul_f64(0.15)
    }

    /// The webhook is back.
    #[must_use]
    pub fn trouble_to(&self) -> Moment {
        Moment::ZERO + self.length.mul_f64(0.5)
    }

    /// Whether the webhook is down.
    pub(super) fn is_trouble(&self, at: Moment) -> bool {
        at >= self.trouble_from() && at < self.trouble_to()
    }
}
