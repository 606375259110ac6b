//! The counts of all gates together, compared with the quota of the upstream.

use crate::config::scenario::OverallBucket;
use crate::moment::Moment;

/// The counts of all gates together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Together {
    /// The number of gates.
    pub gates: usize,
    /// The quota of the upstream.
    pub quota: Option<OverallBucket>,
    /// The number of calls sent by controllers; those for leases are not counted.
    pub sent: u64,
    /// The largest number of calls beyond the quota (burst and rate) in any time window.
    pub over: f64,
    /// The number of the gates' requests to the store.
    pub asks: u64,
    /// The smallest value so far of calls sent less calls allowed by the quota's rate. The busiest
    /// time window begins at that point.
    pub(super) least: f64,
}

// === impl Together ===

impl Together {
    pub(super) fn new(gates: usize, quota: Option<OverallBucket>) -> Self {
        Self { gates, quota, least: f64::MAX, ..Self::default() }
    }

    /// Records a sent call.
    pub(super) fn sent(&mut self, now: Moment) {
        if let Some(OverallBucket { rate, burst }) = self.quota {
            let ahead = self.sent as f64 - rate * now.since_start().as_secs_f64();
            self.least = self.least.min(ahead);
            self.over = self.over.max(ahead + 1.0 - self.least - f64::from(burst));
        }
        self.sent += 1;
    }
}
