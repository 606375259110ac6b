//! What a process's gates remember, in one small file for the next process.
//!
//! A controller that outlives its gate goes on calling, and failing, at once. Without the file,
//! each crash in a loop would retry every failing object, call an upstream that asked for a pause,
//! and fill every bucket. The file has hashes, numbers, times, and the names of gates and classes,
//! and nothing of a call in the clear. It also has the secret of the hashes. So only the gate's own
//! user can read it, and a file that others could have written is rejected.

mod file;
mod format;
mod stamp;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::file::{is_free, read, write};
pub use self::format::{decode, encode};
pub use self::stamp::Stamp;
use crate::limit::snapshot::FrozenLimiter;

/// What a process's gates remembered at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessState {
    /// The moment, by clocks the next process can read.
    pub stamp: Stamp,
    /// True if no call was let through after that moment.
    pub is_last: bool,
    /// The secret used to make the hashes.
    pub secret: [u64; 2],
    /// What to restore of each gate after a restart (such as failing keys), by the gate's name.
    #[serde(with = "format::gates")]
    pub gates: Gates,
}

/// What each gate remembers, by name.
type Gates = BTreeMap<Arc<str>, FrozenLimiter>;

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file is something else.
    #[error("the file is not a state file of tidegate")]
    Foreign,
    /// The file is from another version, whose hashes of keys may differ.
    #[error("the state file was written by tidegate {0}, and this version cannot read it")]
    OtherVersion(String),
    /// The file is cut off, or was changed.
    #[error("the state file is damaged: it was cut off or changed")]
    Damaged,
    /// Other users could have written or read the file.
    #[error("the state file is not a regular file of this user, or other users can read or write it")]
    Unsafe,
    /// The file is larger than any state.
    #[error("the state file is larger than any that tidegate writes")]
    TooLarge,
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

#[cfg(test)]
mod tests;
