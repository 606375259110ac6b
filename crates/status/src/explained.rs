//! The explanation of one call: how a gate reads it, and what would happen.

use serde::{Deserialize, Serialize};

use super::{FailingKey, SharedBucket};

/// How a gate reads a call, and what it would do with the call now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The name of the gate.
    pub gate: String,
    /// The class of the call.
    pub class: String,
    /// The rank of the class: `exempt`, `high`, `normal` or `low`.
    pub lane: String,
    /// The verb, as the gate read it.
    pub verb: String,
    /// The flow of the call; flows take turns.
    pub flow: String,
    /// The key for remembering its failures; absent if there is none, or if it is in the
    /// body.
    pub key: Option<String>,
    /// The connection group: `leases`, `short` or `long_running`.
    pub group: String,
    /// True if the call does not count as in flight and, unless its class says otherwise, takes no
    /// token.
    pub long_running: bool,
    /// What would happen: `goes`, `waits`, `refused` or `unconnected`; in shadow mode what would be
    /// counted.
    pub now: String,
    /// True in shadow mode: every call goes at once.
    pub shadow: bool,
    /// The reason for waiting or for a refusal.
    pub reason: Option<String>,
    /// The shortest possible wait, or the Retry-After.
    pub seconds: f64,
    /// The decision of the gate's candidate, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Decided>,
    /// The state of its failing key.
    pub failing: Option<FailingKey>,
    /// Sentences about what else would affect the call.
    pub notes: Vec<String>,
    /// The buckets the gate shares with others, as far as the call needs them.
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
