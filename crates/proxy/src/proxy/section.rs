//! A gate of the configuration (a section), and what the gates made from it share.
//!
//! Those gates share the current settings, the metrics, the log, and the bounds on memory. Each of
//! them owns its limiter, keys and connections ([`GateParts`]), so that one gate is cheap to make
//! and to drop while others run.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::gate_config::GateConfig;
use super::guard::buffers::Buffers;
use super::options::Options;
use super::parts::GateParts;
use super::tally::{CallCounters, Tally};
use super::{driver, respond};
use crate::classify::{ApiKind, Salt};
use crate::clients::Clients;
use crate::clock::Clock;
use crate::limit::{Limiter, Questions};
use crate::telemetry::{GateMeters, Sampler, UpstreamMeters};
use crate::{Current, lock, spec, tls, upstream};

/// What all gates made from one gate of the configuration share.
pub(crate) struct Section {
    pub(crate) name: Arc<str>,
    pub(crate) kind: ApiKind,
    /// The addresses and paths of its listeners, as text.
    pub(crate) listen: Vec<String>,
    pub(crate) tls: Option<Arc<tls::Listener>>,
    clients: Option<Arc<Clients>>,
    pub(crate) clock: Clock,
    /// The current settings with their number, the metrics and the log.
    pub(crate) config: Arc<Current<GateConfig>>,
    /// Counts the bytes of large heads and of answers not read yet.
    pub(crate) buffers: Buffers,
    /// Counts the bytes of the bodies of waiting calls.
    pub(crate) waiting_bytes: Arc<AtomicUsize>,
    pub(crate) responder: Arc<respond::Responder>,
    /// Updates the gauges of all its gates, for as long as it exists.
    pub(crate) sampler: OnceLock<Arc<Sampler>>,
    salt: Salt,
    /// Limits the requests to stores of shared buckets.
    questions: Questions,
    /// The gates made so far. The lock is held while a gate is made or the settings change.
    gates: Mutex<Vec<Weak<GateParts>>>,
    /// Sections with other limits for some of the gates.
    beside: Mutex<Vec<Weak<Self>>>,
}

/// One of the upstreams of a section with many: a host and port, or a cluster.
pub(crate) struct Branch<'a> {
    /// Its name in status, metrics and logs.
    pub(crate) name: Arc<str>,
    /// Its number in shared buckets, the same in every process.
    pub(crate) number: u64,
    pub(crate) calls: CallCounters,
    /// Changes the settings of the section's upstream into those of this one.
    pub(crate) point: &'a dyn Fn(&mut upstream::Options),
}

// === impl Section ===

impl Section {
    pub(crate) fn new(options: Options, salt: Salt, clock: Clock) -> Self {
        let name = Arc::clone(&options.gate.name);
        let kind = options.gate.rules.kind;
        let host: Arc<str> = options.upstream.target.authority.as_str().into();
        let meters = GateMeters::new(Arc::clone(&name), host, &options.gate.policy);
        Self {
            kind,
            listen: Vec::new(),
            tls: options.tls.clone(),
            clients: options.clients.clone(),
            sampler: OnceLock::new(),
            salt,
            questions: Questions::default(),
            clock,
            config: Arc::new(Current::new(GateConfig::new(options, 0, meters))),
            buffers: Buffers::default(),
            waiting_bytes: Arc::default(),
            responder: Arc::new(respond::Responder::new(Arc::clone(&name), kind, clock)),
            name,
            gates: Mutex::default(),
            beside: Mutex::default(),
        }
    }

    /// Makes a section with the settings of `gate`, in which all but the limits are the same. The
    /// gates made from it count as gates of this section, too.
    pub(crate) fn with_limits(&self, gate: spec::Gate) -> Arc<Self> {
        let options = Options { gate, ..self.config.get().options.clone() };
        let beside = Self {
            listen: self.listen.clone(),
            questions: self.questions.clone(),
            waiting_bytes: Arc::clone(&self.waiting_bytes),
            ..Self::new(options, self.salt.clone(), self.clock)
        };
        let beside = Arc::new(beside);
        let mut all = lock(&self.beside);
        all.retain(|section| section.strong_count() > 0);
        all.push(Arc::downgrade(&beside));
        beside
    }

