//! The settings of one gate in the configuration (a section), from which one or several gates are
//! made.

use std::sync::Arc;
use std::time::Duration;

use super::stores::Stores;
use crate::classify::Salt;
use crate::clients::Clients;
use crate::limit::snapshot::{FrozenLimiter, Gap};
use crate::telemetry::CallLog;
use crate::{spec, tls, upstream};

/// The settings of one gate in the configuration. They are valid: only binding an address can still
/// fail.
#[derive(Clone, Debug)]
pub struct Options {
    /// The gate's settings as configured.
    pub gate: spec::Gate,
    /// TLS of all listeners; `None` for plain HTTP.
    pub tls: Option<Arc<tls::Listener>>,
    /// Authenticates callers, if the gate requires it.
    pub clients: Option<Arc<Clients>>,
    /// How to reach the upstream.
    pub upstream: upstream::Options,
    /// The log with one line per call.
    pub call_log: Option<CallLog>,
    /// Sends requests to the stores of shared buckets.
    pub stores: Stores,
    /// The longest time to continue serving after `stop`.
    pub drain: Duration,
}

/// What a gate remembered before a restart.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// The salt of all hashes, so that hashes from before the restart still match.
    pub salt: Salt,
    /// The limiter's state, and the time since it was written.
    pub frozen: Option<(FrozenLimiter, Gap)>,
}
