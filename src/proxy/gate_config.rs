//! The configuration of a gate: everything that a reload may change, swapped as one (P11).
//!
//! A call takes the configuration once, when it comes, and keeps it to its end: classes are
//! numbers, and a number means something only under the rules that gave it. The limiter knows the
//! generation that it works under, and a call that was read under an older one is read again.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::hosts::Hosts;
use crate::api::{Failures, Throttling};
use crate::classify::Rules;
use crate::limit::ClassId;
use crate::spec::RetryAfter;
use crate::telemetry::{CallLog, GateMeters};

/// Everything that a reload may change, except the limits themselves.
#[derive(Debug)]
pub(crate) struct GateConfig {
    /// The number of reloads before it.
    pub(crate) generation: u64,
    pub(crate) rules: Arc<Rules>,
    /// The responses that count as failures, by class.
    pub(crate) failures: Vec<Failures>,
    /// The signals of the upstream that are acted on.
    pub(crate) throttling: Throttling,
    pub(crate) retry_after: RetryAfter,
    pub(crate) hosts: Hosts,
    /// By class: they go with the rules.
    pub(crate) meters: GateMeters,
    pub(crate) log: Option<CallLog>,
    /// True if identical calls that wait become one.
    pub(crate) coalesce: bool,
    /// True if calls in flight are limited at all. If not, a wait for a slot is a connection being
    /// made, for which any client would wait.
    pub(crate) limits_slots: bool,
    /// The time for which the gate serves on after `stop`, at most.
    pub(crate) drain: Duration,
}

/// The configuration in force.
#[derive(Debug)]
pub(crate) struct CurrentConfig(RwLock<Arc<GateConfig>>);

// === impl GateConfig ===

impl GateConfig {
    /// Returns the responses that count as failures of this class.
    pub(crate) fn failures(&self, class: ClassId) -> &Failures {
        self.failures.get(usize::from(class.0)).unwrap_or(&NO_FAILURES)
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

    pub(crate) fn set(&self, config: GateConfig) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }
}

/// For a class that the configuration did not describe.
static NO_FAILURES: Failures = Failures { statuses: Vec::new(), transport: false, left: false };
