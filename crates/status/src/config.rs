//! The current configuration, as data.

use serde::{Deserialize, Serialize};

/// The current configuration of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The hash of the effective configuration: twelve hexadecimal digits, equal if the
    /// configuration is equal.
    pub hash: String,
    /// The time when the configuration came into force.
    pub since_ms: u64,
    /// The last attempt to change the configuration.
    pub last_reload: Option<Reload>,
}

/// An attempt to change the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reload {
    /// The result: `applied`, `unchanged`, `invalid` or `restart_needed`; with the last two nothing
    /// was changed.
    pub result: String,
    /// The time of the attempt.
    pub at_ms: u64,
    /// The reasons why the configuration was not applied.
    pub reasons: Vec<String>,
}
