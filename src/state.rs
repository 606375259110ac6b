//! The memory of a process's gates, left in one small file for the process that takes its place.
//!
//! A controller that outlives its gate goes on calling, and failing, at once. Without the file, the
//! next gate would try every failing object again, call an upstream that asked for a pause, and
//! give each bucket its burst: with every crash of a loop. The file holds hashes, numbers, times,
//! and the names of gates and classes, and nothing of a call in the clear. It also holds the secret
//! of the hashes; so only the gate's own user can read it, and none is read that others could have
//! written.

mod file;
mod format;
mod stamp;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::file::{is_free, read, write};
pub use self::format::{decode, encode};
pub use self::stamp::Stamp;
use crate::limit::snapshot::FrozenLimiter;

/// The memory of a process's gates at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The moment.
    pub stamp: Stamp,
    /// True if no call was let through after it.
    pub is_last: bool,
    /// The secret of the salt under which everything was hashed.
    pub secret: [u64; 2],
    /// The gates by name.
    pub gates: BTreeMap<Arc<str>, FrozenLimiter>,
}

/// The reason why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file is something else.
    #[error("is not a state file")]
    Foreign,
    /// Another version may hash otherwise.
    #[error("was written by tidegate {0}, not by this version")]
    OtherVersion(String),
    /// It is cut off, or was changed.
    #[error("is damaged")]
    Damaged,
    /// Others could have written or read it.
    #[error("is not a regular file of this user that others can neither read nor write")]
    Unsafe,
    /// No state is so large.
    #[error("is larger than a state can be")]
    TooLarge,
    /// It cannot be read or written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

#[cfg(test)]
mod tests;
