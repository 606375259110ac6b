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

/// Gives the status of the process and executes commands, for the admin port and the control
/// socket.
pub trait Operator: Send + Sync + 'static {
    /// Returns who may see names of objects on the admin port.
    fn show_names(&self) -> ShowNames;

    /// Returns the status of the process, with names of objects or without.
    fn status(&self, names: bool) -> BoxFuture<'_, Status>;

    /// Returns the configuration in force as TOML, without secrets.
    fn configuration(&self) -> String;

    /// Returns a remark to be added to `/readyz` if something is unusual.
    fn remark(&self) -> Option<String>;

    /// Returns the root certificate of the egress CA as PEM, if TLS is decrypted.
    fn egress_ca(&self) -> Option<String>;

    /// Explains what would happen to a call, at one gate or at all.
    ///
    /// # Errors
    /// The request is invalid.
    fn explain(&self, ask: &Ask) -> Result<Vec<Explanation>, String>;

    /// Forgets failing keys, and pauses if asked to.
    ///
    /// # Errors
    /// There is no such gate.
    fn forget<'a>(&'a self, order: &'a Forget) -> BoxFuture<'a, Result<Vec<ForgetReport>, String>>;

    /// Lets every call pass without limits for a while, or ends that.
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

/// The command to forget failing keys or pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Forget {
    /// The gate; every gate if absent.
    pub gate: Option<String>,
    /// The names of the keys to forget, with `*` for any run of characters; no keys if absent.
    pub keys: Option<String>,
    /// True to end pauses, too.
    pub pauses: bool,
    /// True to end the pauses at other gates sharing a bucket, too.
    pub shared: bool,
}

/// What a gate has forgotten.
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

/// The command to let every call pass without limits, or to limit again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypass {
    /// The gate; every gate if absent.
    pub gate: Option<String>,
    /// How long calls pass without limits; absent to limit again.
    pub seconds: Option<u64>,
}

/// Until when a gate lets every call pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BypassReport {
    /// The name of the gate.
    pub gate: String,
    /// When limits apply again, in milliseconds since 1970; absent if they apply now.
    pub until_ms: Option<u64>,
}

// === impl Bypass ===

impl Bypass {
    /// Returns how long calls pass without limits.
    pub fn how_long(&self) -> Option<Duration> {
        self.seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST))
    }
}

/// The longest time without limits: a night is shorter. To have no limits at all, change the
/// configuration.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);
