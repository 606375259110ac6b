//! The stores of shared buckets, as data.

use serde::{Deserialize, Serialize};

use super::text::{ago, duration};

/// The state of a store of shared buckets, as its last answers show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// The name of the store.
    pub name: String,
    /// The URL of the store, without a password.
    pub address: String,
    /// The servers of the store: its primary, or those nodes of a cluster that have buckets. Empty
    /// before the first request.
    pub servers: Vec<String>,
    /// True while the store answers.
    pub up: bool,
    /// When the store began to answer, or ceased to; absent before the first request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// The duration of the store's last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_seconds: Option<f64>,
    /// The code of the store's last error, or a word for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

// === impl StoreStatus ===

impl StoreStatus {
    /// Describes the store in a sentence.
    pub(super) fn summary(&self, now_ms: u64) -> String {
        let at = if self.servers.is_empty() { String::new() } else { format!(" ({})", self.servers.join(", ")) };
        let error = self.error.as_deref().unwrap_or("unknown");
        match self.since_ms {
            None => "has not been asked yet".to_owned(),
            Some(_) if self.up => format!("answers in {}{at}", duration(self.rtt_seconds.unwrap_or_default())),
            Some(since_ms) => format!("went away {}: {error}{at}; gates go on alone", ago(since_ms, now_ms)),
        }
    }
}
