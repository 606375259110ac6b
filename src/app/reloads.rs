//! The results of reloads, for metrics and the status page.

use std::sync::Mutex;

use crate::clock::Clock;
use crate::lock;
use crate::status::{Config, Reload};
use crate::telemetry::table;

words! {
    /// The result of a reload.
    pub(crate) enum Outcome {
        Applied = "applied",
        Invalid = "invalid",
        RestartNeeded = "restart_needed",
        Unchanged = "unchanged",
    }
}

/// The last reload, and the configuration in force.
#[derive(Debug)]
pub(crate) struct Reloads {
    clock: Clock,
    state: Mutex<ReloadState>,
}

#[derive(Debug, Default)]
struct ReloadState {
    config: Config,
    /// The text of the current configuration.
    effective: String,
}

// === impl Reloads ===

impl Reloads {
    /// Begins the record at the start of the process. `effective` is the text of the configuration.
    pub(crate) fn new(clock: Clock, effective: &str) -> Self {
        for outcome in Outcome::ALL {
            table::RELOADS.counter(&[outcome.word()]).increment(0);
        }
        let reloads = Self { clock, state: Mutex::default() };
        reloads.set(effective);
        reloads
    }

    pub(crate) fn config(&self) -> Config {
        lock(&self.state).config.clone()
    }

    /// Returns the text of the current configuration.
    pub(crate) fn effective(&self) -> String {
        lock(&self.state).effective.clone()
    }

    /// Returns true unless the last reload was rejected: because its configuration was invalid, or
    /// needs a restart.
    pub(crate) fn last_was_good(&self) -> bool {
        !self.last_was(Outcome::Invalid) && !self.last_was(Outcome::RestartNeeded)
    }

    /// Returns true if the last reload had this result.
    pub(crate) fn last_was(&self, outcome: Outcome) -> bool {
        lock(&self.state).config.last_reload.as_ref().is_some_and(|last| last.result == outcome.word())
    }

    /// Returns the reasons for the result of the last reload.
    pub(crate) fn last_reasons(&self) -> Vec<String> {
        lock(&self.state).config.last_reload.as_ref().map(|last| last.reasons.clone()).unwrap_or_default()
    }

    /// Records the result of a reload.
    pub(crate) fn record(&self, outcome: Outcome, reasons: Vec<String>) {
        table::RELOADS.counter(&[outcome.word()]).increment(1);
        let at_ms = self.clock.wall(self.clock.now());
        lock(&self.state).config.last_reload = Some(Reload { result: outcome.to_string(), at_ms, reasons });
    }

    /// Records that a new configuration has been applied, and returns its hash.
    pub(crate) fn take_over(&self, effective: &str) -> String {
        self.record(Outcome::Applied, Vec::new());
        self.set(effective)
    }

    #[expect(clippy::cast_precision_loss, reason = "48 bits, and milliseconds since 1970, are exact in a double")]
    fn set(&self, effective: &str) -> String {
        let since_ms = self.clock.wall(self.clock.now());
        let number = hash(effective);
        table::CONFIG_HASH.gauge(&[]).set(number as f64);
        table::RELOADED.gauge(&[]).set(since_ms as f64 / 1000.0);
        let hash = format!("{number:012x}");
        let mut state = lock(&self.state);
        effective.clone_into(&mut state.effective);
        state.config.hash.clone_from(&hash);
        state.config.since_ms = since_ms;
        hash
    }
}

/// Returns an FNV-1a hash of the configuration, cut to 48 bits so that a metric can hold it
/// exactly. It tells configurations apart, but an attacker could make two with the same hash.
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
        let before = reloads.config();
        assert_eq!((before.hash.len(), before.last_reload.is_none()), (12, true));
        assert_ne!(reloads.take_over("rate = 6"), before.hash);
        assert_eq!(reloads.take_over("rate = 5"), before.hash);
    }

    #[test]
    fn what_failed_is_judged_again_when_asked() {
        let reloads = Reloads::new(Clock::start(), "");
        assert!(reloads.last_was_good());
        reloads.record(Outcome::Invalid, vec!["why".to_owned()]);
        assert!(!reloads.last_was_good());
        reloads.record(Outcome::Applied, Vec::new());
        assert!(reloads.last_was_good());
    }
}