    /// Makes one more gate, for a `branch` or for the settings' own upstream.
    pub(crate) fn parts(&self, branch: Option<Branch<'_>>) -> Arc<GateParts> {
        let mut gates = lock(&self.gates);
        let config = self.config.get();
        let GateConfig { options, generation, .. } = &*config;
        let mut dialled = options.upstream.clone();
        branch.iter().for_each(|branch| (branch.point)(&mut dialled));
        // The salt may be that of the process before, and no two processes may have one seed.
        let seed = RandomState::new().hash_one("jitter");
        let limiter = Limiter::new(options.gate.policy.clone(), seed, self.clock.now());
        let origin = branch.as_ref().map_or(0, |branch| branch.number);
        let limiter = limiter.sharing_bytes(Arc::clone(&self.waiting_bytes));
        let limiter = limiter.of_origin(origin, self.questions.clone());
        let stores = options.stores.clone();
        let driver = driver::Driver::new(Arc::clone(&self.name), limiter, *generation, stores, self.clock);
        let upstream = upstream::Upstream::start(dialled, self.clock, driver.rooms());
        upstream.measure(UpstreamMeters::new(Arc::clone(&self.name)));
        let pool = upstream.clone();
        driver.connect(move |group, calls| pool.want(group, calls));
        let mut tally = Tally::new(&self.name, self.clock);
        if let Some(Branch { name, calls, .. }) = branch {
            tally.host = Some(name);
            tally.exported = Some(calls);
        }
        let tally = Arc::new(tally);
        driver.add_twins(&config, options.gate.shadow, &tally);
        let parts = Arc::new(GateParts {
            config: Arc::clone(&self.config),
            tally,
            responder: Arc::clone(&self.responder),
            driver,
            upstream,
            answers: Default::default(),
            last_signal: Default::default(),
            clients: self.clients.clone(),
            hasher: self.salt.clone(),
            shadow: options.gate.shadow,
        });
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(&parts));
        bound_answers(&gates, &options.gate);
        parts
    }

    /// Returns the gates still in use.
    pub(crate) fn gates(&self) -> Vec<Arc<GateParts>> {
        let beside: Vec<_> = lock(&self.beside).iter().filter_map(Weak::upgrade).collect();
        let own = lock(&self.gates).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        own.into_iter().chain(beside.iter().flat_map(|section| section.gates())).collect()
    }

    /// Applies the settings that a reload can change to all gates made from this one.
    pub(crate) fn reconfigure(&self, mut options: Options) {
        let gates = lock(&self.gates);
        let before = self.config.get();
        let upstream::Options { target, mount, tls, injector, own, dns, .. } = before.options.upstream.clone();
        options.upstream = upstream::Options { target, mount, tls, injector, own, dns, ..options.upstream };
        options.stores = before.options.stores.clone();
        let meters = before.meters.renewed(&options.gate.policy);
        let next = Arc::new(GateConfig::new(options, before.generation + 1, meters));
        let swap = || self.config.set(Arc::clone(&next));
        for gate in gates.iter().filter_map(Weak::upgrade) {
            gate.upstream.adjust(&next.options.upstream);
            gate.driver.reconfigure(&next, &before, &gate.tally, swap);
        }
        swap();
        bound_answers(&gates, &next.options.gate);
    }
}

/// Divides the memory for stored answers among the gates that serve calls. If the section lists
/// hosts, its first gate is only a template and gets none.
fn bound_answers(gates: &[Weak<GateParts>], gate: &spec::Gate) {
    let gates: Vec<_> = gates.iter().filter_map(Weak::upgrade).collect();
    let sharers = gates.len() - usize::from(gate.hosts.is_some());
    let max_kept = gate.answers.revalidation.bytes_in_use() / sharers.max(1);
    gates.iter().for_each(|gate| gate.answers.resize(max_kept));
}
