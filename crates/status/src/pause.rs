//! The reason for a pause, in words, and the users of a quota.

use serde::{Deserialize, Serialize};

use super::text::meaning;
use super::{Class, GateStatus, Pause};

/// A program, and its share of the calls to a quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QuotaSpender {
    /// Its user agent.
    pub caller: String,
    /// Its part of this gate's calls since the last reset, from 0 to 1.
    pub part: f64,
}

// === impl Pause ===

impl Pause {
    /// Returns the reason for the pause: the upstream asked for it, or it saves the rest of its
    /// quota.
    pub fn because(&self) -> String {
        match (self.left, self.limit) {
            (Some(left), Some(limit)) => kept(left, limit),
            _ if self.from == "shared" => "the upstream asked another gate for it".to_owned(),
            _ => "the upstream asked for it".to_owned(),
        }
    }
}

// === impl Class ===

impl Class {
    /// Returns true if the class had no calls.
    pub(super) fn is_idle(&self) -> bool {
        self.calls == 0 && self.waiting == 0 && self.slots.used == 0
    }
}

// === impl GateStatus ===

impl GateStatus {
    /// Returns what a reason for waiting means at this gate, as part of a sentence.
    pub(super) fn meaning(&self, reason: &str) -> &'static str {
        let keeps = !self.pauses.is_empty() && self.pauses.iter().all(|pause| pause.left.is_some());
        if reason == "pause" && keeps { KEEPS } else { meaning(reason) }
    }
}

/// Describes how much of a quota is left and saved for other users.
pub fn kept(left: u64, limit: u64) -> String {
    format!("{left} of {limit} left; `signals.reserve` keeps them")
}

const KEEPS: &str = "signals.reserve keeps what is left of the upstream's quota";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_not_blamed_on_the_upstream() {
        let pause = Pause { left: Some(6), limit: Some(60), ..Pause::default() };
        assert_eq!(pause.because(), "6 of 60 left; `signals.reserve` keeps them");
        assert_eq!(Pause::default().because(), "the upstream asked for it");
        let mut gate = GateStatus { pauses: vec![pause], admitted: 1, ..GateStatus::default() };
        assert_eq!(gate.meaning("pause"), KEEPS);
        let says = gate.summary(0).join(" ");
        assert!(says.contains("6 of 60 left") && !says.contains("asked"), "{says}");
        gate.pauses.push(Pause::default());
        assert_eq!(gate.meaning("pause"), meaning("pause"), "the upstream asked for one of them");
    }
}
