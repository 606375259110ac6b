//! Records the results of reloads, for metrics and the status page.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{clock::Clock, telemetry::table};

/// The result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Applied,
    Invalid,
    RestartNeeded,
    Unchanged,
}

/// The results of reloads.
#[derive(Debug)]
pub(crate) struct Reloads {
    clock: Clock,
    last: Mutex<Last>,
}

/// The configuration in force, and the last attempt to change it.
#[derive(Clone, Debug)]
pub(crate) struct Last {
    /// Twelve hexadecimal digits.
    pub(crate) hash: String,
    /// The moment it came into force, in milliseconds since 1970.
    pub(crate) since: u64,
    /// The last reload: its result, its time, and the reasons.
    pub(crate) reload: Option<(Outcome, u64, Vec<String>)>,
}

// === impl Outcome ===

impl Outcome {
    const ALL: [Self; 4] = [Self::Applied, Self::Invalid, Self::RestartNeeded, Self::Unchanged];

    /// Returns the word for it in metrics and on the status page.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Invalid => "invalid",
            Self::RestartNeeded => "restart_needed",
            Self::Unchanged => "unchanged",
        }
    }
}

// === impl Reloads ===

impl Reloads {
    /// Starts with `effective` in force.
    pub(crate) fn new(clock: Clock, effective: &str) -> Self {
        for outcome in Outcome::ALL {
            table::RELOADS.counter(&[outcome.word()]).increment(0);
        }
        let since = clock.wall(clock.now());
        let last = Last { hash: show(hash(effective), since), since, reload: None };
        Self { clock, last: Mutex::new(last) }
    }

    pub(crate) fn last(&self) -> Last {
        self.lock().clone()
    }

    /// True if the configuration that was judged last is the one in force.
    pub(crate) fn last_was_good(&self) -> bool {
        !matches!(self.lock().reload, Some((Outcome::Invalid | Outcome::RestartNeeded, ..)))
    }

    /// Records the result of a reload.
    pub(crate) fn note(&self, outcome: Outcome, why: Vec<String>) {
        table::RELOADS.counter(&[outcome.word()]).increment(1);
        self.lock().reload = Some((outcome, self.clock.wall(self.clock.now()), why));
    }

    /// Records that `effective` is in force from now on, and returns its hash.
    pub(crate) fn take_over(&self, effective: &str) -> String {
        self.note(Outcome::Applied, Vec::new());
        let since = self.clock.wall(self.clock.now());
        let hash = show(hash(effective), since);
        let mut last = self.lock();
        last.hash.clone_from(&hash);
        last.since = since;
        hash
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the gauges and returns the hash as text.
#[expect(clippy::cast_precision_loss, reason = "48 bits, and milliseconds since 1970, are exact in a double")]
fn show(hash: u64, since: u64) -> String {
    table::CONFIG_HASH.gauge(&[]).set(hash as f64);
    table::RELOADED.gauge(&[]).set(since as f64 / 1000.0);
    format!("{hash:012x}")
}

/// Returns FNV-1a, folded to the 48 bits that a metric holds exactly. It tells configurations
/// apart; it does not resist an attacker.
fn hash(text: &str) -> u64 {
    let full = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (full >> 48) ^ (full & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_configurations_have_equal_hashes_and_others_do_not() {
        let reloads = Reloads::new(Clock::start(), "rate = 5");
        let before = reloads.last();
        assert_eq!((before.hash.len(), before.reload.is_none()), (12, true));
        assert_ne!(reloads.take_over("rate = 6"), before.hash);
        assert_eq!(reloads.take_over("rate = 5"), before.hash);
    }

    #[test]
    fn what_failed_is_judged_again_when_asked() {
        let reloads = Reloads::new(Clock::start(), "");
        assert!(reloads.last_was_good());
        reloads.note(Outcome::Invalid, vec!["why".to_owned()]);
        assert!(!reloads.last_was_good());
        reloads.note(Outcome::Applied, Vec::new());
        assert!(reloads.last_was_good());
    }
}
