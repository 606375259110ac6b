//! The commands an operator can send to the process.
//!
//! They are JSON in the body of a POST, answers are JSON, and an error is a line of text with a
//! status of 400 or above. Every command comes through the control socket, which only the process's
//! own user can open.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::spec::ShowNames;
use crate::status::{Explanation, Status};

/// The process as seen by the admin port and the control socket: its status and its commands.
pub trait Operator: Send + Sync + 'static {
    /// Returns which clients of the admin port may see names of objects.
    fn show_names(&self) -> ShowNames;

    /// Returns the status of the process, with names of objects or without.
    fn status(&self, names: bool) -> BoxFuture<'_, Status>;

    /// Returns the current configuration as TOML, without secrets.
    fn configuration(&self) -> String;

    /// Returns a remark for the answer to `/readyz`, such as a bypass; `None` if nothing is
    /// unusual.
    fn remark(&self) -> Option<String>;

    /// Returns the root certificate of the egress CA as PEM, if TLS is decrypted.
    fn egress_ca(&self) -> Option<String>;

    /// Explains what would happen to a call, at one gate or at all.
    ///
    /// # Errors
    /// The request is invalid.
    fn explain<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Result<Vec<Explanation>, String>>;

    /// Forgets failing keys, and ends pauses if the command asks for it.
    ///
    /// # Errors
    /// There is no such gate.
    fn forget<'a>(&'a self, order: &'a Forget) -> BoxFuture<'a, Result<Vec<ForgetReport>, String>>;

    /// Lets every call pass without limits for a time, or puts the limits in force again.
    ///
    /// # Errors
    /// There is no such gate.
    fn bypass(&self, order: &Bypass) -> Result<Vec<BypassReport>, String>;
}

/// A call to be explained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The gate; every gate if absent.
    pub gate: Option<String>,
    /// The HTTP method of the call.
    pub method: String,
    /// The path of the call, with its query.
    pub path: String,
    /// The headers of the call.
    pub headers: Vec<(String, String)>,
}

/// The command to forget failing keys, to end pauses, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Forget {
    /// The gate; every gate if absent.
    pub gate: Option<String>,
    /// The names of the failing keys to forget, where `*` stands for any characters; if absent,
    /// none is forgotten.
    pub keys: Option<String>,
    /// True to end pauses, too.
    pub pauses: bool,
    /// True to end the pauses also at the other gates that share a bucket.
    pub shared: bool,
}

/// The counts of keys forgotten and pauses ended at one gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForgetReport {
    /// The name of the gate.
    pub gate: String,
    /// The number of keys forgotten.
    pub keys: usize,
    /// The number of pauses ended.
    pub lifted: usize,
    /// The number of pauses still in force.
    pub paused: usize,
}

/// The command to begin or end a bypass: every call passes without limits for a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypass {
    /// The gate; every gate if absent.
    pub gate: Option<String>,
    /// The length of the bypass in seconds; absent to put the limits in force again.
    pub seconds: Option<u64>,
}

/// The end of one gate's bypass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BypassReport {
    /// The name of the gate.
    pub gate: String,
    /// When the limits apply again, in milliseconds since 1970; absent if they apply now.
    pub until_ms: Option<u64>,
}

// === impl Bypass ===

impl Bypass {
    /// Returns how long calls pass without limits.
    pub fn how_long(&self) -> Option<Duration> {
        self.seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST))
    }
}

/// The longest time without limits: more than a night. To have none at all, change the
/// configuration.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);
