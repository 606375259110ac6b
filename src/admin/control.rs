//! The requests and orders of an operator.
//!
//! Orders are JSON in the body of a POST, answers are JSON, and an error is a line of text with a
//! status of 400 or above. Every order comes through the control socket, which only the process's
//! own user can open.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::spec::ShowNames;
use crate::status::{Explanation, Status};

/// The gates of the process, for the admin port and the control socket.
pub trait Operator: Send + Sync + 'static {
    /// Returns if names of objects are shown on the admin port.
    fn show_names(&self) -> ShowNames;

    /// Returns the status of the process, with names of objects or without.
    fn status(&self, names: bool) -> BoxFuture<'_, Status>;

    /// Returns the configuration in force as TOML, without secrets.
    fn configuration(&self) -> String;

    /// Returns a remark for `/readyz` about an unusual condition.
    fn remark(&self) -> Option<String>;

    /// Returns the root of the egress CA as PEM, if TLS is opened.
    fn egress_ca(&self) -> Option<String>;

    /// Explains what would happen to a call, at every gate in question.
    ///
    /// # Errors
    /// The request is invalid.
    fn explain(&self, ask: &Ask) -> Result<Vec<Explanation>, String>;

    /// Forgets failing keys, and pauses.
    ///
    /// # Errors
    /// There is no such gate.
    fn forget<'a>(&'a self, order: &'a Forget) -> BoxFuture<'a, Result<Vec<ForgetReport>, String>>;

    /// Begins or ends a bypass.
    ///
    /// # Errors
    /// There is no such gate.
    fn bypass(&self, order: &Bypass) -> Result<Vec<BypassReport>, String>;
}

/// A call to explain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// The gate; every gate if absent.
    pub gate: Option<String>,
    /// Its method.
    pub method: String,
    /// Its path, and its query if it has one.
    pub path: String,
    /// Its headers.
    pub headers: Vec<(String, String)>,
}

/// An order to forget keys or pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Forget {
    /// The gate; every gate if absent.
    pub gate: Option<String>,
    /// The failing keys by name, with `*` for any run of characters; none if absent.
    pub keys: Option<String>,
    /// True to lift pauses, too.
    pub pauses: bool,
    /// True to lift them at every gate of a shared bucket.
    pub shared: bool,
}

/// The keys and pauses forgotten by a gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForgetReport {
    /// The gate.
    pub gate: String,
    /// The number of keys.
    pub keys: usize,
    /// The number of lifted pauses.
    pub lifted: usize,
    /// The number of pauses still in force.
    pub paused: usize,
}

/// An order to admit everything, or to limit again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypass {
    /// The gate; every gate if absent.
    pub gate: Option<String>,
    /// The duration of the bypass; no bypass if absent.
    pub seconds: Option<u64>,
}

/// The bypass of a gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BypassReport {
    /// The gate.
    pub gate: String,
    /// Its end, in milliseconds since 1970; absent if there is no bypass.
    pub until_ms: Option<u64>,
}

// === impl Bypass ===

impl Bypass {
    /// Returns the duration of the bypass.
    pub fn how_long(&self) -> Option<Duration> {
        self.seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST))
    }
}

/// The longest bypass: a night is shorter. To have no limits at all, change the configuration.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);
