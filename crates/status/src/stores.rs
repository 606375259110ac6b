//! The stores of shared buckets as data.

use serde::{Deserialize, Serialize};

use super::text::{ago, duration};

/// A store, by its last answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Its name.
    pub name: String,
    /// Its URL, without a password.
    pub address: String,
    /// Its servers: the primary, or the nodes of a cluster with buckets. Empty before the first
    /// request.
    pub servers: Vec<String>,
    /// True while it answers.
    pub up: bool,
    /// The moment of its last change; absent before the first request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// The duration of its last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_seconds: Option<f64>,
    /// The code of its last error, or a word for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

// === impl StoreStatus ===

impl StoreStatus {
    /// Describes it in a sentence.
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
