//! What can be asked and ordered: the operator's side of the admin port, and the words that go over it.
//!
//! Orders are JSON in the body of a POST, answers JSON, and what went wrong is a line of text with a status of 400 and above. Whoever gives
//! an order came through the control socket, which only the process's own user can open.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::status::{Explained, Status};

/// Who knows the gates: asked by the admin port and the control socket.
pub trait Operator: Send + Sync + 'static {
    /// Whether names of objects may be shown on the admin port.
    fn shows_names(&self) -> bool;

    /// What the process is doing; with names of objects or without.
    fn status(&self, names: bool) -> Status;

    /// A line for `/readyz`: what is unusual, if anything.
    fn remark(&self) -> Option<String>;

    /// What would happen to a call, at every gate that is meant.
    ///
    /// # Errors
    /// What is wrong with the question.
    fn explain(&self, ask: &Ask) -> Result<Vec<Explained>, String>;

    /// Forgets failing keys, and pauses that the upstream asked for.
    ///
    /// # Errors
    /// There is no such gate.
    fn forget(&self, order: &Forget) -> Result<Vec<Forgotten>, String>;

    /// Lets everything through for a while, or no longer.
    ///
    /// # Errors
    /// There is no such gate.
    fn bypass(&self, order: &Bypass) -> Result<Vec<Bypassed>, String>;
}

/// A call to explain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The gate; every one when absent.
    pub gate: Option<String>,
    /// Its method.
    pub method: String,
    /// Its path, and query if it has one.
    pub path: String,
    /// Its headers.
    pub headers: Vec<(String, String)>,
}

/// What to forget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Forget {
    /// The gate; every one when absent.
    pub gate: Option<String>,
    /// Failing keys by name, `*` standing for any run of characters; none when absent.
    pub keys: Option<String>,
    /// Whether pauses are lifted, too.
    pub pauses: bool,
}

/// What a gate forgot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Forgotten {
    /// The gate.
    pub gate: String,
    /// How many keys.
    pub keys: usize,
    /// How many pauses were lifted.
    pub lifted: usize,
    /// How many pauses are still in force.
    pub paused: usize,
}

/// Whether everything is to be let through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypass {
    /// The gate; every one when absent.
    pub gate: Option<String>,
    /// For so long; no longer when absent.
    pub seconds: Option<u64>,
}

/// A gate that lets everything through, or does not any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypassed {
    /// The gate.
    pub gate: String,
    /// When it ends by itself, in milliseconds since 1970.
    pub until_ms: Option<u64>,
}

// === impl Bypass ===

impl Bypass {
    /// For how long everything is let through.
    #[must_use]
    pub fn how_long(&self) -> Option<Duration> {
        self.seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST))
    }
}

/// Longer than a night: whoever wants no limits any more changes the configuration.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);
