//! The configuration of a gate: all settings a reload can change, replaced at once (P11).
//!
//! A call gets the current configuration when it arrives, and keeps it to its end: a class is a
//! number, which only the rules of its configuration explain. The limiter knows the number
//! (generation) of its configuration. A call with an older number is classified again.

use super::hosts::Hosts;
use super::options::Options;
use crate::api::Failures;
use crate::limit::ClassId;
use crate::spec;
use crate::telemetry::GateMeters;

/// The settings after one reload, and the values derived from them.
#[derive(Debug)]
pub(crate) struct GateConfig {
    /// The number of earlier reloads.
    pub(crate) generation: u64,
    /// The gate's settings. Those that only a restart can change must be read from `section`: here
    /// they may be newer than what is in force.
    pub(crate) options: Options,
    pub(crate) hosts: Hosts,
    /// The metrics of each class; they are here because a reload changes the classes.
    pub(crate) meters: GateMeters,
    /// True if the configuration limits calls in flight. If not, a call waiting for a slot only
    /// waits for a connection, and that is not shown as a limit.
    pub(crate) limits_slots: bool,
    /// True if a class is in shadow mode.
    pub(crate) has_shadow: bool,
    /// True if a class is in shadow mode or the gate has a candidate.
    pub(crate) has_twin: bool,
}

// === impl GateConfig ===

impl GateConfig {
    pub(crate) fn new(options: Options, generation: u64, meters: GateMeters) -> Self {
        let spec::Gate { policy, access, .. } = &options.gate;
        let limits_slots = policy.in_flight.is_some() || policy.classes.iter().any(|class| class.in_flight.is_some());
        let has_shadow = policy.classes.iter().any(|class| class.shadow);
        let has_twin = has_shadow || options.gate.candidate.is_some();
        let names = access.allowed_hosts.iter().chain(access.tls.iter().flat_map(|tls| &tls.names));
        let hosts = Hosts::new(names.map(String::as_str), &options.upstream.target.base_path);
        Self { generation, options, hosts, meters, limits_slots, has_shadow, has_twin }
    }

    /// Returns true if the class is in shadow mode: its calls are sent at once, and what the limits
    /// would have done is only counted.
    pub(crate) fn is_in_shadow(&self, class: ClassId) -> bool {
        self.options.gate.policy.classes.get(usize::from(class.0)).is_some_and(|class| class.shadow)
    }

    /// Returns which responses count as failures in this class.
    pub(crate) fn failures(&self, class: ClassId) -> &Failures {
        self.options.gate.answers.failures.get(usize::from(class.0)).unwrap_or(&NO_FAILURES)
    }
}

/// An empty set of failures, for an unknown class.
static NO_FAILURES: Failures = Failures { statuses: Vec::new(), transport: false, left: false };
