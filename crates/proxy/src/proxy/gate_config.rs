//! The configuration of a gate: all settings a reload can change, replaced at once (P11).
//!
//! A call takes the configuration once, when it comes, and keeps it to its end: classes are
//! numbers, which mean something only under their rules. The limiter knows the number (generation)
//! of the configuration of its limits, and has a call of an older one classified again.

use std::sync::{Arc, PoisonError, RwLock};

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
    /// The gate's settings. A setting that only a restart can change is read from `section`, not
    /// from here.
    pub(crate) options: Options,
    pub(crate) hosts: Hosts,
    /// The metrics by class, here because a reload changes the classes.
    pub(crate) meters: GateMeters,
    /// True if anything limits calls in flight. If not, a wait for a slot is one for a connection,
    /// as any client would wait.
    pub(crate) limits_slots: bool,
    /// True if a class is in shadow.
    pub(crate) has_shadow: bool,
}

/// The configuration in force.
#[derive(Debug)]
pub(crate) struct CurrentConfig(RwLock<Arc<GateConfig>>);

// === impl GateConfig ===

impl GateConfig {
    pub(crate) fn new(options: Options, generation: u64, meters: GateMeters) -> Self {
        let spec::Gate { policy, access, .. } = &options.gate;
        let limits_slots = policy.in_flight.is_some() || policy.classes.iter().any(|class| class.in_flight.is_some());
        let has_shadow = policy.classes.iter().any(|class| class.shadow);
        let names = access.allowed_hosts.iter().chain(access.tls.iter().flat_map(|tls| &tls.names));
        let hosts = Hosts::new(names.map(String::as_str), &options.upstream.target.base_path);
        Self { generation, options, hosts, meters, limits_slots, has_shadow }
    }

    /// True if calls of this class pass at once, and are only counted.
    pub(crate) fn is_in_shadow(&self, class: ClassId) -> bool {
        self.options.gate.policy.classes.get(usize::from(class.0)).is_some_and(|class| class.shadow)
    }

    /// Returns which responses count as failures in this class.
    pub(crate) fn failures(&self, class: ClassId) -> &Failures {
        self.options.gate.answers.failures.get(usize::from(class.0)).unwrap_or(&NO_FAILURES)
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

/// No failures, for an unknown class.
static NO_FAILURES: Failures = Failures { statuses: Vec::new(), transport: false, left: false };
