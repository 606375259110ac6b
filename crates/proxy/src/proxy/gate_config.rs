//! The configuration of a gate: everything that a reload may change, swapped as one (P11).
//!
//! A call takes the configuration once, when it comes, and keeps it to its end: classes are
//! numbers, and a number means something only under the rules that gave it. The limiter knows the
//! generation that it works under, and a call that was read under an older one is read again.

use std::sync::{Arc, PoisonError, RwLock};

use super::hosts::Hosts;
use super::options::Options;
use crate::api::Failures;
use crate::limit::ClassId;
use crate::spec;
use crate::telemetry::GateMeters;

/// Everything that a reload may change, and what follows from it.
#[derive(Debug)]
pub(crate) struct GateConfig {
    /// The number of reloads before it.
    pub(crate) generation: u64,
    /// The settings of the last reload. Where its calls go is as it was at the start; the rest that
    /// only a restart changes is read from the section.
    pub(crate) options: Options,
    pub(crate) hosts: Hosts,
    /// By class: they go with the rules.
    pub(crate) meters: GateMeters,
    /// True if calls in flight are limited at all. If not, a wait for a slot is a connection being
    /// made, for which any client would wait.
    pub(crate) limits_slots: bool,
}

/// The configuration in force.
#[derive(Debug)]
pub(crate) struct CurrentConfig(RwLock<Arc<GateConfig>>);

// === impl GateConfig ===

impl GateConfig {
    pub(crate) fn new(options: Options, generation: u64, meters: GateMeters) -> Self {
        let spec::Gate { policy, allowed_hosts, tls, .. } = &options.gate;
        let limits_slots = policy.in_flight.is_some() || policy.classes.iter().any(|class| class.in_flight.is_some());
        let names = allowed_hosts.iter().chain(tls.iter().flat_map(|tls| &tls.names));
        let hosts = Hosts::new(names.map(String::as_str), &options.upstream.target.base_path);
        Self { generation, options, hosts, meters, limits_slots }
    }

    /// Returns the responses that count as failures of this class.
    pub(crate) fn failures(&self, class: ClassId) -> &Failures {
        self.options.gate.failures.get(usize::from(class.0)).unwrap_or(&NO_FAILURES)
    }
}

// === impl CurrentConfig ===

impl CurrentConfig {
    pub(crate) fn new(config: GateConfig) -> Self {
        Self(RwLock::new(Arc::new(config)))
    }

    pub(crate) fn get(&self) -> Arc<GateConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, config: Arc<GateConfig>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

/// For a class that the configuration did not describe.
static NO_FAILURES: Failures = Failures { statuses: Vec::new(), transport: false, left: false };
