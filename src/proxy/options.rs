//! The settings of a section: what its gates are made of.

use std::sync::Arc;
use std::time::Duration;

use crate::api::{Failures, Throttling};
use crate::classify::Rules;
use crate::limit::Policy;
use crate::spec::{Listen, RetryAfter};
use crate::telemetry::CallLog;
use crate::{tls, upstream};

/// The settings of a section. They were checked before: nothing here can be wrong, but a socket may
/// be taken.
#[derive(Debug)]
pub struct Options {
    /// The name in metrics, logs and messages.
    pub name: Arc<str>,
    /// The sockets to listen on; at least one.
    pub listen: Vec<Listen>,
    /// TLS on all of them; `None` for plain HTTP.
    pub tls: Option<Arc<tls::Listener>>,
    /// Host names to accept besides localhost and the address that the client connected to.
    pub hosts: Vec<String>,
    /// Classes, flows and keys.
    pub rules: Arc<Rules>,
    /// The limits.
    pub policy: Policy,
    /// The responses that count as failures, by class.
    pub failures: Vec<Failures>,
    /// The pauses that the upstream may ask for.
    pub throttling: Throttling,
    /// The refusals that carry Retry-After.
    pub retry_after: RetryAfter,
    /// Identical calls that wait become one.
    pub coalesce: bool,
    /// Everything is decided and counted, and everything is let through.
    pub shadow: bool,
    /// The upstream of the calls.
    pub upstream: upstream::Options,
    /// The log with one line per call.
    pub call_log: Option<CallLog>,
    /// After `stop` the gate serves on for at most this long.
    pub drain: Duration,
}
