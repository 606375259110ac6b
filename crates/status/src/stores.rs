//! The stores of shared buckets as data.

use serde::{Deserialize, Serialize};

use super::text::{ago, duration};

/// A store, as far as its last answers tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Store {
    /// Its name.
    pub name: String,
    /// Its URL, which has no password.
    pub address: String,
    /// The servers that were asked: the primary that sentinels named, or the nodes of a cluster
    /// that have buckets. Empty until one was asked.
    pub servers: Vec<String>,
    /// True while it answers.
    pub up: bool,
    /// The moment since which that is so; absent until it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// The time that its last answer took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_seconds: Option<f64>,
    /// The code of its last error, or a word for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

// === impl Store ===

impl Store {
    /// Says in a sentence how it is.
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
