//! Hot objects as data.

use serde::{Deserialize, Serialize};

use super::Gate;

/// An object that is called too often, or again and again in vain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HotObject {
    /// Its name; empty if names are not shown.
    pub object: String,
    /// Its kind.
    pub kind: String,
    /// What is done to it, in words that follow its name: `written 1,210 times in 10 minutes by
    /// manager/1.2, the same body each time`.
    pub says: String,
    /// The calls of the last ten minutes; of calls in vain, those in a row.
    pub calls: u64,
    /// The time in which they came.
    pub seconds: f64,
    /// The status that each call got, if they are in vain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The programs that call; empty if names are not shown.
    pub callers: Vec<String>,
    /// The moment of the first call.
    pub since_ms: u64,
    /// The moment of the last one.
    pub last_ms: u64,
}

// === impl HotObject ===

impl HotObject {
    /// Returns its name, or its kind where names are not shown.
    pub fn title(&self) -> &str {
        if self.object.is_empty() { &self.kind } else { &self.object }
    }
}

// === impl Gate ===

impl Gate {
    /// Returns sentences about the hottest objects.
    pub(super) fn hot_sentences(&self) -> impl Iterator<Item = String> {
        let more = self.hot.len().saturating_sub(TOLD);
        let more = (more > 0).then(|| format!("{more} more objects are hot."));
        self.hot.iter().take(TOLD).map(|hot| format!("{}: {}.", hot.title(), hot.says)).chain(more)
    }
}

/// The objects that have a sentence each.
const TOLD: usize = 3;
