//! The explanation of one call.

use serde::{Deserialize, Serialize};

use super::{FailingKey, SharedBucket};

/// A gate's reading of a call, and its decision at this moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The gate.
    pub gate: String,
    /// Its class.
    pub class: String,
    /// `exempt`, `high`, `normal` or `low`.
    pub lane: String,
    /// The verb, as the gate read it.
    pub verb: String,
    /// Its flow: fairness is between flows.
    pub flow: String,
    /// Its key; absent if it has none, or if the key is in its body.
    pub key: Option<String>,
    /// Its connection group: `leases`, `short` or `long_running`.
    pub group: String,
    /// True if it holds no slot and, unless its class says otherwise, takes no token.
    pub long_running: bool,
    /// `goes`, `waits`, `refused` or `unconnected`; of a shadow, its recorded decision.
    pub now: String,
    /// True for a shadow: every call goes at once.
    pub shadow: bool,
    /// The reason of a wait or a refusal.
    pub reason: Option<String>,
    /// The least wait, or the Retry-After.
    pub seconds: f64,
    /// The decision of the gate's candidate, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Decided>,
    /// The state of its failing key.
    pub failing: Option<FailingKey>,
    /// Sentences about other conditions at the gate.
    pub notes: Vec<String>,
    /// The state of the gate's shared buckets at the other gates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedBucket>,
}

/// The decision of a candidate about a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    /// `goes`, `waits` or `refused`.
    pub now: String,
    /// The reason of a wait or a refusal; else empty.
    pub reason: String,
    /// The least wait, or the Retry-After.
    pub seconds: f64,
}
