//! Counts of would-be waits and refusals in shadow mode, since the start.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::latency::{STEPS, quantile, step};
use crate::clock::Clock;
use crate::limit::Reason;
use crate::lock;
use crate::moment::Moment;
use crate::status::{self, ShadowCalls};

/// The counts of would-be waits and refusals, by class and reason.
#[derive(Debug, Default)]
pub(crate) struct Shadow(Mutex<BTreeMap<(String, Reason), Counts>>);

#[derive(Clone, Debug)]
struct Counts {
    refused: u64,
    /// The would-be waits: a count for each step of waiting time, as in [`super::latency`].
    waited: [u64; STEPS],
}

/// The comparison of a gate's own limits with a candidate's, for the same calls.
#[derive(Debug)]
pub(crate) struct Comparison {
    since: Moment,
    pub(crate) calls: AtomicU64,
    pub(super) in_force: Shadow,
    pub(crate) candidate: Shadow,
}

// === impl Comparison ===

impl Comparison {
    pub(crate) fn new(since: Moment) -> Self {
        Self { since, calls: AtomicU64::new(0), in_force: Shadow::default(), candidate: Shadow::default() }
    }

    /// Returns the comparison for the status.
    pub(crate) fn tell(&self, clock: Clock) -> status::Candidate {
        status::Candidate {
            since_ms: clock.wall(self.since),
            calls: self.calls.load(Relaxed),
            in_force: self.in_force.tell(),
            candidate: self.candidate.tell(),
        }
    }
}

// === impl Shadow ===

impl Shadow {
    /// Counts a would-be wait, or a would-be refusal if `wait` is `None`.
    pub(crate) fn count(&self, class: &str, reason: Reason, wait: Option<Duration>) {
        let mut all = lock(&self.0);
        let key = (class.to_owned(), reason);
        // Reloads may bring classes without end.
        let key = if all.len() < MOST || all.contains_key(&key) { key } else { ("others".to_owned(), reason) };
        let counts = all.entry(key).or_default();
        let count = wait.map_or(Some(&mut counts.refused), |wait| counts.waited.get_mut(step(wait)));
        count.into_iter().for_each(|count| *count += 1);
    }

    /// Returns the counts for the status.
    pub(crate) fn tell(&self) -> status::Shadow {
        let mut total = Counts::default();
        let mut by = Vec::new();
        for ((class, reason), counts) in &*lock(&self.0) {
            total.add(counts);
            by.push(counts.tell(class, reason.word()));
        }
        by.sort_by_key(|calls| Reverse(calls.would_have_waited + calls.would_have_been_refused));
        status::Shadow { calls: total.tell("", ""), by }
    }
}

// === impl Counts ===

impl Counts {
    fn add(&mut self, other: &Self) {
        self.refused += other.refused;
        self.waited.iter_mut().zip(&other.waited).for_each(|(sum, count)| *sum += count);
    }

    fn tell(&self, class: &str, reason: &str) -> ShadowCalls {
        ShadowCalls {
            class: class.to_owned(),
            reason: reason.to_owned(),
            would_have_waited: self.waited.iter().sum(),
            median_seconds: quantile(&self.waited, 50),
            p99_seconds: quantile(&self.waited, 99),
            would_have_been_refused: self.refused,
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self { refused: 0, waited: [0; STEPS] }
    }
}

/// The most pairs of class and reason to count.
const MOST: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_class_and_reason() {
        let shadow = Shadow::default();
        (0..99).for_each(|_| shadow.count("default", Reason::Bucket, Some(Duration::from_millis(20))));
        shadow.count("default", Reason::Slot, Some(Duration::from_secs(3)));
        shadow.count("default", Reason::Bucket, None);
        let told = shadow.tell();
        let near = |found: Option<f64>, wanted: f64| found.is_some_and(|found| (wanted..wanted * 1.2).contains(&found));
        assert_eq!((told.calls.would_have_waited, told.calls.would_have_been_refused), (100, 1));
        assert!(near(told.calls.median_seconds, 0.02) && near(told.calls.p99_seconds, 0.02), "{told:?}");
        let by: Vec<_> = told.by.iter().map(|by| (&*by.reason, by.would_have_waited)).collect();
        assert_eq!(by, [("bucket", 99), ("slot", 1)]);
        assert!(near(told.by[1].p99_seconds, 3.0), "{told:?}");
    }

    #[test]
    fn classes_of_many_reloads_share_a_row() {
        let shadow = Shadow::default();
        (0..1000).for_each(|class| shadow.count(&format!("c{class}"), Reason::Bucket, None));
        let told = shadow.tell();
        assert_eq!((told.by.len(), told.calls.would_have_been_refused), (MOST + 1, 1000));
        assert_eq!((&*told.by[0].class, told.by[0].median_seconds), ("others", None));
    }
}
