//! Objects called too often or in vain, as data.

use serde::{Deserialize, Serialize};

use super::{Fact, GateStatus};

/// An object called too often, or again and again in vain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotObject {
    /// The name of the object; empty if names are not shown.
    pub object: String,
    /// The kind of the object.
    pub kind: String,
    /// A description to put after the name: `written 1,210 times in 10 minutes by manager/1.2, the
    /// same body each time`.
    pub says: String,
    /// The kind of the loop, by the words of `tidegate audit`: `unchanged`, `denied`.
    #[serde(default, rename = "loop")]
    pub kind_of_loop: String,
    /// The number of calls that are remembered; with a status, in a row.
    pub calls: u64,
    /// The seconds from the first of these calls to the last.
    pub seconds: f64,
    /// The common status of all calls, if they are in vain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// True if the gate refuses calls of this object that come too soon.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enforced: bool,
    /// The programs calling the object; empty if names are not shown.
    pub callers: Vec<String>,
    /// The time of the first call.
    pub since_ms: u64,
    /// The time of the last call.
    pub last_ms: u64,
}

// === impl HotObject ===

impl HotObject {
    /// Returns the object's name, or its kind if names are not shown.
    pub fn title(&self) -> &str {
        if self.object.is_empty() { &self.kind } else { &self.object }
    }

    fn remedy(&self) -> String {
        match self.status {
            Some(401) => "renew its credentials".to_owned(),
            Some(403) => "give it the right that it lacks, or take the call out of the controller".to_owned(),
            Some(404) => "make what it looks for, or let the controller stop looking: the name may be wrong".to_owned(),
            Some(status) => format!("correct what it sends: no retry changes a {status}"),
            None if self.enforced => {
                "mend the loop in the controller; until then the gate holds the object to its pace".to_owned()
            }
            // Slower calls are within the pace of most objects.
            None if self.calls as f64 * 2.0 < self.seconds => "mend the loop in the controller".to_owned(),
            None => "mend the loop in the controller; until then per_key.enforce = true holds the object to its pace"
                .to_owned(),
        }
    }
}

// === impl GateStatus ===

impl GateStatus {
    /// Returns facts about the hottest objects.
    pub(super) fn hot_facts(&self) -> impl Iterator<Item = Fact> {
        let more = self.hot.len().saturating_sub(DESCRIBED);
        let more = (more > 0).then(|| Fact::note(format!("{more} more objects are hot"), ""));
        let fact = |hot: &HotObject| Fact::note(format!("{} is hot: {}", hot.title(), hot.says), hot.remedy());
        self.hot.iter().take(DESCRIBED).map(fact).chain(more)
    }
}

/// The number of objects described in a sentence each.
const DESCRIBED: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_objects_have_a_sentence_each_with_their_name_or_their_kind() {
        let hot = |object: &str| HotObject {
            object: object.to_owned(),
            kind: "configmaps".to_owned(),
            says: "written 1,210 times in 10 minutes".to_owned(),
            ..HotObject::default()
        };
        let mut gate = GateStatus { hot: vec![hot("configmaps default/a"), hot("")], ..GateStatus::default() };
        let says: Vec<_> = gate.hot_facts().map(|fact| fact.says).collect();
        let wanted = [
            "configmaps default/a is hot: written 1,210 times in 10 minutes",
            "configmaps is hot: written 1,210 times in 10 minutes",
        ];
        assert_eq!(says, wanted);
        assert_eq!(gate.state(0).word, "hot objects");
        gate.hot.resize(10, hot(""));
        assert_eq!(gate.hot_facts().last().map(|fact| fact.says).as_deref(), Some("7 more objects are hot"));
    }
}
