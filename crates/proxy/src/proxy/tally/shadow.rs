//! Counts of would-be waits and refusals in shadow mode, since the start.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use super::latency::{STEPS, quantile, step};
use crate::limit::Reason;
use crate::lock;
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

// === impl Shadow ===

impl Shadow {
    /// Counts a would-be wait.
    pub(crate) fn would_have_waited(&self, class: &str, reason: Reason, wait: Duration) {
        self.count(class, reason, |counts| counts.waited.get_mut(step(wait)).into_iter().for_each(|count| *count += 1));
    }

    /// Counts a would-be refusal.
    pub(crate) fn would_have_refused(&self, class: &str, reason: Reason) {
        self.count(class, reason, |counts| counts.refused += 1);
    }

    fn count(&self, class: &str, reason: Reason, add: impl FnOnce(&mut Counts)) {
        let mut all = lock(&self.0);
        let key = (class.to_owned(), reason);
        // Reloads may bring classes without end.
        let key = if all.len() < MOST || all.contains_key(&key) { key } else { ("others".to_owned(), reason) };
        add(all.entry(key).or_default());
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
        (0..99).for_each(|_| shadow.would_have_waited("default", Reason::Bucket, Duration::from_millis(20)));
        shadow.would_have_waited("default", Reason::Slot, Duration::from_secs(3));
        shadow.would_have_refused("default", Reason::Bucket);
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
        (0..1000).for_each(|class| shadow.would_have_refused(&format!("c{class}"), Reason::Bucket));
        let told = shadow.tell();
        assert_eq!((told.by.len(), told.calls.would_have_been_refused), (MOST + 1, 1000));
        assert_eq!((&*told.by[0].class, told.by[0].median_seconds), ("others", None));
    }
}
