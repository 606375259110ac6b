//! The explanation of one call: how a gate classifies it, and what would happen to it now.

use serde::{Deserialize, Serialize};

use super::{FailingKey, SharedBucket};

/// How a gate classifies a call, and what it would do with the call now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The name of the gate.
    pub gate: String,
    /// The class of the call.
    pub class: String,
    /// The priority of the class: `exempt`, `high`, `normal` or `low`.
    pub lane: String,
    /// The verb, as the gate read it.
    pub verb: String,
    /// The flow of the call. Flows of a class take turns, so that none holds up the others.
    pub flow: String,
    /// The key by which the gate remembers the call's failures; absent if the call has none, or if
    /// only its body tells.
    pub key: Option<String>,
    /// The connection group: `leases`, `short` or `long_running`.
    pub group: String,
    /// True for a call such as a watch. It does not count as in flight and, unless its class says
    /// otherwise, takes no token.
    pub long_running: bool,
    /// What would happen: `goes`, `waits`, `refused` or `unconnected`. In shadow mode every call is
    /// sent, and this would only be counted.
    pub now: String,
    /// True in shadow mode: the call would be sent at once.
    pub shadow: bool,
    /// The reason for waiting or for a refusal.
    pub reason: Option<String>,
    /// The shortest wait in seconds, or the Retry-After of a refusal.
    pub seconds: f64,
    /// What the gate's candidate would decide, if the gate has one: limits to be compared with the
    /// current ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Decided>,
    /// The failures of the call's key, if the key is failing.
    pub failing: Option<FailingKey>,
    /// Sentences about what else affects the call, such as a bypass.
    pub notes: Vec<String>,
    /// The gate's buckets shared with other gates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<SharedBucket>,
}

/// What a candidate would decide about a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    /// `goes`, `waits` or `refused`.
    pub now: String,
    /// The reason of a wait or a refusal; otherwise empty.
    pub reason: String,
    /// The least wait, or the Retry-After.
    pub seconds: f64,
}
