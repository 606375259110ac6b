//! The state of a gate in a word: what is wrong comes first.

use std::cmp::Reverse;

use super::facts::MINUTE;
use super::{GateStatus, Status};

/// The greatest age of a recent event, in milliseconds.
const LATELY_MS: u64 = 60_000;

/// How serious a state is: its CSS class on the page, and its colour in the terminal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Severity {
    /// The order of severities: 0 is good, 2 is the worst.
    rank: u8,
    pub(super) class: &'static str,
    pub(super) colour: &'static str,
}

/// The state of a gate.
#[derive(Debug)]
pub(super) struct GateState {
    /// The state in a word or two.
    pub(super) word: String,
    pub(super) severity: Severity,
}

const GOOD: Severity = Severity { rank: 0, class: "good", colour: "\u{1b}[32m" };
const WARN: Severity = Severity { rank: 1, class: "warn", colour: "\u{1b}[33m" };
pub(super) const BAD: Severity = Severity { rank: 2, class: "bad", colour: "\u{1b}[31m" };

// === impl Status ===

impl Status {
    /// Returns the gates, those in the worst state first. Among gates in the same state, the
    /// busiest comes first.
    pub(super) fn worst_first(&self) -> Vec<&GateStatus> {
        let mut gates: Vec<&GateStatus> = self.gates.iter().collect();
        gates.sort_by_key(|gate| {
            let lately: u64 = gate.history.admitted.iter().rev().take(MINUTE).sum();
            Reverse((gate.state(self.now_ms).severity.rank, gate.waiting, gate.keys_failing, lately))
        });
        gates
    }
}

// === impl GateStatus ===

impl GateStatus {
    /// Returns true if connections of a group cannot be made.
    pub(super) fn is_cut_off(&self) -> bool {
        self.connections.iter().any(|group| group.down.is_some())
    }

    /// Returns the calls the upstream rejected within the last minute, by kind of rejection.
    pub(super) fn rejected_lately(&self, now_ms: u64) -> impl Iterator<Item = &super::Rejection> {
        self.rejections.iter().filter(move |rejection| now_ms.saturating_sub(rejection.at_ms) < LATELY_MS)
    }

    /// Returns why calls of healthy keys were refused within the last minute, if they were.
    /// Refusals for a failing key are the key's state, not the gate's.
    fn refuses(&self, now_ms: u64) -> Option<&str> {
        let lately = |refusal: &&super::Refusal| now_ms.saturating_sub(refusal.at_ms) < LATELY_MS;
        let mut reasons = self.refusals.iter().filter(lately).map(|refusal| refusal.reason.as_str());
        reasons.find(|reason| !matches!(*reason, "backoff" | "one_at_a_time" | "per_key" | "retry_bucket" | "trial"))
    }

    /// Returns the state of the gate in a word or two.
    pub(super) fn state(&self, now_ms: u64) -> GateState {
        let state = |word: &str, severity| GateState { word: word.to_owned(), severity };
        match self.refuses(now_ms) {
            _ if self.bypass.is_some() => state("bypassed", BAD),
            _ if self.is_cut_off() => state("cut off", BAD),
            Some(reason) => state(&format!("refusing: {reason}"), BAD),
            _ if self.rejected_lately(now_ms).any(|by| by.by == "credentials") => state("unauthorized", BAD),
            _ if self.is_shadow() => state("shadow", GOOD),
            _ if self.pauses.iter().any(|pause| pause.who == "gate") => state("paused", WARN),
            _ if self.waiting > 0 => state("holding back", WARN),
            _ if self.keys_failing > 0 => state("keys failing", WARN),
            _ if !self.hot.is_empty() => state("hot objects", WARN),
            _ => state("open", GOOD),
        }
    }
}
