//! The gates made from a configured gate, one for each host or cluster. Each is made at the first
//! call, and dropped when it is not used for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::gate::Gate;
use crate::clock::Clock;
use crate::lock;
use crate::moment::Moment;

/// The gates made so far, by host or cluster.
pub(super) struct Siblings<K> {
    clock: Clock,
    known: Mutex<BTreeMap<K, Sibling>>,
    /// Adds a number of calls that had the same decision to the metrics.
    count: Box<Counter<K>>,
}

type Counter<K> = dyn Fn(&K, &'static str, u64) + Send + Sync;

/// A gate made for a host or cluster.
struct Sibling {
    gate: Arc<Gate>,
    /// The version of the settings that it was made from.
    version: u64,
    used: Moment,
    /// The numbers of sent and refused calls already added to the metrics.
    counted: (u64, u64),
}

// === impl Siblings ===

impl<K: Ord + Clone> Siblings<K> {
    /// Starts without a gate. `count` adds calls to the metrics.
    pub(super) fn new(clock: Clock, count: impl Fn(&K, &'static str, u64) + Send + Sync + 'static) -> Self {
        Self { clock, known: Mutex::default(), count: Box::new(count) }
    }

    /// Returns the gate for a host or cluster. If there is none of this version, `make` makes it; it
    /// gets the gate of another version, whose place the new one takes.
    ///
    /// At most `most` gates exist. If none can be dropped for a new one, `crowded` makes the error.
    pub(super) fn meet<E>(
        &self,
        at: &K,
        version: u64,
        most: usize,
        crowded: impl FnOnce(usize) -> E,
        make: impl FnOnce(Option<&Gate>) -> Result<Gate, E>,
    ) -> Result<Arc<Gate>, E> {
        let mut known = lock(&self.known);
        if let Some(gate) = self.used(&mut known, at, version) {
            return Ok(gate);
        }
        if known.len() >= most && !known.contains_key(at) && !self.drop_oldest(&mut known) {
            return Err(crowded(known.len()));
        }
        let gate = Arc::new(make(known.get(at).map(|sibling| &*sibling.gate))?);
        let sibling = Sibling { gate: Arc::clone(&gate), version, used: self.clock.now(), counted: (0, 0) };
        if let Some(mut before) = known.insert(at.clone(), sibling) {
            self.add(at, &mut before);
        }
        Ok(gate)
    }

    /// Returns the gate of this version for a host or cluster, if there is one.
    pub(super) fn find(&self, at: &K, version: u64) -> Option<Arc<Gate>> {
        self.used(&mut lock(&self.known), at, version)
    }

    fn used(&self, known: &mut BTreeMap<K, Sibling>, at: &K, version: u64) -> Option<Arc<Gate>> {
        let sibling = known.get_mut(at).filter(|sibling| sibling.version == version)?;
        sibling.used = self.clock.now();
        Some(Arc::clone(&sibling.gate))
    }

    /// Drops the idle gate that has not been used for longest. Returns false if no gate is idle.
    fn drop_oldest(&self, known: &mut BTreeMap<K, Sibling>) -> bool {
        let idle = known.iter().filter(|(_, sibling)| sibling.is_idle()).min_by_key(|(_, sibling)| sibling.used);
        let Some(at) = idle.map(|(at, _)| at.clone()) else { return false };
        if let Some(mut gone) = known.remove(&at) {
            self.add(&at, &mut gone);
        }
        true
    }

    /// Drops all idle gates not used for this time.
    pub(super) fn tidy(&self, idle: Duration) {
        let now = self.clock.now();
        lock(&self.known).retain(|at, sibling| {
            let goes = now - sibling.used >= idle && sibling.is_idle();
            if goes {
                self.add(at, sibling);
            }
            !goes
        });
    }

    /// Adds the calls since the last time to the metrics; run just before the metrics are read.
    pub(super) fn sample(&self) {
        lock(&self.known).iter_mut().for_each(|(at, sibling)| self.add(at, sibling));
    }

    fn add(&self, at: &K, sibling: &mut Sibling) {
        let now = sibling.gate.own().tally.counts();
        for (decision, now, before) in [("go", now.0, sibling.counted.0), ("refuse", now.1, sibling.counted.1)] {
            (self.count)(at, decision, now.saturating_sub(before));
        }
        sibling.counted = now;
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
    /// Returns true if no call holds the gate, and it remembers nothing.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.gate) == 1 && self.gate.is_quiet()
    }
}
