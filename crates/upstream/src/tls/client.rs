//! TLS towards an upstream. CAs and client certificate can be replaced while connections are open.
//!
//! Files are read again every 30 s, and sooner after a connection error; if a read fails, the last
//! good content stays in use. Each change makes a new configuration, so that old session tickets
//! are not used again: a resumed session would skip verification and keep the old client
//! certificate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::{ClientConfig, RootCertStore};

use super::server_verifier::ServerVerifier;
use super::{FileFault, Identity, Pem, TlsError, provider};
use crate::moment::Moment;
use crate::{Current, lock};

/// The CA certificates to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// The system's CAs, or those named by `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    System,
    /// Only these certificates.
    Only(Pem),
    /// None: the server's certificate is not verified at all.
    Unverified,
}

/// The TLS client for one upstream, with reloading of its files.
#[derive(derive_more::Debug)]
#[debug("Client({:?}, {:?})", self.current.get().roots, self.current.get().identity)]
pub struct Client {
    current: Current<ClientConfigs>,
    changes: AtomicU64,
    last_check: Mutex<FileCheck>,
}

/// The configurations for new connections, with the CAs and client certificate in them.
struct ClientConfigs {
    roots: Roots,
    identity: Option<Identity>,
    /// A configuration offering HTTP/2 and HTTP/1.1.
    any: Arc<ClientConfig>,
    /// A configuration offering HTTP/1.1 only, for upgrades.
    http1: Arc<ClientConfig>,
}

/// The state of checking the files for changes.
#[derive(Default)]
struct FileCheck {
    at: Moment,
    invalidated: bool,
    fault: FileFault,
}

/// Returns a configuration for connections to an upstream. It offers HTTP/2 and HTTP/1.1.
///
/// # Errors
/// A CA or the client certificate cannot be used; see [`TlsError`].
pub fn client(roots: &Roots, identity: Option<&Identity>) -> Result<Arc<ClientConfig>, TlsError> {
    ClientConfigs::new(roots.clone(), identity.cloned()).map(|configs| configs.any)
}

// === impl Client ===

impl Client {
    /// Creates a client with these trusted CAs and, if given, a client certificate.
    ///
    /// # Errors
    /// A CA or the certificate cannot be used.
    pub fn new(roots: Roots, identity: Option<Identity>) -> Result<Self, TlsError> {
        let current = Current::new(ClientConfigs::new(roots, identity)?);
        Ok(Self { current, changes: AtomicU64::new(0), last_check: Mutex::default() })
    }

    /// Returns the configuration for new connections. It offers HTTP/2 and HTTP/1.1.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current.get().any)
    }

    /// Returns the configuration for new connections with HTTP/1.1 only.
    pub fn http1_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current.get().http1)
    }

    /// Returns the number of changes so far. A connection made at another number is outdated.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Requests a check of the files soon, after a connection error as from outdated files.
    pub fn invalidate(&self) {
        lock(&self.last_check).invalidated = true;
    }

    /// Reads the files again if that is due. Must be called often.
    pub fn refresh(&self, now: Moment) {
        let mut last = lock(&self.last_check);
        let age = now.since(last.at);
        if age < CHECK_EVERY && !(last.invalidated && age >= AFTER_INVALIDATION) {
            return;
        }
        last.at = now;
        last.invalidated = false;
        if last.fault.report(self.read_again(), "the last good TLS files for the upstream stay in use") == Some(true) {
            tracing::info!("the upstream's CA or the gate's client certificate has changed: new connections use it");
        }
    }

    /// Replaces the client certificate for new connections.
    ///
    /// # Errors
    /// The certificate cannot be used; the old one is kept.
    pub fn show(&self, identity: Option<Identity>) -> Result<(), TlsError> {
        let roots = self.current.get().roots.clone();
        self.change(roots, identity).map(drop)
    }

    fn read_again(&self) -> Result<bool, TlsError> {
        let current = self.current.get();
        let roots = match &current.roots {
            Roots::Only(pem) => Roots::Only(pem.again()?),
            other => other.clone(),
        };
        let identity = current.identity.as_ref().map(Identity::again).transpose()?;
        self.change(roots, identity)
    }

    fn change(&self, roots: Roots, identity: Option<Identity>) -> Result<bool, TlsError> {
        let current = self.current.get();
        if current.roots == roots && current.identity == identity {
            return Ok(false);
        }
        self.current.set(ClientConfigs::new(roots, identity)?);
        self.changes.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }
}

// === impl ClientConfigs ===

impl ClientConfigs {
    fn new(roots: Roots, identity: Option<Identity>) -> Result<Self, TlsError> {
        let verifier = match &roots {
            Roots::Unverified => ServerVerifier::insecure(),
            Roots::System => ServerVerifier::new(system_roots()?, Vec::new())?,
            Roots::Only(pem) => ServerVerifier::new(pem.roots()?, pem.readable())?,
        };
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut any = match &identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let certified = builder.with_client_auth_cert(identity.chain.certificates()?, identity.key.key()?);
                certified.map_err(|error| identity.unusable(error))?
            }
        };
        any.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut http1 = any.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { roots, identity, any: Arc::new(any), http1: Arc::new(http1) })
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

/// The time between two checks of the files. Changes take effect within a minute, including the few
/// seconds until old connections close.
const CHECK_EVERY: Duration = Duration::from_secs(30);
/// The shortest time between two checks of the files when connections fail, which may be often.
const AFTER_INVALIDATION: Duration = Duration::from_secs(1);
