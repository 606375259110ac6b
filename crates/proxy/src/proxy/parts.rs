//! What the calls of a gate share: limiter, connections, counts.

use std::iter;
use std::sync::{Arc, Mutex, OnceLock};

use tokio_util::sync::{CancellationToken, DropGuard};

use super::stores::Stores;
use super::{driver, gate_config, respond, revalidate, tally};
use crate::api::Signal;
use crate::classify::Salt;
use crate::clients::Clients;
use crate::limit::{ClassId, Limiter, Snapshot};
use crate::upstream::Upstream;

/// What the calls of a gate share.
pub(crate) struct GateParts {
    pub(crate) config: Arc<gate_config::CurrentConfig>,
    pub(crate) tally: Arc<tally::Tally>,
    pub(crate) responder: Arc<respond::Responder>,
    pub(crate) driver: driver::Driver,
    pub(crate) upstream: Upstream,
    /// The answers kept for revalidation.
    pub(crate) answers: revalidate::Answers,
    /// The rate-limit signal of the response that asked for the last pause.
    pub(crate) last_signal: Mutex<Option<Signal>>,
    /// Authenticates callers, if the gate requires it. Only a restart changes it.
    pub(crate) clients: Option<Arc<Clients>>,
    pub(crate) hasher: Salt,
    /// True if the gate is in shadow: its own limiter decides about every call, and holds none. Only
    /// a restart changes it.
    pub(crate) shadow: bool,
    /// The limiter of calls in shadow, once a class of a gate in force is.
    pub(crate) shadow_limiter: OnceLock<ShadowLimiter>,
}

/// The limiter of calls in shadow, where other classes are in force.
///
/// It decides as if all were in force: the other calls pass it too, as they leave. Its tokens, slots,
/// keys and pauses are its own, so that no call in force waits for a call in shadow. It asks no store.
pub(crate) struct ShadowLimiter {
    driver: driver::Driver,
    /// Ends its ticker.
    _over: DropGuard,
}

// === impl GateParts ===

impl GateParts {
    /// Returns the limiter for a call.
    pub(crate) fn decider(&self, is_in_shadow: bool) -> &driver::Driver {
        let beside = self.shadow_limiter.get().filter(|_| is_in_shadow);
        beside.map_or(&self.driver, |limiter| &limiter.driver)
    }

    /// Returns the gate's limiter, and that of calls in shadow if there is one.
    pub(crate) fn drivers(&self) -> impl Iterator<Item = &driver::Driver> {
        iter::once(&self.driver).chain(self.shadow_limiter.get().map(|limiter| &limiter.driver))
    }

    /// Gives the limiter of calls in shadow these limits, and makes it if a class is in shadow.
    pub(crate) fn shadow_by(&self, config: &gate_config::GateConfig) {
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

    /// Returns a snapshot of the limiter in force as it is shown: no call waits in shadow, and a class
    /// in shadow has the levels of its own limiter.
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
