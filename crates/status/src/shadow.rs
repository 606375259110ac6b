//! What limits in shadow mode would have done. They apply to a gate or to some of its classes, and
//! only count.

use serde::{Deserialize, Serialize};

use super::text::{count, duration};
use super::{Fact, GateStatus};

/// What the limits would have done since the start, if they were enforced. In shadow mode all calls
/// are sent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shadow {
    /// The counts of all calls together.
    #[serde(flatten)]
    pub calls: ShadowCalls,
    /// The counts by class and reason, most calls first.
    pub by: Vec<ShadowCalls>,
}

/// What the limits would have done to some calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShadowCalls {
    /// The class of the calls; left out in the sum of all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub class: String,
    /// The reason of the waits and refusals: one of the reasons of refusals; left out in the sum of
    /// all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The number of calls that would have waited and been sent by now.
    pub would_have_waited: u64,
    /// The median of the calls' waits; absent if there are none.
    pub median_seconds: Option<f64>,
    /// The 99th percentile of the calls' waits; absent if there are none.
    pub p99_seconds: Option<f64>,
    /// The number of calls that would have been refused.
    pub would_have_been_refused: u64,
}

/// The comparison of the current limits with those of a candidate, for the same calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The start of the comparison. It begins anew when the current limits or the candidate's
    /// change.
    pub since_ms: u64,
    /// The number of calls compared.
    pub calls: u64,
    /// What the current limits did; in shadow mode, what they would have done.
    pub in_force: Shadow,
    /// What the candidate's limits would have done.
    pub candidate: Shadow,
}

// === impl Shadow ===

impl Shadow {
    /// Describes the waits and refusals in a sentence.
    fn says(&self) -> String {
        let ShadowCalls { would_have_waited, median_seconds, p99_seconds, would_have_been_refused, .. } = &self.calls;
        let times = median_seconds
            .zip(*p99_seconds)
            .map(|(median, p99)| format!(" (p50 {}, p99 {})", duration(median), duration(p99)));
        format!(
            "nothing is held. {} would have waited{}, {} would have been refused",
            count(*would_have_waited, "call", "calls"),
            times.unwrap_or_default(),
            count(*would_have_been_refused, "call", "calls"),
        )
    }
}

// === impl GateStatus ===

impl GateStatus {
    /// Returns true if every class is in shadow mode.
    pub fn is_shadow(&self) -> bool {
        self.shadow.is_some() && self.classes.iter().all(|class| class.shadow)
    }

    /// Describes the decisions of the shadow.
    pub(super) fn shadow_fact(&self) -> Option<Fact> {
        let says = self.shadow.as_ref()?.says();
        if self.is_shadow() {
            let remedy = format!("when that is what you want, set gates.{}.shadow = false and restart", self.name);
            return Some(Fact::note(format!("Shadow: {says}"), remedy));
        }
        let names: Vec<&str> = self.classes.iter().filter(|class| class.shadow).map(|class| &*class.name).collect();
        let remedy = "when that is what you want, set shadow = false in these classes";
        Some(Fact::note(format!("Shadow of {}: {says}", names.join(", ")), remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shadow_is_told_with_what_it_would_have_done() {
        assert_eq!(
            Shadow::default().says(),
            "nothing is held. 0 calls would have waited, 0 calls would have been refused"
        );
        let calls = ShadowCalls {
            would_have_waited: 144,
            median_seconds: Some(0.047),
            p99_seconds: Some(2.0),
            would_have_been_refused: 1,
            ..ShadowCalls::default()
        };
        assert_eq!(
            Shadow { calls, by: Vec::new() }.says(),
            "nothing is held. 144 calls would have waited (p50 47 ms, p99 2.0 s), 1 call would have been refused"
        );
    }
}
