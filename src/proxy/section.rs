//! A section of the configuration at work: everything that its gates share.
//!
//! They share the settings in force and their generation, the meters, the log, and the bounds on
//! memory. Each gate owns its limiter, keys and connections ([`GateParts`]), so that a gate is cheap to
//! make and to drop while others of the section run.

use std::hash::{BuildHasher, RandomState};
use std::mem::replace;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::coalesce::Coalescer;
use super::driver::Driver;
use super::gate_config::{CurrentConfig, GateConfig};
use super::guard::buffers::Buffers;
use super::hosts::Hosts;
use super::options::Options;
use super::parts::{GateParts, LastSignal};
use super::respond::Responder;
use super::tally::Tally;
use crate::classify::Kind;
use crate::clock::Clock;
use crate::limit::{Limiter, Policy};
use crate::telemetry::{GateMeters, UpstreamMeters};
use crate::tls;
use crate::upstream::{self, Target, Upstream};

/// Everything that the gates of a section share.
pub(crate) struct Section {
    pub(crate) name: Arc<str>,
    pub(crate) kind: Kind,
    pub(crate) tls: Option<Arc<tls::Listener>>,
    pub(crate) clock: Clock,
    /// The settings in force, with their generation, the meters and the log.
    pub(crate) config: Arc<CurrentConfig>,
    /// The bytes of large heads and of unread answers.
    pub(crate) buffers: Arc<Buffers>,
    /// The bytes of the bodies of waiting calls.
    pub(crate) waiting_bytes: Arc<AtomicUsize>,
    responder: Arc<Responder>,
    shadow: bool,
    live: Mutex<Live>,
}

/// The gates, and the settings from which the next one is made.
struct Live {
    policy: Policy,
    upstream: upstream::Options,
    gates: Vec<Weak<GateParts>>,
}

// === impl Section ===

impl Section {
    pub(crate) fn new(options: Options, clock: Clock) -> Self {
        let (name, kind) = (Arc::clone(&options.name), options.rules.kind());
        let host: Arc<str> = options.upstream.target.authority.as_str().into();
        let meters = GateMeters::new(Arc::clone(&name), host, &options.policy);
        meters.shadow(options.shadow);
        Self {
            kind,
            clock,
            config: Arc::new(CurrentConfig::new(gate_config(&options, 0, meters))),
            buffers: Arc::default(),
            waiting_bytes: Arc::default(),
            responder: Arc::new(Responder::new(Arc::clone(&name), kind, clock)),
            name,
            tls: options.tls,
            shadow: options.shadow,
            live: Mutex::new(Live { policy: options.policy, upstream: options.upstream, gates: Vec::new() }),
        }
    }

    /// Makes the parts of one more gate, whose calls go to `target`.
    pub(crate) fn parts(&self, target: Target) -> Arc<GateParts> {
        let mut live = self.lock();
        let hasher = RandomState::new();
        let limiter = Limiter::new(live.policy.clone(), hasher.hash_one("jitter"), self.clock.now());
        let limiter = limiter.sharing_bytes(Arc::clone(&self.waiting_bytes));
        let driver = Driver::new(Arc::clone(&self.name), limiter, self.clock);
        driver.adopt(self.config.get().generation);
        let options = upstream::Options { target, ..live.upstream.clone() };
        let upstream = Upstream::start(options, self.clock, driver.rooms());
        upstream.measure(UpstreamMeters::new(Arc::clone(&self.name)));
        driver.connect(Arc::new(upstream.clone()));
        if self.shadow {
            driver.cast_shadow();
        }
        let parts = Arc::new(GateParts {
            config: Arc::clone(&self.config),
            tally: Arc::new(Tally::new(&self.name, self.clock)),
            responder: Arc::clone(&self.responder),
            driver,
            upstream,
            coalescer: Coalescer::default(),
            last_signal: LastSignal::default(),
            hasher,
            shadow: self.shadow,
        });
        live.gates.retain(|gate| gate.strong_count() > 0);
        live.gates.push(Arc::downgrade(&parts));
        parts
    }

    /// The gates that are there.
    pub(crate) fn gates(&self) -> Vec<Arc<GateParts>> {
        self.lock().gates.iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes over the settings that need no restart, for all gates at once.
    pub(crate) fn reconfigure(&self, options: Options) {
        let Live { policy, upstream, gates } = &mut *self.lock();
        let before = self.config.get();
        let generation = before.generation + 1;
        let mut next = Some(gate_config(&options, generation, before.meters.renewed(&options.policy)));
        let mut swap = || next.take().into_iter().for_each(|next| self.config.set(next));
        *policy = options.policy;
        let upstream::Options { target, tls, injector, own, dns, .. } = replace(upstream, options.upstream);
        (upstream.target, upstream.tls, upstream.injector, upstream.own, upstream.dns) =
            (target, tls, injector, own, dns);
        for gate in gates.iter().filter_map(Weak::upgrade) {
            gate.upstream.adjust(upstream);
            gate.driver.reconfigure(policy.clone(), generation, &mut swap);
        }
        swap();
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of the options that a reload may change.
fn gate_config(options: &Options, generation: u64, meters: GateMeters) -> GateConfig {
    let policy = &options.policy;
    GateConfig {
        generation,
        rules: Arc::clone(&options.rules),
        failures: options.failures.clone(),
        throttling: options.throttling,
        retry_after: options.retry_after,
        hosts: Hosts::new(options.hosts.iter().map(String::as_str), &options.upstream.target.base_path),
        meters,
        log: options.call_log.clone(),
        coalesce: options.coalesce,
        limits_slots: policy.in_flight.is_some() || policy.classes.iter().any(|class| class.in_flight.is_some()),
        drain: options.drain,
    }
}
