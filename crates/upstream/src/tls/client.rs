//! TLS towards an upstream: the trusted roots and the client certificate can change under open
//! connections.
//!
//! Files are read again every 30 s, and sooner after a hint that they have changed; the last good
//! ones are kept. Each change makes a new configuration, so that no session ticket of an old one is
//! ever used again: a resumed session would skip verification and keep the old client certificate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use rustls::{ClientConfig, RootCertStore};

use super::judged::Judged;
use super::own_certificate::RootsAndServers;
use super::pins::PinnedKeys;
use super::unverified::NoVerification;
use super::{Identity, Pem, Pin, TlsError, Warning, provider};
use crate::moment::Moment;

/// The certificates to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// The system's roots; `SSL_CERT_FILE` and `SSL_CERT_DIR` are honoured.
    System,
    /// These certificates and no others.
    Only(Pem),
    /// Any certificate: no verification at all.
    Unverified,
}

/// TLS towards one upstream.
#[derive(derive_more::Debug)]
#[debug("Client({:?}, {:?})", self.current().roots, self.current().identity)]
pub struct Client {
    current: RwLock<Arc<Current>>,
    changes: AtomicU64,
    looked: Mutex<Looked>,
    /// The keys of which one must be in the upstream's chain; any if empty.
    pins: Vec<Pin>,
}

/// The configuration of new connections.
struct Current {
    roots: Roots,
    identity: Option<Identity>,
    /// Offers h2 and HTTP/1.1.
    any: Arc<ClientConfig>,
    /// Offers HTTP/1.1 only, for upgrades.
    http1: Arc<ClientConfig>,
}

/// The moment of the last look at the files.
#[derive(Default)]
struct Looked {
    at: Moment,
    invalidated: bool,
    warning: Warning,
}

/// Makes the configuration towards an upstream; it offers h2 and HTTP/1.1.
///
/// # Errors
/// The roots or the client certificate cannot be used; see [`TlsError`].
pub fn client(roots: &Roots, identity: Option<&Identity>) -> Result<Arc<ClientConfig>, TlsError> {
    pinning(roots, identity, &[])
}

fn pinning(roots: &Roots, identity: Option<&Identity>, pins: &[Pin]) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier(roots, pins)?);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let certified = builder.with_client_auth_cert(identity.chain.certificates()?, identity.key.key()?);
            certified.map_err(|error| identity.unusable(error))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn verifier(roots: &Roots, pins: &[Pin]) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let (store, servers) = match roots {
        Roots::Unverified => return Ok(Arc::new(Judged(NoVerification))),
        Roots::System => (system_roots()?, Vec::new()),
        Roots::Only(pem) => (pem.roots()?, pem.readable()),
    };
    let usual = RootsAndServers::new(store.clone(), servers)?;
    Ok(if pins.is_empty() { Arc::new(Judged(usual)) } else { Arc::new(Judged(PinnedKeys::new(usual, store, pins))) })
}

// === impl Client ===

impl Client {
    /// Creates a client with these roots and, if given, a client certificate.
    ///
    /// # Errors
    /// The roots or the certificate cannot be used.
    pub fn new(roots: Roots, identity: Option<Identity>) -> Result<Self, TlsError> {
        Self::pinning(roots, identity, Vec::new())
    }

    /// Does the same for an upstream in whose chain one of these keys must be; any if there are
    /// none.
    ///
    /// # Errors
    /// The roots or the certificate cannot be used.
    pub fn pinning(roots: Roots, identity: Option<Identity>, pins: Vec<Pin>) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(Current::new(roots, identity, &pins)?));
        Ok(Self { current, changes: AtomicU64::new(0), looked: Mutex::default(), pins })
    }

    /// Returns the configuration of new connections; it offers h2 and HTTP/1.1.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current().any)
    }

    /// Returns the same configuration, offering HTTP/1.1 only.
    pub fn http1_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current().http1)
    }

    /// Returns the number of changes: a connection that was made under another number is outdated.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Marks the files as possibly outdated after an error that this would explain: they are read
    /// again soon.
    pub fn invalidate(&self) {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner).invalidated = true;
    }

    /// Reads the files again if it is time to. The owner calls this often.
    pub fn refresh(&self, now: Moment) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let age = now.since(looked.at);
        if age < LOOK_EVERY && !(looked.invalidated && age >= AFTER_INVALIDATION) {
            return;
        }
        (looked.at, looked.invalidated) = (now, false);
        if looked.warning.report(self.look(), "the last good TLS files for the upstream are kept") == Some(true) {
            tracing::info!("the upstream's CA or our client certificate has changed: new connections use it");
        }
    }

    /// Replaces the client certificate from the next connection on.
    ///
    /// # Errors
    /// The certificate cannot be used; the old one is kept.
    pub fn show(&self, identity: Option<Identity>) -> Result<(), TlsError> {
        let roots = self.current().roots.clone();
        self.change(roots, identity).map(drop)
    }

    fn look(&self) -> Result<bool, TlsError> {
        let current = self.current();
        let roots = match &current.roots {
            Roots::Only(pem) => Roots::Only(pem.again()?),
            other => other.clone(),
        };
        let identity = current.identity.as_ref().map(Identity::again).transpose()?;
        self.change(roots, identity)
    }

    fn change(&self, roots: Roots, identity: Option<Identity>) -> Result<bool, TlsError> {
        let current = self.current();
        if current.roots == roots && current.identity == identity {
            return Ok(false);
        }
        let next = Arc::new(Current::new(roots, identity, &self.pins)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        self.changes.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Current ===

impl Current {
    fn new(roots: Roots, identity: Option<Identity>, pins: &[Pin]) -> Result<Self, TlsError> {
        let any = pinning(&roots, identity.as_ref(), pins)?;
        let mut http1 = (*any).clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { roots, identity, any, http1: Arc::new(http1) })
    }
}

// === helpers ===

fn system_roots() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        let why = found.errors.first().map_or_else(|| "none was found".to_owned(), ToString::to_string);
        return Err(TlsError::NoRoots(why));
    }
    Ok(store)
}

/// The time between two looks. Together with the few seconds until old connections close, it is
/// well within a minute.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The shortest time between two hinted looks: calls that keep failing must not cause a look each.
const AFTER_INVALIDATION: Duration = Duration::from_secs(1);
