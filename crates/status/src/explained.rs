//! What a gate says of one call.

use serde::{Deserialize, Serialize};

use super::{Key, Shared};

/// A call as a gate sees it, and what would happen to it now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explained {
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
    /// The key for which its failure would be remembered; absent if there is none, or if only its
    /// body says.
    pub key: Option<String>,
    /// The connections that it would use: `leases`, `short` or `long_running`.
    pub group: String,
    /// True if it holds no slot and, unless its class says otherwise, takes no token.
    pub long_running: bool,
    /// `goes`, `waits`, `refused` or `unconnected`; at a shadow, what would be so without it.
    pub now: String,
    /// True if the gate is only a shadow, where every call goes at once.
    #[serde(default)]
    pub shadow: bool,
    /// The reason why it would wait or be refused.
    pub reason: Option<String>,
    /// The least time that it would wait, or the time that it would be told to stay away.
    pub seconds: f64,
    /// The state of its key, if that fails.
    pub failing: Option<Key>,
    /// Sentences about other conditions at the gate that concern the call.
    pub notes: Vec<String>,
    /// The state of the gate's shared buckets at the other gates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<Shared>,
}
