//! The operator's side of the admin port: the questions, the orders, and their types.
//!
//! Orders are JSON in the body of a POST, answers are JSON, and an error is a line of text with a
//! status of 400 or above. Every order comes through the control socket, which only the process's
//! own user can open.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::spec::ShowNames;
use crate::status::{Explained, Status};

/// The part of the process that knows the gates; the admin port and the control socket ask it.
pub trait Operator: Send + Sync + 'static {
    /// Returns the readers who see names of objects on the admin port.
    fn show_names(&self) -> ShowNames;

    /// Returns the status of the process, with names of objects or without.
    fn status(&self, names: bool) -> BoxFuture<'_, Status>;

    /// Returns the configuration in force as TOML, without secrets.
    fn configuration(&self) -> String;

    /// Returns a line for `/readyz` about anything unusual.
    fn remark(&self) -> Option<String>;

    /// Returns the root that clients of the egress listener are to trust, as PEM, if TLS is opened.
    fn egress_ca(&self) -> Option<String>;

    /// Explains what would happen to a call, at every gate in question.
    ///
    /// # Errors
    /// The question is invalid, for the reason given.
    fn explain(&self, ask: &Ask) -> Result<Vec<Explained>, String>;

    /// Forgets failing keys, and pauses that the upstream asked for.
    ///
    /// # Errors
    /// There is no such gate.
    fn forget<'a>(&'a self, order: &'a Forget) -> BoxFuture<'a, Result<Vec<Forgotten>, String>>;

    /// Admits everything for a while, or ends that.
    ///
    /// # Errors
    /// There is no such gate.
    fn bypass(&self, order: &Bypass) -> Result<Vec<Bypassed>, String>;
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
    /// True if pauses are lifted, too.
    pub pauses: bool,
    /// True if they are lifted for every gate that shares the bucket that they concern.
    pub shared: bool,
}

/// The keys and pauses that a gate forgot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Forgotten {
    /// The gate.
    pub gate: String,
    /// The number of keys.
    pub keys: usize,
    /// The number of pauses that were lifted.
    pub lifted: usize,
    /// The number of pauses that are still in force.
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

/// A gate that admits everything, or no longer does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypassed {
    /// The gate.
    pub gate: String,
    /// The moment at which it ends by itself, in milliseconds since 1970.
    pub until_ms: Option<u64>,
}

// === impl Bypass ===

impl Bypass {
    /// Returns the duration for which everything is admitted.
    pub fn how_long(&self) -> Option<Duration> {
        self.seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST))
    }
}

/// The longest bypass, longer than a night: a user who wants no limits at all changes the
/// configuration.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);
