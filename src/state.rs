//! The state of a process's gates, in one small file for the process after a restart.
//!
//! After a gate has crashed and restarted, the controller's calls (and failures) continue at once.
//! Without the file, each restart would retry every failing object, ignore the upstream's pauses,
//! and fill every bucket.
//!
//! The file has hashes, numbers, times, and the names of gates and classes, but no readable part of
//! a call. It also has the secret of the hashes. So only the gate's own user can read it, and a
//! file that others could have written is rejected.

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

/// The state of all gates of a process at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessState {
    /// The moment, comparable with the time of the next process.
    pub stamp: Stamp,
    /// True if no call was sent after that moment, because the process was ending.
    pub is_last: bool,
    /// The secret used to make the hashes.
    pub secret: [u64; 2],
    /// The state of each gate to restore (such as failing keys), by the gate's name.
    #[serde(with = "format::gates")]
    pub gates: Gates,
}

/// The state of each gate, by name.
type Gates = BTreeMap<Arc<str>, FrozenLimiter>;

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file is something else.
    #[error("the file is not a state file of tidegate")]
    Foreign,
    /// The file is from another version. Its hashes of keys may differ.
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
