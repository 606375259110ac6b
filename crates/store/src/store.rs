//! The stores of shared buckets: where the gates of one process, or of many, keep what they share.
//!
//! A gate hands its questions on with a function to call with what came of each. Nothing here knows
//! a gate, and nothing of a call is ever in a store: only random numbers of members, the pod's
//! name, counts, times and limits. A store is believed about tokens and pauses, and about nothing
//! else: the gate's own bucket bounds what it sends, whatever a store says.

mod bounded;
mod cluster;
mod dial;
mod fault;
mod health;
mod link;
mod memory;
mod primaries;
mod probe;
mod script;
mod sentinel;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use self::dial::Dialer;
pub use self::health::Heard;
use self::link::Link;
use self::memory::Memory;
pub use self::probe::Probed;
use crate::clock::Clock;
use crate::credentials::Secret;
use crate::limit::{Ask, StoreAnswer, StoreFailure};
use crate::spec::Store;
use crate::telemetry::{self, Sampler, ScrapeGauges, table};
use crate::tls::{self, Identity, Pem, Roots};

/// Every store of the process.
#[derive(derive_more::Debug)]
pub struct Stores {
    memory: Memory,
    /// Told to the stores, for people who look there.
    label: String,
    links: Mutex<BTreeMap<Arc<str>, (Store, Link)>>,
    /// Tells if each store answers.
    #[debug(skip)]
    _sampler: Arc<Sampler>,
}

/// A store that only needs its connection.
#[derive(Debug)]
pub struct PreparedStore(Arc<Dialer>);

/// A store that cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {what}")]
pub struct Unusable {
    key: &'static str,
    what: String,
}

/// Takes what came of each ask of a question.
pub type Done = Box<dyn FnOnce(Vec<Result<StoreAnswer, StoreFailure>>) + Send>;

// === impl Stores ===

impl Stores {
    /// Makes the stores of a process; `label` is the name of its pod.
    pub fn new(clock: Clock, label: &str) -> Arc<Self> {
        let fits = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let label: String = label.chars().filter(fits).take(LONGEST_LABEL).collect();
        let label = if label.is_empty() { "-".to_owned() } else { label };
        Arc::new_cyclic(|stores: &Weak<Self>| {
            let stores = Weak::clone(stores);
            let sampler: Arc<Sampler> = Arc::new(move |passing| {
                if let Some(stores) = stores.upgrade() {
                    stores.sample(passing);
                }
            });
            telemetry::metrics().sample_by(&sampler);
            Self { memory: Memory::new(clock), label, links: Mutex::default(), _sampler: sampler }
        })
    }

    /// Sets the gauges of the stores that were asked. One that a reload has taken away is not down.
    fn sample(&self, passing: &mut ScrapeGauges) {
        for (store, heard) in self.heard().into_iter().filter(|(_, heard)| heard.since.is_some()) {
            passing.set(&table::STORE_UP, &[&store.name], f64::from(u8::from(heard.is_up)));
        }
    }

    /// Takes over what the configuration says. Stores that did not change keep their connections.
    pub fn adopt(&self, stores: Vec<PreparedStore>) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *links);
        for PreparedStore(dialer) in stores {
            let name = Arc::clone(&dialer.store.name);
            let store = dialer.store.clone();
            let kept = before.remove(&name).filter(|(before, _)| *before == store);
            let link = kept.unwrap_or_else(|| (store, Link::start(dialer, self.label.clone())));
            links.insert(name, link);
        }
    }

    /// Connects to these stores, before there is anything to ask.
    pub fn connect(&self, names: &BTreeSet<Arc<str>>) {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let named = links.iter().filter(|(name, _)| names.contains(*name));
        named.for_each(|(_, (_, link))| link.ask(Vec::new(), Box::new(drop)));
    }

    /// Returns what was heard of each store, by name.
    pub fn heard(&self) -> Vec<(Store, Heard)> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.values().map(|(store, link)| (store.clone(), link.heard())).collect()
    }

    /// Asks one store a question, for all these members. `done` is called once, here or later.
    pub fn ask(&self, asks: Vec<Ask>, done: Done) {
        let Some(store) = asks.first().map(|ask| Arc::clone(&ask.shared.store)) else { return done(Vec::new()) };
        if store.is_empty() {
            return done(asks.iter().map(|ask| Ok(self.memory.ask(ask))).collect());
        }
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        match links.get(&store) {
            Some((_, link)) => link.ask(asks, done),
            None => {
                drop(links);
                done(vec![Err(StoreFailure::Wrong); asks.len()]);
            }
        }
    }
}

/// Returns the answer that a server's bytes are; `None` if they are none of the script's.
#[must_use]
pub fn reply(bytes: &[u8]) -> Option<StoreAnswer> {
    redis::parse_redis_value(bytes).ok().and_then(|value| script::read(&value))
}

// === impl PreparedStore ===

impl PreparedStore {
    /// Reads the files that a store's settings name.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub fn new(store: Store, clock: Clock) -> Result<Self, Unusable> {
        let secret = |file: Option<&Path>, key| {
            file.map(Secret::file).transpose().map_err(|error| Unusable { key, what: error.to_string() })
        };
        let password = secret(store.password_file.as_deref(), "password_file")?;
        let sentinel_password = secret(store.sentinel.password_file.as_deref(), "sentinel.password_file")?;
        let tls = if store.has_tls { Some(client(&store)) } else { None };
        let tls = tls.transpose().map_err(|error| Unusable { key: "tls", what: error.to_string() })?;
        Ok(Self(Arc::new(Dialer { store, password, sentinel_password, tls, clock })))
    }
}

fn client(store: &Store) -> Result<tls::Client, tls::TlsError> {
    let tls = &store.tls;
    let roots = match &tls.ca {
        _ if tls.insecure => Roots::Unverified,
        Some(ca) => Roots::Only(Pem::read(ca)?),
        None => Roots::System,
    };
    let identity = tls.cert.as_deref().zip(tls.key.as_deref()).map(|(cert, key)| Identity::read(cert, key));
    tls::Client::new(roots, identity.transpose()?)
}

/// The longest name of a pod.
const LONGEST_LABEL: usize = 63;

#[cfg(test)]
mod tests;
