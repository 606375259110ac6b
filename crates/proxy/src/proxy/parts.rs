//! The limiter, connections and counts that the calls of a gate share.

use std::iter;
use std::sync::{Arc, Mutex, OnceLock};

use tokio_util::sync::{CancellationToken, DropGuard};

use super::gate_config::GateConfig;
use super::stores::Stores;
use super::{driver, respond, revalidate, tally};
use crate::Current;
use crate::api::Signal;
use crate::classify::Salt;
use crate::clients::Clients;
use crate::limit::{ClassId, Limiter, Snapshot};
use crate::upstream::Upstream;

/// The limiter, connections and counts that the calls of a gate share.
pub(crate) struct GateParts {
    pub(crate) config: Arc<Current<GateConfig>>,
    pub(crate) tally: Arc<tally::Tally>,
    pub(crate) responder: Arc<respond::Responder>,
    pub(crate) driver: driver::Driver,
    pub(crate) upstream: Upstream,
    /// The stored answers: the upstream is asked whether they are still current.
    pub(crate) answers: revalidate::Answers,
    /// The rate-limit signal behind the last pause.
    pub(crate) last_signal: Mutex<Option<Signal>>,
    /// Authenticates callers, if the gate requires it. Only a restart changes it.
    pub(crate) clients: Option<Arc<Clients>>,
    pub(crate) hasher: Salt,
    /// True if the whole gate is in shadow mode: its limiter decides about every call, but each is
    /// sent at once. Only a restart changes it.
    pub(crate) shadow: bool,
    /// The second limiter, for classes in shadow mode. It is made when the first class is in shadow
    /// mode on a gate that is not.
    pub(crate) shadow_limiter: OnceLock<ShadowLimiter>,
}

/// The limiter for the classes in shadow mode, on a gate where other classes are enforced.
///
/// It decides as if all classes were enforced: the calls of the other classes are counted in it
/// when they are sent. Its tokens, slots, keys and pauses are its own, so that no enforced call
/// waits for a call in shadow mode. It sends no requests to stores of shared buckets.
pub(crate) struct ShadowLimiter {
    driver: driver::Driver,
    /// Ends the limiter's background task when dropped.
    _over: DropGuard,
}

// === impl GateParts ===

impl GateParts {
    /// Returns the limiter that decides about a call.
    pub(crate) fn decider(&self, is_in_shadow: bool) -> &driver::Driver {
        let beside = self.shadow_limiter.get().filter(|_| is_in_shadow);
        beside.map_or(&self.driver, |limiter| &limiter.driver)
    }

    /// Returns the gate's limiter, and the one for classes in shadow mode if there is one.
    pub(crate) fn drivers(&self) -> impl Iterator<Item = &driver::Driver> {
        iter::once(&self.driver).chain(self.shadow_limiter.get().map(|limiter| &limiter.driver))
    }

    /// Applies the configuration to the limiter for classes in shadow mode. Makes that limiter if
    /// it is missing and a class is in shadow mode.
    pub(crate) fn shadow_by(&self, config: &GateConfig) {
        if !self.shadow && config.has_shadow || self.shadow_limiter.get().is_some() {
            let mut policy = config.options.gate.policy.clone();
            policy.shared.clear();
            let of_classes = policy.classes.iter_mut().map(|class| &mut class.bucket);
            of_classes.chain([&mut policy.bucket]).flatten().for_each(|bucket| bucket.shared = None);
            let limiter = self.shadow_limiter.get_or_init(|| {
                let clock = self.driver.clock();
                // No delay of it is real, so its jitter may be the same in each process.
                let limiter = Limiter::new(policy.clone(), 0, clock.now());
                let name = Arc::clone(&config.options.gate.name);
                let driver = driver::Driver::new(name, limiter, config.generation, Stores::default(), clock);
                driver.cast_shadow();
                let over = CancellationToken::new();
                // Bounded: one for each gate.
                tokio::spawn(driver.clone().tick(over.clone(), || ()));
                ShadowLimiter { driver, _over: over.drop_guard() }
            });
            limiter.driver.reconfigure(policy, config.generation, || ());
        }
    }

    /// Returns a snapshot of the limiter, changed for display: calls in shadow mode do not count as
    /// waiting, and a class in shadow mode has the levels of its own limiter.
    pub(crate) fn shown(&self, now: Snapshot) -> Snapshot {
        let Some(beside) = self.shadow_limiter.get() else {
            return if self.shadow { now.of_shadow() } else { now };
        };
        let config = self.config.get();
        let played = beside.driver.look(|limiter, now| limiter.overview(now)).of_shadow();
        let class = |((id, class), played)| if config.is_in_shadow(ClassId(id)) { played } else { class };
        let classes = (0..).zip(now.classes).zip(played.classes).map(class).collect();
        Snapshot { classes, ..now }
    }
}
