//! The gates made from a configured gate, one for each host or cluster. Each is made at the first
//! call, and dropped when it is not used for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::gate::Gate;
use super::tally::CallCounters;
use crate::clock::Clock;
use crate::lock;
use crate::moment::Moment;
use crate::telemetry::meters::{LabelCap, RESOURCES};
use crate::telemetry::table::Metric;

/// The gates made so far, by host or cluster.
pub(super) struct Siblings<K> {
    clock: Clock,
    known: Mutex<BTreeMap<K, Sibling>>,
    /// Bounds the number of names used as metric labels.
    labels: LabelCap,
}

/// A gate made for a host or cluster.
struct Sibling {
    gate: Arc<Gate>,
    /// The version of the settings that it was made from.
    version: u64,
    used: Moment,
}

// === impl Siblings ===

impl<K: Ord + Clone> Siblings<K> {
    /// Starts without a gate.
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, known: Mutex::default(), labels: LabelCap::new(RESOURCES) }
    }

    /// Returns the gate for a host or cluster. If there is none, `make` makes it.
    ///
    /// At most `most` gates exist. If none can be dropped for a new one, `crowded` makes the error.
    pub(super) fn meet<E>(
        &self,
        at: &K,
        most: usize,
        crowded: impl FnOnce(usize) -> E,
        make: impl FnOnce() -> Result<Gate, E>,
    ) -> Result<Arc<Gate>, E> {
        let mut known = lock(&self.known);
        if let Some(sibling) = known.get_mut(at) {
            return Ok(sibling.used(self.clock.now()));
        }
        if known.len() >= most && !drop_oldest(&mut known) {
            return Err(crowded(known.len()));
        }
        Ok(self.add(&mut known, at, 0, make()?))
    }

    /// Returns the counters of the calls to a host or cluster of a configured gate.
    pub(super) fn counters(&self, metric: &Metric, gate: &str, name: &str) -> CallCounters {
        let counter = |decision| metric.counter(&[gate, self.labels.value(name), decision]);
        CallCounters { sent: counter("go"), refused: counter("refuse") }
    }

    /// Adds a gate of this version, in the place of another version.
    pub(super) fn put(&self, at: &K, version: u64, gate: Gate) -> Arc<Gate> {
        self.add(&mut lock(&self.known), at, version, gate)
    }

    fn add(&self, known: &mut BTreeMap<K, Sibling>, at: &K, version: u64, gate: Gate) -> Arc<Gate> {
        let gate = Arc::new(gate);
        known.insert(at.clone(), Sibling { gate: Arc::clone(&gate), version, used: self.clock.now() });
        gate
    }

    /// Returns the gate of this version for a host or cluster, if there is one.
    pub(super) fn find(&self, at: &K, version: u64) -> Option<Arc<Gate>> {
        let mut known = lock(&self.known);
        let sibling = known.get_mut(at).filter(|sibling| sibling.version == version)?;
        Some(sibling.used(self.clock.now()))
    }

    /// Returns the gate of any version for a host or cluster, if there is one.
    pub(super) fn of(&self, at: &K) -> Option<Arc<Gate>> {
        lock(&self.known).get(at).map(|sibling| Arc::clone(&sibling.gate))
    }

    /// Drops all idle gates not used for this time.
    pub(super) fn tidy(&self, idle: Duration) {
        let now = self.clock.now();
        lock(&self.known).retain(|_, sibling| now - sibling.used < idle || !sibling.is_idle());
    }

    /// Returns all gates.
    pub(super) fn all(&self) -> Vec<(K, Arc<Gate>)> {
        lock(&self.known).iter().map(|(at, sibling)| (at.clone(), Arc::clone(&sibling.gate))).collect()
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.known).len()
    }
}

// === impl Sibling ===

impl Sibling {
    /// Returns the gate, which is used now.
    fn used(&mut self, now: Moment) -> Arc<Gate> {
        self.used = now;
        Arc::clone(&self.gate)
    }

    /// Returns true if no call holds the gate, and it remembers nothing.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.gate) == 1 && self.gate.is_quiet()
    }
}

/// Drops the idle gate that has not been used for longest. Returns false if no gate is idle.
fn drop_oldest<K: Ord + Clone>(known: &mut BTreeMap<K, Sibling>) -> bool {
    let idle = known.iter().filter(|(_, sibling)| sibling.is_idle()).min_by_key(|(_, sibling)| sibling.used);
    let oldest = idle.map(|(at, _)| at.clone());
    oldest.and_then(|at| known.remove(&at)).is_some()
}
