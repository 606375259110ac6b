//! The settings of a section: what its gates are made of.

use std::sync::Arc;
use std::time::Duration;

use super::stores::Stores;
use crate::classify::Salt;
use crate::clients::Clients;
use crate::limit::snapshot::{FrozenLimiter, Gap};
use crate::telemetry::CallLog;
use crate::{spec, tls, upstream};

/// The settings of a section. They were checked before: nothing here can be wrong, but a socket may
/// be taken.
#[derive(Debug)]
pub struct Options {
    /// The settings as configured.
    pub gate: spec::Gate,
    /// TLS on all listeners; `None` for plain HTTP.
    pub tls: Option<Arc<tls::Listener>>,
    /// Identifies callers, where the gate asks.
    pub clients: Option<Arc<Clients>>,
    /// The upstream of the calls.
    pub upstream: upstream::Options,
    /// The log with one line per call.
    pub call_log: Option<CallLog>,
    /// The stores of its shared buckets.
    pub stores: Stores,
    /// After `stop` the gate serves on for at most this long.
    pub drain: Duration,
}

/// The memory of a gate over a restart.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// The salt of all hashes.
    pub salt: Salt,
    /// The memory of the gate before, and its age.
    pub frozen: Option<(FrozenLimiter, Gap)>,
}
