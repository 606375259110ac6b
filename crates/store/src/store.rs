//! The stores of shared buckets, for gates of one process or of many.
//!
//! A gate passes its requests together with a callback for the answers. A store gets no information
//! about calls: only random numbers of gates, the pod's name, counts, times and limits. A store is
//! trusted with tokens and pauses only: whatever it answers, the gate's own bucket limits what the
//! gate sends.

mod cluster;
mod dial;
mod fault;
mod health;
mod link;
mod memory;
mod node;
mod probe;
mod receive_limit;
mod script;
mod sentinel;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use self::dial::Dialer;
pub use self::health::StoreHealth;
use self::link::Link;
use self::memory::Memory;
pub use self::probe::ProbeReport;
use crate::clock::Clock;
use crate::credentials::Secret;
use crate::limit::{Ask, StoreAnswer, StoreFailure};
use crate::spec::{Endpoint, Store, StorePassword};
use crate::telemetry::{self, Sampler, ScrapeGauges, table};
use crate::tls::{self, Identity, Pem, Roots};
use tidegate_upstream::lock;

/// Every store of the process.
#[derive(derive_more::Debug)]
pub struct Stores {
    memory: Memory,
    /// The name of the pod, sent to the stores so that people can find it there.
    label: String,
    links: Mutex<BTreeMap<Arc<str>, Link>>,
    /// Updates the metrics of the stores, for as long as they exist.
    #[debug(skip)]
    _sampler: Arc<Sampler>,
}

/// A store with its files read, not connected yet.
#[derive(Debug)]
pub struct PreparedStore(Arc<Dialer>);

/// An error in the settings of a store.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {what}")]
pub struct StoreSettingsError {
    key: &'static str,
    what: String,
}

/// A callback for the answers to a batch of requests, one answer for each.
pub type OnAnswers = Box<dyn FnOnce(Vec<Result<StoreAnswer, StoreFailure>>) + Send>;

// === impl Stores ===

impl Stores {
    /// Creates the stores of a process; `label` is the name of its pod.
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

    /// Updates the metrics of all stores with at least one request. A store removed by a reload is
    /// not reported as down.
    fn sample(&self, passing: &mut ScrapeGauges) {
        for (store, health) in self.health().into_iter().filter(|(_, health)| health.since.is_some()) {
            passing.set(&table::STORE_UP, &[&store.name], f64::from(u8::from(health.is_up)));
        }
    }

    /// Replaces the stores with those of a new configuration. Unchanged ones keep their
    /// connections.
    pub fn adopt(&self, stores: Vec<PreparedStore>) {
        let mut links = lock(&self.links);
        let mut before = std::mem::take(&mut *links);
        for PreparedStore(dialer) in stores {
            let name = Arc::clone(&dialer.store.name);
            let kept = before.remove(&name).filter(|before| *before.store() == dialer.store);
            let link = kept.unwrap_or_else(|| Link::start(dialer, self.label.clone()));
            links.insert(name, link);
        }
    }

    /// Connects to these stores before the first request.
    pub fn connect(&self, names: &BTreeSet<Arc<str>>) {
        let links = lock(&self.links);
        let named = links.iter().filter(|(name, _)| names.contains(*name));
        named.for_each(|(_, link)| link.ask(Vec::new(), Box::new(drop)));
    }

    /// Returns every store with its health, in the order of their names.
    pub fn health(&self) -> Vec<(Store, StoreHealth)> {
        lock(&self.links).values().map(|link| (link.store().clone(), link.health())).collect()
    }

    /// Sends a gate's requests to their store. `on_answers` is called once, here or later.
    pub fn ask(&self, asks: Vec<Ask>, on_answers: OnAnswers) {
        let Some(store) = asks.first().map(|ask| Arc::clone(&ask.shared.store)) else { return on_answers(Vec::new()) };
        if store.is_empty() {
            return on_answers(asks.iter().map(|ask| Ok(self.memory.ask(ask))).collect());
        }
        let links = lock(&self.links);
        match links.get(&store) {
            Some(link) => link.ask(asks, on_answers),
            None => {
                drop(links);
                on_answers(vec![Err(StoreFailure::Wrong); asks.len()]);
            }
        }
    }
}

/// Parses an answer from a server's bytes; `None` if the script would not write such bytes.
#[must_use]
pub fn reply(bytes: &[u8]) -> Option<StoreAnswer> {
    redis::parse_redis_value(bytes).ok().and_then(|value| script::read(&value))
}

// === impl PreparedStore ===

impl PreparedStore {
    /// Reads the files named in a store's settings.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn new(store: Store, clock: Clock) -> Result<Self, StoreSettingsError> {
        let secret = |password: &Option<StorePassword>, key| match password {
            None => Ok(None),
            Some(StorePassword::Command { words, refresh }) => Ok(Some(Secret::command(words, *refresh))),
            Some(StorePassword::File(path)) => {
                Secret::file(path).map(Some).map_err(|error| StoreSettingsError { key, what: error.to_string() })
            }
        };
        let password = secret(&store.login.password, "password_file")?;
        let sentinel_password = secret(&store.sentinel.password, "sentinel.password_file")?;
        let tls = if store.has_tls { Some(client(&store)) } else { None };
        let tls = tls.transpose().map_err(|error| StoreSettingsError { key: "tls", what: error.to_string() })?;
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

/// Returns the address of a server, as another server named it; `None` if the host cannot be used.
fn endpoint(host: &str, port: u16) -> Option<Endpoint> {
    let fits = !host.is_empty() && host.len() <= LONGEST_HOST && host.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| Endpoint { host: host.to_owned(), port })
}

const LONGEST_HOST: usize = 255;
/// The longest pod name to send.
const LONGEST_LABEL: usize = 63;

#[cfg(test)]
mod tests;
